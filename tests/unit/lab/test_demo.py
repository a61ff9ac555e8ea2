"""How the demo tells the end of a training, from run files that were written without one."""

import argparse
import math

import pytest

import invented_runs as invented
from unisono.cli.commands import demo as command
from unisono.common.errors import UserError
from unisono.lab.demo import demo
from unisono.records.runfile import read_run
from unisono.show.analysis.checkup import examine


def told(folder, *acts, steps=100, loss=lambda step: 2.0):
    records = invented.steps(4, steps, loss_mean=loss)
    run = invented.write(folder, invented.header(), invented.attempt(4), *records, *acts)
    return demo.outcome(read_run(run).timeline(), examine(run))


def test_a_training_whose_loss_stays_broken_is_lost(tmp_path):
    assert told(tmp_path, loss=lambda step: math.nan if step >= 60 else 2.0) == "lost, no finite loss from step 60 on"


def test_one_broken_step_is_no_loss(tmp_path):
    outcome = told(tmp_path, invented.decision(60), loss=lambda step: math.inf if step == 60 else 1.5)
    assert outcome == "loss 1.5 at the end, after 100 steps; the guard acted once: 1 step skipped (step 60)"


def test_the_end_is_the_mean_of_the_last_steps(tmp_path):
    assert told(tmp_path, loss=lambda step: 1.0 if step >= 84 else 9.0) == "loss 1 at the end, after 100 steps"


def test_a_training_of_which_nothing_is_known(tmp_path):
    assert told(tmp_path, loss=None) == "no loss was heard"


@pytest.fixture
def trained(monkeypatch, tmp_path):
    """Runs that are written instead of trained; the guarded one ends with an error."""

    def train(name, arguments, workers, run_dir, *options):
        acts = [invented.decision(9, "halt", "3 actions did not help")] if "--guard" in options and train.halts else []
        invented.write(run_dir, invented.header(), invented.attempt(4), *invented.steps(4, 20), *acts)
        train.asked.append((run_dir.name, *arguments, *options))
        if options:
            raise UserError("The training ended with exit code 1")

    train.asked, train.halts = [], True
    monkeypatch.setattr(demo, "_train", train)
    return train


def test_both_trainings_have_the_fault_and_one_the_guard(trained, tmp_path):
    text = demo.show_guarded("nan-on-one-rank", 4, str(tmp_path / "demo"), 80, colour=False)
    assert trained.asked == [("unguarded", "nan-on-one-rank"), ("guarded", "nan-on-one-rank", "--guard")]
    assert "with the guard: loss" in text
    assert "the guard acted once: 1 halt (step 9)" in text
    assert text.index("== without the guard") < text.index("== with the guard")


def test_a_training_that_fails_for_another_reason_is_an_error(trained, tmp_path):
    trained.halts = False
    with pytest.raises(UserError, match="exit code 1"):
        demo.show_guarded("nan-on-one-rank", 4, str(tmp_path / "demo"), 80, colour=False)


@pytest.mark.parametrize(
    ("options", "fault", "guarded"),
    [
        ((), "duplicated-data", False),
        (("--guard",), "nan-on-one-rank", True),
        (("--guard", "--fault", "toxic-batch"), "toxic-batch", True),
    ],
)
def test_the_fault_is_one_that_can_be_shown(monkeypatch, capsys, options, fault, guarded):
    shown = []
    for name in ("show", "show_guarded"):
        monkeypatch.setattr(demo, name, lambda *arguments, name=name: shown.append((name, arguments[0])) or "")
    parsers = argparse.ArgumentParser().add_subparsers()
    command.add_parser(parsers)
    assert command.run(parsers.choices["demo"].parse_args(list(options))) == 0
    assert shown == [("show_guarded" if guarded else "show", fault)]
    assert ("has the guard" in capsys.readouterr().out) == guarded
