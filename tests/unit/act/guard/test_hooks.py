"""What the guard's hooks do around an optimizer's step, with everything behind them left out."""

from types import SimpleNamespace
from unittest.mock import MagicMock

import pytest
import torch
from torch import nn

from unisono.act.actions.skip import Skipping
from unisono.act.guard.hooks import GuardHooks


@pytest.fixture
def model_weight():
    return nn.Parameter(torch.ones(3))


@pytest.fixture
def hooks(model_weight):
    """Of a model with one parameter, before the step is told to the device."""
    executor = MagicMock(skipping=Skipping())
    state = MagicMock(owns=lambda parameters: any(one is model_weight for one in parameters))
    decision_round = MagicMock(late=MagicMock(begun=False))
    return GuardHooks(MagicMock(), state, executor, decision_round, restart=None, steering=None)


def stepped(hooks, parameters, silenced):
    """What moved, of parameters with gradients of which some are not finite."""
    optimizer = torch.optim.AdamW(parameters, 0.1)
    for one in parameters:
        one.grad = torch.full_like(one, float("nan"))
    hooks._executor.skipping.silence(silenced)
    before = [one.detach().clone() for one in parameters]
    hooks.optimizer_begins(parameters, optimizer)
    optimizer.step()
    hooks.optimizer_stepped(parameters, optimizer)
    return [not torch.equal(one, old) for one, old in zip(parameters, before, strict=True)]


def test_a_skipped_step_covers_all_that_the_optimizer_holds(hooks, model_weight):
    """Also a loss with parameters of its own, which no bucket of the model holds."""
    of_the_loss = nn.Parameter(torch.ones(()))
    assert stepped(hooks, [model_weight, of_the_loss], silenced=[model_weight]) == [False, False]


def test_other_optimizers_are_left_alone(hooks, model_weight):
    other = nn.Parameter(torch.ones(2))
    assert stepped(hooks, [other], silenced=[model_weight]) == [True]


def test_an_optimizer_inside_backward_is_refused(hooks, model_weight):
    hooks.backward_begins(SimpleNamespace(), None)
    with pytest.raises(RuntimeError, match="steps before, in a gradient hook"):
        stepped(hooks, [model_weight], silenced=[])
