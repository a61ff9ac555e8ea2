"""What is done to a gradient before its sketch is compared. K = sketch length."""

import math

import pytest
import torch
from torch import nn

from unisono.act.steering.sketch_route import SketchRoute


@pytest.fixture
def parameter():
    parameter = nn.Parameter(torch.zeros(50))
    parameter.grad = torch.randn(50, generator=torch.Generator().manual_seed(0))
    return parameter


def route(parameter, window=1, damping=None):
    return SketchRoute(None, [("weight", parameter)], window, damping)


def test_gradients_are_divided_by_the_root_of_second_moments(parameter):
    adam = torch.optim.AdamW([parameter])
    adam.step()
    scaled = route(parameter, damping=0.1)
    assert torch.equal(scaled._scaled(parameter, parameter.grad), parameter.grad)
    scaled.learn_from(adam)
    root = adam.state[parameter]["exp_avg_sq"].sqrt()
    expected = parameter.grad / (root + 0.1 * root.square().mean().sqrt())
    assert torch.allclose(scaled._scaled(parameter, parameter.grad), expected)
    assert not scaled.lacks_moments


def test_an_optimizer_without_moments_is_noticed(parameter):
    scaled, sgd = route(parameter, damping=0.1), torch.optim.SGD([parameter], 0.1)
    assert not scaled.lacks_moments
    scaled.learn_from(sgd)
    assert torch.equal(scaled._scaled(parameter, parameter.grad), parameter.grad)
    assert scaled.lacks_moments


def test_directions_fade_and_what_is_not_finite_stays_out_of_the_sum(parameter):
    windowed, one_K, two_K = route(parameter, window=4), torch.tensor([3.0, 4.0]), torch.tensor([0.0, 2.0])
    square = torch.tensor(25.0, dtype=torch.float64)
    assert torch.allclose(windowed._over_window(one_K, square), one_K / 5)
    assert windowed._over_window(one_K, torch.tensor(math.nan, dtype=torch.float64)).isnan().all()
    summed_K = windowed._over_window(two_K, torch.tensor(4.0, dtype=torch.float64))
    assert torch.allclose(summed_K, 0.75 * one_K / 5 + two_K / 2)
