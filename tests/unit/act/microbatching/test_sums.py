"""What the weighted sum of micro-gradients is. W = micro-batches, N = numbers in a gradient."""

import math

import numpy as np
import pytest
import torch
from torch import nn

import unisono
from unisono.act.microbatching import gradients
from unisono.weightings import AgreementFilter, Mean, NormAware
from unit.act.microbatching.problems import batches, loss_of, network, run, run_vectors
from unit.act.weightings.reference import leaving_one_by_one, problem, sequential

pytestmark = pytest.mark.usefixtures("route")

SEQUENTIAL = AgreementFilter(2.0, order="sequential")
HALVING = AgreementFilter(2.0, order="sequential", fusion="halving")


@pytest.mark.parametrize("weighting", [Mean(), AgreementFilter(2.0), SEQUENTIAL], ids=["mean", "any", "sequential"])
@pytest.mark.parametrize("count", [1, 2, 4, 8])
def test_at_the_largest_distance_it_is_plain_accumulation(weighting, count):
    plain, model = network(), network()
    for micro in batches(count):
        (loss_of(plain, micro) / count).backward()
    weights = run(unisono.microbatches(model, weighting=weighting), model, batches(count))
    assert torch.equal(weights, torch.full((count,), 1 / count, dtype=torch.float64))
    for expected, found in zip(plain.parameters(), model.parameters(), strict=True):
        assert torch.equal(found.grad, expected.grad)


@pytest.mark.parametrize("weighting", [Mean(), AgreementFilter(2.0), SEQUENTIAL], ids=["mean", "any", "sequential"])
@pytest.mark.parametrize("count", [3, 7, 11])
def test_the_mean_is_exact_to_seven_digits_for_other_numbers_of_micro_batches(weighting, count):
    gradient_WN = torch.randn(count, 1000, generator=torch.Generator().manual_seed(count))
    _, model, _ = run_vectors(gradient_WN, weighting)
    mean_N = gradient_WN.double().mean(0)
    assert (model.grad().double() - mean_N).norm() <= 1e-7 * mean_N.norm()


