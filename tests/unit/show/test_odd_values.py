"""Values that once ended a command with an error: each is left out or treated as not known, and the rest is told."""

import contextlib
import io
import json
import warnings

import pytest

import invented_runs as invented
from unisono.cli.main import main
from unisono.common.errors import UserError
from unisono.records import FactsRecord

FACTS = {
    "a job that is no number": {"topic": "settings", "same": {"job": "four"}},
    "a job of 5,000 digits": {"topic": "settings", "same": {"job": "9" * 5000}},
    "a dataset that is no number": {"topic": "loader", "same": {"dataset": "many", "sampler replicas": "2"}},
    "a rank of 5,000 digits": {"topic": "loader", "differ": {"sampler rank": ("9" * 5000, "1")}},
    "a fact that nobody has said": {"topic": "optimizer", "differ": {"class": ()}},
}


def by_turns(*values):
    return lambda step: values[step % len(values)]


STEPS = {
    "no time at all": {"compute_W": (0.0, 1.0), "step_W": (0.0, 0.0)},
    "infinite time": {"compute_W": (0.1, float("inf")), "step_W": (1e308, 1e308)},
    "times against each other": {"compute_W": (float("inf"), 1.0), "step_W": (float("-inf"), float("inf"))},
    "time below zero": {"compute_W": (-1.0, 1.0), "step_W": (-1.0, 1.0)},
    "huge norms": {"norm_W": (1e160, 2e160), "grad_norm": 1e160},
    "largest norms": {"norm_W": (1.7e308, 1.7e308), "grad_norm": 1.7e308, "loss_W": (1e308, 1e308)},
    "tiny norms": {"norm_W": (1e-160, 2e-160), "grad_norm": 1e-160},
    "norms from end to end": {"grad_norm": by_turns(1e-74, 1.0, 1e74)},
    "losses from end to end": {"loss_W": by_turns((1e-74, 1e-74), (1.0, 1.0), (1e74, 1e74))},
    "norms of zero and infinity": {"norm_W": by_turns((0.0, 1.0), (float("inf"), 1.0), (2.0, 1.0))},
    "an infinite cost": {"listening_cost": float("inf")},
    "matrices that no 32 bits hold": {"norm_GW": ((1e60, 1e-60),) * 4, "loss_W": (1e70, 1.0)},
}


def written(folder, facts=None, steps=None):
    said = [FactsRecord(1, 3, 1e9, **facts)] if facts else []
    # Rules read the settings when they are told of the loader.
    loader = FactsRecord(1, 3, 1e9, "loader", {"sampler rank": "0", "sampler replicas": "2"})
    head = [invented.header(), invented.attempt(2), loader, *said, loader]
    return str(invented.write(folder, *head, *invented.steps(2, 160, **(steps or {})), invented.end(159)))


def said(*line):
    out = io.StringIO()
    with contextlib.redirect_stdout(out), warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            code = main(["--debug", *line])
        except UserError:
            code = 2
    return code, out.getvalue()


CASES = {name: {"facts": facts} for name, facts in FACTS.items()} | {
    name: {"steps": one} for name, one in STEPS.items()
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_every_command_takes_it(tmp_path, case):
    run = written(tmp_path / "run", **case)
    whole = written(tmp_path / "whole")
    code, text = said("diagnose", run, "--json")
    content = json.loads(text)
    assert (code, content["steps"], content["unreadable_lines"]) == (0, 160, 0)
    assert [state for state in content["checks"].values() if "failed" in state] == []
    for line in (["diagnose", run], ["scaling", run], ["batches", run], ["compare", whole, run]):
        assert said(*line)[0] == 0
    few_norms = case.get("steps", {}).get("grad_norm") in (1e160, 1.7e308)
    assert said("calibrate", run)[0] == (2 if few_norms else 0)


@pytest.mark.parametrize(
    "name", ["largest norms", "norms of zero and infinity", "matrices that no 32 bits hold", "losses from end to end"]
)
def test_a_page_is_drawn_of_it_without_a_warning(tmp_path, name):
    pytest.importorskip("bokeh")
    run = written(tmp_path / "run", steps=STEPS[name])
    assert said("report", run)[0] == 0
