"""What can be asked for, and what is refused before anything is set up."""

import pytest
import torch
from torch import nn

import unisono
from unisono.act.steering.setup import SteeringOptions, asked_options
from unisono.act.weightings.spec import VARIABLE
from unisono.common.errors import UserError
from unisono.weightings import AgreementFilter, Mean, Preconditioned, Windowed

REFUSED = [
    (TypeError, "Found float", {"weighting": 0.97}),
    (TypeError, r"Found a class. Write: AgreementFilter\(\)", {"weighting": AgreementFilter}),
    (ValueError, "Found `gram='precise'", {"weighting": Mean(), "gram": "precise"}),
    (ValueError, "scope='layer'", {"weighting": Mean(), "scope": "layer"}),
    (ValueError, 'gram="sketch"', {"weighting": Windowed(Mean()), "gram": "exact"}),
    (ValueError, 'gram="sketch"', {"weighting": Preconditioned(Mean()), "gram": "exact"}),
]


@pytest.mark.parametrize(("error", "words", "asked"), REFUSED)
def test_what_cannot_be_is_refused(error, words, asked):
    with pytest.raises(error, match=words):
        SteeringOptions(**asked)


def test_without_a_weighting_there_is_no_course(monkeypatch):
    monkeypatch.delenv(VARIABLE, raising=False)
    assert asked_options(None, "sketch", "model", False) is None


def test_the_environment_asks_where_the_script_does_not(monkeypatch):
    monkeypatch.setenv(VARIABLE, "agreement:max_distance=0.9,gram=exact,scope=bucket")
    options = asked_options(None, "sketch", "model", False)
    assert options == SteeringOptions(AgreementFilter(0.9), "exact", "bucket")
    assert asked_options(Mean(), "sketch", "model", True) == SteeringOptions(Mean(), "sketch", "model", True)


def test_a_text_that_cannot_be_read_is_an_error_of_the_user(monkeypatch):
    monkeypatch.setenv(VARIABLE, "agrement")
    with pytest.raises(UserError, match="Found `agrement`"):
        asked_options(None, "sketch", "model", False)


def test_one_worker_has_nothing_to_weigh(tmp_path, capfd):
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with unisono.attach(model, optimizer, weighting=AgreementFilter(), run_dir=tmp_path / "run"):
        model(torch.ones(1, 4)).sum().backward()
        optimizer.step()
    assert (
        "one worker only: nothing to weigh. For parts of its batch see unisono.microbatches" in capfd.readouterr().err
    )


def test_other_wrappers_are_refused():
    with pytest.raises(ValueError, match="Found DataParallel"):
        unisono.attach(nn.DataParallel(nn.Linear(2, 2)), weighting=Mean())
