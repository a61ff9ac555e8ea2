"""What the filter promises whatever the gradients are. W = workers, N = numbers in a gradient."""

import itertools
import math

import numpy as np
import pytest
import torch

from unisono.weightings import AdaptiveFilter, AgreementFilter, Mean, NormAware, Preconditioned, Windowed
from unit.act.weightings.reference import problem


def gram_of(gradient_WN):
    return gradient_WN @ gradient_WN.T


def gradients(workers, elements=50, common=1.0, seed=0):
    generator = torch.Generator().manual_seed(seed)
    own_WN = torch.randn(workers, elements, generator=generator, dtype=torch.float64)
    return own_WN + common * torch.randn(elements, generator=generator, dtype=torch.float64)


@pytest.mark.parametrize("order", ["any", "sequential"])
@pytest.mark.parametrize("workers", range(2, 12))
def test_two_keeps_everybody_and_is_the_mean(workers, order):
    for seed in range(20):
        gradient_WN = gradients(workers, common=0, seed=seed)
        gradient_WN[1] = -gradient_WN[0]
        weight_W = AgreementFilter(2.0, order=order)(gram_of(gradient_WN))
        assert weight_W.tolist() == [1 / workers] * workers == Mean()(gram_of(gradient_WN)).tolist()
        update_N, mean_N = sum(weight_W[:, None] * gradient_WN), sum(gradient_WN) / workers
        if workers in (2, 4, 8):
            assert torch.equal(update_N, mean_N)
        assert float((update_N - mean_N).abs().max()) <= 1e-7


def permutations(rng, workers):
    if workers <= 5:
        return itertools.permutations(range(workers))
    return (rng.permutation(workers).tolist() for _ in range(6))


def test_who_is_kept_does_not_depend_on_the_order():
    rng, kept, left_out = np.random.default_rng(5), 0, 0
    with np.errstate(invalid="ignore"):
        for workers in [2, 3, 4, 6, 7, 8, 9, 10] * 119 + [5] * 48:
            gram_WW = torch.tensor(gram_of(problem(rng, workers)))
            weighting = AgreementFilter(float(rng.choice([0.5, 0.97, 1.0, rng.uniform(0, 2)])))
            weight_W = weighting(gram_WW)
            kept, left_out = kept + int((weight_W > 0).sum()), left_out + int((weight_W == 0).sum())
            for order in map(list, permutations(rng, workers)):
                assert torch.equal(weighting(gram_WW[order][:, order]), weight_W[order]), (workers, order)
    assert min(kept, left_out) > 1000


def test_workers_at_the_same_distance_leave_together():
    one, other = [1.0, 0.0, 0.0], [0.0, 1.0, 0.0]
    gradient_WN = torch.tensor([one, other, one, other, [-1.0, -1.0, 5.0]])
    for order in itertools.permutations(range(5)):
        weight_W = AgreementFilter(0.7)(gram_of(gradient_WN[list(order)]))
        assert (weight_W > 0).tolist() == [worker < 4 for worker in order]
    opposed_WW = gram_of(torch.tensor([one, other, [-1.0, 0.0, 0.0], [0.0, -1.0, 0.0]]))
    assert AgreementFilter(0.97)(opposed_WW).tolist() == [0, 0, 0, 0]


@pytest.mark.parametrize("outliers", [1, 2, 3])
def test_outliers_that_come_first_do_not_decide(outliers):
    """Where the published order starts with them, it rejects every good worker."""
    gradient_WN = gradients(8, seed=outliers)
    gradient_WN[:outliers] = -3 * gradients(8, seed=outliers)[7]
    assert (AgreementFilter(0.97)(gram_of(gradient_WN)) > 0).tolist() == [worker >= outliers for worker in range(8)]
    one_after_the_other_W = AgreementFilter(0.97, order="sequential")(gram_of(gradient_WN))
    assert (one_after_the_other_W[outliers:] == 0).all()


def test_one_long_gradient_does_not_become_the_sum():
    gradient_WN = gradients(4)
    gradient_WN[2] = 1e6 * gradients(1, seed=9)
    assert (AgreementFilter(0.9)(gram_of(gradient_WN)) > 0).tolist() == [True, True, False, True]


@pytest.mark.parametrize("weighting", [AgreementFilter(), AgreementFilter(order="sequential"), AdaptiveFilter()])
def test_nobody_agrees_and_the_step_is_skipped(weighting):
    assert weighting(torch.eye(5)).tolist() == [0] * 5
    assert weighting(torch.zeros(3, 3)).tolist() == [0] * 3
    assert weighting(torch.tensor([[1.0, math.nan], [math.nan, math.nan]])).tolist() == [0, 0]


@pytest.mark.parametrize(
    "wrap", [lambda one: one, NormAware, Preconditioned, lambda one: Windowed(Preconditioned(one))]
)
def test_the_limit_can_follow_a_schedule(wrap):
    weighting = wrap(AgreementFilter(max_distance=lambda step: 2.0 if step < 100 else 0.5))
    assert weighting(torch.eye(2)).tolist() == [0.5, 0.5]
    assert weighting.at(99)(torch.eye(2)).tolist() == [0.5, 0.5]
    assert weighting.at(100)(torch.eye(2)).tolist() == [0, 0]
    assert (weighting.at(100).window, weighting.at(100).damping) == (weighting.window, weighting.damping)


def test_without_a_schedule_every_step_is_the_same_object():
    weighting = AgreementFilter(0.9, order="sequential")
    assert weighting.at(7) is weighting


def test_a_schedule_that_leaves_the_range_is_told():
    with pytest.raises(ValueError, match=r"from 0 to 2\. Found `3\.0`"):
        AgreementFilter(lambda step: 3.0).at(5)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"order": "first"}, r"`order` should be `any` or `sequential`.* Found `order='first', fusion='mean'`"),
        ({"fusion": "median"}, r"`fusion` should be `mean` or `halving`\. Found .*'median'"),
        ({"fusion": "halving"}, r'depends on the order of workers\. Write: order="sequential"'),
        ({"max_distance": -0.1}, r"`max_distance` should be .* from 0 to 2\. Found `-0\.1`\. 0\.97 is"),
        ({"max_distance": math.nan}, r"Found `nan`"),
        ({"max_distance": 2.01}, r"Found `2\.01`.*2 keeps everybody"),
    ],
)
def test_options_that_cannot_be_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        AgreementFilter(**options)
