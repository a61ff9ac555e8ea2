"""Fingerprints of what must be equal, in even parts, and the optimizer's numbers."""

import math

import pytest
import torch
from torch import nn

from unisono.listen.evidence.weight_prints import (
    PARTS,
    WeightPrints,
    _even_parts,
    is_sharded,
    learning_rate,
    numbers_of,
)


@pytest.fixture
def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 2))


@pytest.fixture
def weight_prints(model):
    names, parameters = zip(*model.named_parameters(), strict=True)
    return WeightPrints(names, parameters)


def everything(weight_prints, optimizer):
    return (
        weight_prints.gradients(0, 1),
        weight_prints.weights(0, 1),
        weight_prints.state(optimizer, 0, 1),
        weight_prints.all_weights(),
    )


def step(model, optimizer):
    optimizer.zero_grad()
    model(torch.ones(3, 4)).square().mean().backward()
    optimizer.step()


def test_nothing_is_changed_by_looking(model, weight_prints):
    optimizer = torch.optim.Adam(model.parameters())
    step(model, optimizer)
    state = torch.get_rng_state()
    before = [p.clone() for p in model.parameters()]
    assert everything(weight_prints, optimizer) == everything(weight_prints, optimizer)
    assert all(torch.equal(one, other) for one, other in zip(before, model.parameters(), strict=True))
    assert torch.equal(torch.get_rng_state(), state)
    assert all(p.requires_grad for p in model.parameters())


def test_one_bit_of_one_weight_shows_in_its_own_fingerprint(model, weight_prints):
    before, _ = weight_prints.weights(0, 1)
    whole = weight_prints.all_weights()
    with torch.no_grad():
        model[1].bias.view(torch.int32)[0] ^= 1
    after, _ = weight_prints.weights(0, 1)
    assert [name for name in before if before[name] != after[name]] == ["1.bias"]
    assert weight_prints.all_weights() != whole


def test_two_weights_that_change_places_show(model, weight_prints):
    before = weight_prints.all_weights()
    with torch.no_grad():
        model[0].weight.copy_(model[0].weight.flip(0).clone())
    assert weight_prints.all_weights() != before


def test_the_squared_norm_is_that_of_the_compared_part(model, weight_prints):
    _, square = weight_prints.weights(0, 1)
    assert square == pytest.approx(sum(float(p.detach().double().square().sum()) for p in model.parameters()))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64, torch.complex64])
def test_other_types_are_heard(dtype):
    parameter = nn.Parameter(torch.ones(3, dtype=dtype))
    prints, square = WeightPrints(["p"], [parameter]).weights(0, 1)
    assert list(prints) == ["p"]
    assert square == 3.0


def test_gradients_that_are_missing_are_told_from_zeros(model, weight_prints):
    missing = weight_prints.gradients(0, 1)
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    assert weight_prints.gradients(0, 1) != missing


def test_a_gradient_with_nan_is_equal_to_itself(model, weight_prints):
    model[0].weight.grad = torch.full_like(model[0].weight, math.nan)
    assert weight_prints.gradients(0, 1) == weight_prints.gradients(0, 1)


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.Adam, torch.optim.LBFGS])
def test_optimizer_state_is_heard_without_making_any(model, weight_prints, kind):
    optimizer = kind(model.parameters())
    empty = weight_prints.state(optimizer, 0, 1)
    assert len(optimizer.state) <= (kind is torch.optim.LBFGS)
    assert isinstance(empty, int)


def test_a_changed_moment_shows(model, weight_prints):
    optimizer = torch.optim.Adam(model.parameters())
    step(model, optimizer)
    before = weight_prints.state(optimizer, 0, 1)
    optimizer.state[model[1].bias]["exp_avg"] += 1
    assert weight_prints.state(optimizer, 0, 1) != before


def test_sharded_state_is_not_compared(model, weight_prints):
    class ZeroRedundancyOptimizer(torch.optim.SGD):
        pass

    optimizer = type("Mine", (ZeroRedundancyOptimizer,), {})(model.parameters())
    assert is_sharded(optimizer)
    assert weight_prints.state(optimizer, 0, 1) is None
    assert not is_sharded(torch.optim.SGD(model.parameters()))


def test_projections_are_those_of_equal_tensors(model, weight_prints):
    before = weight_prints.projections()
    assert list(before) == ["0.weight", "0.bias", "1.weight", "1.bias"]
    assert before == weight_prints.projections()
    with torch.no_grad():
        model[0].bias += 1
    assert [name for name, sums in weight_prints.projections().items() if sums != before[name]] == ["0.bias"]


def test_parts_cover_every_parameter_once(weight_prints):
    assert weight_prints.parts == 4
    covered = [name for part in range(4) for name in weight_prints.weights(part, 4)[0]]
    assert covered == weight_prints.names


def test_a_released_auditor_holds_no_parameters(weight_prints):
    weight_prints.release()
    assert weight_prints.weights(0, 1) == ({}, 0)


@pytest.mark.parametrize(
    "sizes",
    [[1], [5, 5], [1] * 200, [10**9] + [1] * 99, [1] * 99 + [10**9], [10**6, 10] * 60, list(range(1, 150)), [0, 0, 3]],
    ids=len,
)
def test_parts_are_in_order_and_none_is_empty(sizes):
    parts = min(PARTS, len(sizes))
    owners = _even_parts(sizes, parts)
    assert owners == sorted(owners)
    assert set(owners) == set(range(parts))


def test_parts_are_even_by_elements():
    sizes = [100] * 500
    owners = _even_parts(sizes, PARTS)
    assert {owners.count(part) for part in range(PARTS)} <= {9, 10, 11}


def test_the_optimizers_numbers(model):
    optimizer = torch.optim.Adam(model.parameters(), lr=torch.tensor(0.5), betas=(0.8, 0.9))
    numbers = numbers_of(optimizer)
    assert ("lr", 0.5) in numbers
    assert [value for key, value in numbers if key == "betas"] == [0.8, 0.9]
    assert "params" not in dict(numbers)
    assert all(type(value) is float for _, value in numbers)
    assert learning_rate(optimizer) == 0.5


def test_every_group_counts(model):
    groups = [{"params": [p], "lr": 0.1 * place} for place, p in enumerate(model.parameters())]
    optimizer = torch.optim.SGD(groups)
    assert [value for key, value in numbers_of(optimizer) if key == "lr"] == pytest.approx([0.0, 0.1, 0.2, 0.3])
    assert learning_rate(optimizer) == 0.0


def test_state_that_workers_divide_among_them_is_not_compared(model, weight_prints):
    optimizer = torch.optim.Adam(model.parameters())
    step(model, optimizer)
    assert weight_prints.state(optimizer, 0, 1) is not None
    del optimizer.state[next(model.parameters())]
    assert weight_prints.state(optimizer, 0, 1) is None
