"""The filter sees inner products only; another one, written down here, sees the gradients. Both must decide the same.

W = workers, N = numbers in a gradient.
"""

import numpy as np
import pytest
import torch

from unisono.weightings import AgreementFilter
from unit.act.weightings.reference import leaving_one_by_one, problem, sequential

VARIANTS = {
    "published": (
        lambda limit: AgreementFilter(limit, order="sequential"),
        lambda gradient_WN, limit: sequential(gradient_WN, limit, "mean"),
    ),
    "package": (
        lambda limit: AgreementFilter(limit, order="sequential", fusion="halving"),
        lambda gradient_WN, limit: sequential(gradient_WN, limit, "halving"),
    ),
    "any order": (AgreementFilter, leaving_one_by_one),
}
DECIDABLE = {torch.float64: (1e-9, 1e-5), torch.float32: (1e-4, 1e-2)}
"""How far from the limit the nearest distance must be, and how long a sum of gradients, before rounding is harmless."""


def limits(rng):
    return [*np.linspace(0, 2, 11), 0.97, *rng.uniform(0, 2, 4)]


def gram_of(gradient_WN, dtype):
    with np.errstate(invalid="ignore"):
        return torch.tensor(gradient_WN @ gradient_WN.T).to(dtype)


def combined(weight_W, gradient_WN):
    kept = weight_W != 0
    return weight_W[kept] @ gradient_WN[kept]


@pytest.mark.parametrize("dtype", DECIDABLE, ids=str)
@pytest.mark.parametrize("variant", VARIANTS)
def test_decisions_and_updates_are_those_of_whole_gradients(variant, dtype):
    filter_at, reference = VARIANTS[variant]
    margin, shortest = DECIDABLE[dtype]
    rng, compared, skipped, exactly_at = np.random.default_rng(7), 0, 0, 0
    for workers in list(range(2, 12)) * 8:
        gradient_WN = problem(rng, workers)[rng.permutation(workers)]
        gram_WW = gram_of(gradient_WN, dtype)
        for limit in limits(rng):
            expected = reference(gradient_WN, limit)
            if expected.margin < margin or expected.cancelled < shortest:
                continue
            weight_W = filter_at(limit)(gram_WW).double().numpy()
            assert np.flatnonzero(weight_W).tolist() == expected.kept
            np.testing.assert_allclose(
                combined(weight_W, gradient_WN),
                expected.aggregate_N,
                atol=1e-6 * np.nanmax(np.abs(expected.aggregate_N)),
            )
            compared, skipped = compared + 1, skipped + (not expected.kept)
            exactly_at += limit == 0 and len(expected.kept) > 1
    assert compared > 1000
    assert skipped > 50
    assert exactly_at > 3


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
def test_who_is_exactly_at_the_limit_agrees(variant, dtype):
    filter_at, _ = VARIANTS[variant]
    torch.manual_seed(0)
    one_N = torch.randn(1, 1000)
    same_WN = torch.cat([one_N, 4 * one_N, one_N])
    assert (filter_at(0.0)((same_WN @ same_WN.T).to(dtype)) > 0).all()
    right_angle_WW = torch.diag(torch.tensor([3.0, 0.1])).to(dtype)
    assert (filter_at(1.0)(right_angle_WW) > 0).all()
    assert (filter_at(0.99)(right_angle_WW) == 0).all()


@pytest.mark.parametrize("fusion", ["mean", "halving"])
def test_a_worker_that_is_not_finite_leaves_before_the_first_is_chosen(fusion):
    gradient_WN = np.array([[np.nan, 1.0], [1.0, 1.0], [1.0, 0.9]])
    weighting = AgreementFilter(0.5, order="sequential", fusion=fusion)
    assert weighting(gram_of(gradient_WN, torch.float64)).tolist() == [0, 0.5, 0.5]


def test_halving_counts_the_last_as_much_as_all_before():
    weighting = AgreementFilter(2.0, order="sequential", fusion="halving")
    assert weighting(torch.ones(4, 4) + torch.eye(4)).tolist() == [0.125, 0.125, 0.25, 0.5]


class GivenGradients(torch.nn.Module):
    """Its gradient is its input."""

    def __init__(self, elements):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(elements))

    def forward(self, inputs):
        return (inputs * self.weight).sum(1, keepdim=True)


def by_the_package(package, gradient_WN, limit):
    """How many it kept, and its update."""
    model = GivenGradients(gradient_WN.shape[1])
    rows = [torch.utils.data.TensorDataset(one_N[None], torch.zeros(1)) for one_N in gradient_WN]
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    said = package.step_GAF(
        model, optimizer, lambda outputs, _: outputs.sum(), rows, wandb=False, verbose=False, cos_distance_thresh=limit
    )
    return said["agreed_count"] + 1, -model.weight.detach()


def test_the_authors_package_makes_the_same_update():
    package = pytest.importorskip("gradient_agreement_filtering")
    rng, compared = np.random.default_rng(3), 0
    for workers in list(range(2, 12)) * 3:
        gradient_WN = problem(rng, workers)
        gradient_WN = np.where(np.isfinite(gradient_WN), gradient_WN, 0).astype(np.float32)
        for limit in rng.uniform(0, 2, 6):
            expected = sequential(gradient_WN.astype(np.float64), limit, "halving")
            if expected.margin < 1e-4 or expected.cancelled < 1e-2:
                continue
            rows = torch.tensor(gradient_WN)
            weight_W = AgreementFilter(limit, order="sequential", fusion="halving")(rows.double() @ rows.T.double())
            kept, update_N = by_the_package(package, rows, limit)
            assert max(1, int((weight_W > 0).sum())) == kept
            scale = float(update_N.abs().max())
            torch.testing.assert_close((weight_W @ rows.double()).float(), update_N, rtol=0, atol=1e-6 * scale)
            compared += 1
    assert compared > 100
