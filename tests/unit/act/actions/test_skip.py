"""A skipped step leaves no trace: an optimizer passes over what has no gradient."""

import pytest
import torch
from torch import nn

from unisono.act.actions.skip import Skipping


@pytest.fixture
def parameters():
    return [nn.Parameter(torch.ones(3)), nn.Parameter(torch.ones(2))]


@pytest.fixture
def optimizer(parameters):
    """Zeros would move these weights: momentum and decay go on without a gradient that is not zero."""
    one = torch.optim.SGD(parameters, 0.1, momentum=0.9, weight_decay=0.1)
    take_gradients(parameters, 1.0)
    one.step()
    return one


def take_gradients(parameters, value):
    for parameter in parameters:
        parameter.grad = torch.full_like(parameter, value)


def moved(parameters, before):
    return [not torch.equal(one, old) for one, old in zip(parameters, before, strict=True)]


def copies(parameters):
    return [one.detach().clone() for one in parameters]


def test_what_is_silenced_does_not_move_and_has_zeros_afterwards(parameters, optimizer):
    skipping, before = Skipping(), copies(parameters)
    skipping.silence(parameters[:1])
    skipping.optimizer_begins(parameters, optimizer)
    optimizer.step()
    skipping.optimizer_stepped(optimizer)
    assert moved(parameters, before) == [False, True]
    assert parameters[0].grad.tolist() == [0.0] * 3


def test_a_backward_pass_inside_a_step_is_kept_from_the_optimizer_too(parameters, optimizer):
    """With a closure the gradients come when the step has already begun."""
    skipping, before = Skipping(), copies(parameters)

    def closure():
        take_gradients(parameters, 5.0)
        skipping.silence(parameters)
        skipping.backward_ended()
        return torch.zeros(())

    optimizer.zero_grad()
    skipping.optimizer_begins(parameters, optimizer)
    optimizer.step(closure)
    skipping.optimizer_stepped(optimizer)
    assert moved(parameters, before) == [False, False]
    assert [one.grad.abs().max().item() for one in parameters] == [0.0, 0.0]


def test_all_of_an_optimizer_is_silenced_with_one_of_its_parameters(parameters, optimizer):
    skipping, before = Skipping(), copies(parameters)
    skipping.silence_with(parameters)
    skipping.silence(parameters[:1])
    skipping.silence_with(parameters)
    skipping.optimizer_begins(parameters, optimizer)
    optimizer.step()
    assert moved(parameters, before) == [False, False]


def test_the_next_step_is_taken_again(parameters, optimizer):
    skipping = Skipping()
    skipping.silence(parameters)
    skipping.optimizer_begins(parameters, optimizer)
    optimizer.step()
    skipping.optimizer_stepped(optimizer)
    before = copies(parameters)
    skipping.pass_begins(afresh=False)
    take_gradients(parameters, 1.0)
    skipping.optimizer_begins(parameters, optimizer)
    optimizer.step()
    assert moved(parameters, before) == [True, True]
