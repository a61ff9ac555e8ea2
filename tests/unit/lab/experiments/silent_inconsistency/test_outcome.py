"""What is kept of a run."""

import json
from types import SimpleNamespace

import pytest

from unisono.lab.experiments.silent_inconsistency import outcome as module
from unisono.lab.experiments.silent_inconsistency.outcome import MEASURES, POINTS, _closest_pair, _summary
from unisono.lab.experiments.silent_inconsistency.perturbations import Drawn, Ground, Perturbation
from unisono.records import StepRecord
from unisono.records.finding import Finding

GROUND = Ground(0, 2, 8, (), lambda examples: [])
SEEN = Drawn([[0], [1]], [False, False], ["a", "b"], [0.0, 0.5], [0.0, 0.0], [8.0, 8.0])


def step(number, **values):
    return StepRecord(attempt=1, step=number, time=0.0, heard=True, **values)


def test_a_summary_is_taken_over_the_whole_run():
    kept = _summary([step(number, loss_std=float(number)) for number in range(100)], "loss_std")
    assert kept["mean"] == 49.5
    assert kept["start"] == 2.0
    assert kept["end"] == 94.5
    assert kept["curve"] == [2.0 + 5 * place for place in range(POINTS)]


def test_steps_that_were_not_heard_are_left_out():
    kept = _summary([step(0, cos_mean=0.25), step(1), step(2, cos_mean=0.75)], "cos_mean")
    assert (kept["mean"], kept["curve"]) == (0.5, [0.25, 0.75])


def test_a_measure_that_is_never_known_is_an_error():
    with pytest.raises(ValueError, match="`cos_mean` should be known"):
        _summary([step(0)], "cos_mean")


def test_the_pair_that_agrees_most_is_told():
    steps = [
        step(0, cos_WW=((1.0, 0.1, 0.9), (0.1, 1.0, 0.2), (0.9, 0.2, 1.0))),
        step(1, cos_WW=((1.0, 0.3, 0.7), (0.3, 1.0, 0.2), (0.7, 0.2, 1.0))),
        step(2),
    ]
    assert _closest_pair(steps) == {"ranks": [0, 2], "cosine": 0.8, "next": 0.2}


@pytest.fixture(scope="module")
def steps():
    """Of a run of two workers, with cosines."""
    return [
        step(number, **dict.fromkeys(MEASURES, 1.0), loss_W=(1.0, 1.0), cos_WW=((1.0, 0.5), (0.5, 1.0)))
        for number in range(4)
    ]


def finding(code, ranks):
    return Finding(code, "", "", "warning", "open", 7, 9, ranks, (), "why so", {}, (), (), None)


@pytest.mark.parametrize(
    ("code", "at_fault", "found", "named"),
    [
        ("UN105", (1,), True, True),
        ("UN105", (0,), True, False),
        ("UN105", (), True, None),
        ("UN102", (1,), False, False),
        ("", (), None, None),
    ],
)
def test_what_was_found_is_held_against_what_was_done(code, at_fault, found, named, steps, monkeypatch, tmp_path):
    monkeypatch.setattr(module, "read_run", lambda path: SimpleNamespace(timeline=lambda: steps))
    monkeypatch.setattr(module, "examine", lambda path: SimpleNamespace(findings=(finding("UN105", (1,)),)))
    perturbation = Perturbation("", lambda ground: [], lambda ground, seen: True, code, lambda ground: at_fault)
    kept = module.outcome(GROUND, perturbation, SEEN, tmp_path)
    assert (kept["found"], kept["named"]) == (found, named)
    told = {"code": "UN105", "severity": "warning", "state": "open", "first_step": 7, "why": "why so", "ranks": [1]}
    assert kept["findings"] == [told]
    assert (kept["streams"], kept["repeated_W"]) == (2, [0.0, 0.5])
    json.dumps(kept, allow_nan=False)
