"""Gradients are multiplied in place, each once."""

import math

import pytest
import torch
from torch import nn

from unisono.act.actions.clip import clip

TYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.complex64]


@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_every_gradient_is_multiplied_in_place(dtype):
    torch.manual_seed(0)
    parameters = [nn.Parameter(torch.randn(shape, dtype=dtype)) for shape in ((), (7,), (3, 5), (0, 2))]
    for parameter in parameters:
        parameter.grad = torch.randn_like(parameter)
    gradients = [parameter.grad for parameter in parameters]
    expected = [gradient * 0.3 for gradient in gradients]
    clip(parameters, 0.3)
    for parameter, gradient, wanted in zip(parameters, gradients, expected, strict=True):
        assert parameter.grad is gradient
        torch.testing.assert_close(gradient, wanted)


def test_types_may_be_mixed_and_gradients_missing():
    single, double, without = (nn.Parameter(torch.ones(2, dtype=kind)) for kind in (*TYPES[:2], torch.float32))
    single.grad, double.grad = torch.full_like(single, 4), torch.full_like(double, 6)
    clip([single, without, double], 0.5)
    assert (single.grad.tolist(), double.grad.tolist(), without.grad) == ([2, 2], [3, 3], None)


def test_a_parameter_that_is_named_twice_is_clipped_once():
    parameter = nn.Parameter(torch.ones(2))
    parameter.grad = torch.full_like(parameter, 4)
    clip([parameter, parameter], 0.5)
    assert parameter.grad.tolist() == [2, 2]


def test_sparse_gradients_are_multiplied_and_stay_sparse():
    embedding = nn.Embedding(6, 2, sparse=True)
    embedding(torch.tensor([1, 4, 1])).sum().backward()
    before = embedding.weight.grad.to_dense()
    clip(embedding.parameters(), 0.25)
    assert embedding.weight.grad.is_sparse
    assert torch.equal(embedding.weight.grad.to_dense(), before * 0.25)


def test_gradients_that_are_views_of_one_buffer_are_multiplied_once():
    buffer = torch.full((6,), 8.0)
    parameters = [nn.Parameter(torch.ones(3)) for _ in range(2)]
    parameters[0].grad, parameters[1].grad = buffer[:3], buffer[3:]
    clip(parameters, 0.5)
    assert buffer.tolist() == [4.0] * 6


@pytest.mark.parametrize("factor", [math.nan, math.inf, -0.5])
def test_a_factor_that_would_do_harm_is_refused(factor):
    with pytest.raises(ValueError, match="should be a finite number"):
        clip([], factor)