VARIANTS = {
    "mean": (
        lambda limit: AgreementFilter(limit, order="sequential"),
        lambda gradient_WN, limit: sequential(gradient_WN, limit, "mean"),
    ),
    "halving": (
        lambda limit: AgreementFilter(limit, order="sequential", fusion="halving"),
        lambda gradient_WN, limit: sequential(gradient_WN, limit, "halving"),
    ),
    "any": (AgreementFilter, leaving_one_by_one),
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_it_does_what_is_done_with_whole_gradients_and_with_their_gram_matrix(variant):
    make, reference = VARIANTS[variant]
    rng = np.random.default_rng(6)
    tried = skipped = 0
    for _ in range(120):
        workers = int(rng.integers(2, 12))
        gradient_WN = problem(rng, workers).astype(np.float32).astype(np.float64)
        limit = rng.choice([0.0, 0.5, 0.9, 0.97, 1.0, 1.1, 2.0, rng.uniform(0, 2)])
        expected = reference(gradient_WN, limit)
        if expected.margin < 1e-4 or expected.cancelled < 1e-2:
            continue
        tried += 1
        weights, model, virtual = run_vectors(gradient_WN, make(limit))
        exact_WN = torch.as_tensor(gradient_WN)
        assert torch.allclose(weights, make(limit)(exact_WN @ exact_WN.T), rtol=1e-12)
        assert weights.nonzero().flatten().tolist() == expected.kept
        assert virtual.finite == np.isfinite(gradient_WN).all(1).tolist()
        if expected.kept:
            off = np.abs(model.grad().numpy() - expected.aggregate_N).max()
            assert off <= 1e-6 * np.abs(gradient_WN[expected.kept]).max()
        else:
            skipped += 1
            assert model.first.grad is None
            assert model.second.grad is None
    assert tried > 50
    assert skipped > 5


def test_repeated_halving_of_many_neither_overflows_nor_rounds():
    gradient_WN = torch.rand(100, 24, generator=torch.Generator().manual_seed(0)) * 1e10
    weights, model, _ = run_vectors(gradient_WN, HALVING)
    running_N = gradient_WN[0]
    for gradient_N in gradient_WN[1:]:
        running_N = (running_N + gradient_N) / 2
    assert torch.equal(model.grad(), running_N)
    assert weights.sum() == 1
    assert weights[-3:].tolist() == [0.125, 0.25, 0.5]


def test_the_inner_products_of_large_gradients_are_exact_to_seven_digits():
    elements = 200_000
    generator = torch.Generator().manual_seed(0)
    gradient_WN = torch.rand(3, elements, generator=generator) + 0.5
    seen = []

    def weighting(gram_WW):
        seen.append(gram_WW)
        return torch.ones(len(gram_WW))

    weights, model, _ = run_vectors(gradient_WN, weighting)
    exact_WW = gradient_WN.double() @ gradient_WN.double().T
    assert seen[0].dtype == torch.float64
    assert torch.allclose(seen[0], exact_WW, rtol=3e-7)
    assert weights.tolist() == [1, 1, 1]
    assert torch.allclose(model.grad(), gradient_WN.sum(0))


@pytest.mark.parametrize("workers", [2, 5])
def test_short_gradients_are_joined_and_long_ones_cut_without_losing_any(workers):
    generator = torch.Generator().manual_seed(0)
    sizes = (5, 0, 40_000, 40_000, 1, 700_000, 60_000, 3, 65_536, 65_537, 9)
    row_W = [[torch.randn(size, generator=generator) for size in sizes] for _ in range(workers)]
    whole_WN = torch.stack([torch.cat(row) for row in row_W]).double()
    exact_WW, scale = whole_WN @ whole_WN.T, whole_WN.square().sum(1).max()
    flats = [list(flat_W) for flat_W in zip(*row_W, strict=True)]
    assert (gradients.gram(row_W) - exact_WW).abs().max() < 3e-7 * scale
    # What a GPU does, which works here as well.
    assert (gradients._by_matrices(gradients._pieces(flats, 100_000)) - exact_WW).abs().max() < 1e-12 * scale


@pytest.mark.parametrize("weighting", [AgreementFilter(0.5), AgreementFilter(0.5, order="sequential")])
def test_a_micro_batch_with_nan_or_infinity_does_not_count(weighting):
    good_N = torch.arange(1.0, 25)
    bad_WN = torch.stack([good_N * torch.tensor([math.nan]), good_N, good_N, good_N * math.inf])
    weights, model, workers = run_vectors(bad_WN, weighting)
    assert weights.tolist() == [0, 0.5, 0.5, 0]
    assert workers.finite == [False, True, True, False]
    assert [math.isnan(distance) for distance in workers.distances] in ([1, 0, 0, 1], [1, 1, 0, 1])
    assert torch.equal(model.grad(), good_N)


@pytest.mark.parametrize("weighting", [AgreementFilter(), SEQUENTIAL])
def test_nobody_finite_is_nobody_at_all(weighting):
    weights, model, workers = run_vectors(torch.full((3, 24), math.nan), weighting)
    assert weights.tolist() == [0, 0, 0]
    assert workers.finite == [False] * 3
    assert model.first.grad is None


@pytest.mark.parametrize("order", ["any", "sequential"])
def test_a_gradient_of_zeros_agrees_with_nobody(order):
    good_N = torch.arange(1.0, 25)
    gradient_WN = torch.stack([good_N, torch.zeros(24), 2 * good_N])
    weights, model, workers = run_vectors(gradient_WN, AgreementFilter(0.97, order=order))
    assert weights.tolist() == [0.5, 0, 0.5]
    assert workers.distances[1:] == pytest.approx([1, 0], abs=1e-6)
    assert torch.equal(model.grad(), 1.5 * good_N)


@pytest.mark.parametrize("weighting", [Mean(), SEQUENTIAL])
def test_frozen_and_unused_parameters_count_as_zero(weighting):
    model = nn.ModuleDict({name: nn.Linear(4, 1, bias=False) for name in ("both", "once", "never", "frozen")})
    model["frozen"].requires_grad_(False)
    inputs = torch.arange(4.0)
    workers = unisono.microbatches(model, weighting=weighting)
    with workers.microbatch():
        (model["both"](inputs) + model["frozen"](inputs)).sum().backward()
    with workers.microbatch():
        (model["both"](inputs) + model["once"](inputs)).sum().backward()
    assert workers.reduce().tolist() == [0.5, 0.5]
    assert torch.equal(model["both"].weight.grad[0], inputs)
    assert torch.equal(model["once"].weight.grad[0], inputs / 2)
    assert model["never"].weight.grad is None
    assert model["frozen"].weight.grad is None


@pytest.mark.parametrize("weighting", [Mean(), SEQUENTIAL])
def test_bfloat16_gradients_are_summed_in_float32(weighting):
    gradient_WN = torch.ones(256, 24)
    gradient_WN[0] = 256
    _, model, _ = run_vectors(gradient_WN, weighting, torch.bfloat16)
    # Summed in bfloat16, 256 + 1 stays 256.
    expected = torch.tensor((256 + 255) / 256).bfloat16()
    assert model.first.grad.dtype == torch.bfloat16
    assert model.first.grad.eq(expected).all()


@pytest.mark.parametrize("weighting", [Mean(), SEQUENTIAL])
def test_parameters_of_several_types_and_layouts_go_together(weighting):
    def build():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Flatten(), nn.Linear(32, 2)).to(memory_format=torch.channels_last)
        model.add_module("scale", nn.Linear(2, 1, dtype=torch.float64))
        model.register_parameter("one", nn.Parameter(torch.tensor(1.0)))
        return model

    def loss(model, inputs):
        return (model.scale(model[2](model[1](model[0](inputs))).double()) * model.one).sum()

    plain, model = build(), build()
    inputs = torch.randn(2, 5, 3, 4, 4, generator=torch.Generator().manual_seed(1))
    workers = unisono.microbatches(model, weighting=weighting)
    for part in inputs:
        (loss(plain, part) / 2).backward()
        with workers.microbatch():
            loss(model, part).backward()
    workers.reduce()
    for expected, found in zip(plain.parameters(), model.parameters(), strict=True):
        assert torch.equal(expected.grad, found.grad)
        assert found.grad.dtype == found.dtype


def test_any_weighting_of_a_gram_matrix_will_do():
    gradient_WN = torch.eye(3, 24)
    weights, model, workers = run_vectors(gradient_WN, lambda gram_WW: torch.tensor([2.0, 0.0, -1.0]))
    assert weights.tolist() == [2, 0, -1]
    assert weights.dtype == torch.float64
    assert model.grad()[:3].tolist() == [2, 0, -1]
    assert workers.distances == [1, 1, 1]
    assert run_vectors(gradient_WN, NormAware(AgreementFilter(2.0)))[0].tolist() == [1 / 3] * 3
