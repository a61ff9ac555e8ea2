"""The filter that finds its own limit: a signal that all workers share, noise of their own, and workers gone wrong.

W = workers, N = numbers in a gradient.
"""

import math

import pytest
import torch

from unisono.act.weightings.adaptive import AVERAGED, FIRST, expected_cosine
from unisono.weightings import AdaptiveFilter

ELEMENTS = 3000


class Workers:
    """Gradients of length one in 3,000 dimensions, of which a share is common; worker 0 may be bad."""

    def __init__(self, workers, bad=None, seed=0):
        self.workers, self.bad = workers, bad
        self.generator = torch.Generator().manual_seed(seed)

    def gram(self, common):
        signal_N = self._noise(1)[0]
        gradient_WN = math.sqrt(common) * signal_N + math.sqrt(1 - common) * self._noise(self.workers)
        if self.bad is not None:
            gradient_WN[0] = self.bad(gradient_WN[0], signal_N, self._noise(1)[0])
        return gradient_WN @ gradient_WN.T

    def _noise(self, count):
        return torch.randn(count, ELEMENTS, generator=self.generator) / math.sqrt(ELEMENTS)


def flipped(gradient_N, signal_N, noise_N):
    return -gradient_N


def random(gradient_N, signal_N, noise_N):
    return noise_N


def opposed(gradient_N, signal_N, noise_N):
    return 3 * (0.5 * noise_N - signal_N)


def kept_at(weighting, workers, commons):
    """Of every step and worker, whether it was kept."""
    return torch.stack([weighting(workers.gram(common)) > 0 for common in commons])


@pytest.mark.parametrize("workers", [2, 3, 4, 8])
@pytest.mark.parametrize("common", [0.02, 0.05, 0.2, 0.8])
def test_healthy_workers_are_kept_whatever_they_have_in_common(common, workers):
    kept_TW = kept_at(AdaptiveFilter(), Workers(workers), [common] * 250)
    assert float(kept_TW[AVERAGED:].float().mean()) >= 0.99


@pytest.mark.parametrize("bad", [flipped, random, opposed])
@pytest.mark.parametrize(("common", "workers"), [(0.1, 3), (0.1, 4), (0.1, 8), (0.8, 3), (0.3, 8)])
def test_a_worker_that_is_bad_from_the_start_is_left_out(common, workers, bad):
    kept_TW = kept_at(AdaptiveFilter(), Workers(workers, bad), [common] * 150)[FIRST:]
    assert float(kept_TW[:, 0].float().mean()) <= 0.01
    assert float(kept_TW[:, 1:].float().mean()) >= 0.99


@pytest.mark.parametrize("bad", [flipped, random, opposed])
def test_a_worker_that_turns_bad_is_left_out_at_once(bad):
    weighting = AdaptiveFilter()
    kept_at(weighting, Workers(4), [0.1] * 100)
    kept_TW = kept_at(weighting, Workers(4, bad, seed=1), [0.1] * 100)
    assert not kept_TW[:, 0].any()


@pytest.mark.parametrize("bad", [flipped, random, opposed])
def test_a_bad_worker_does_not_wear_the_filter_down(bad):
    kept_TW = kept_at(AdaptiveFilter(), Workers(4, bad), [0.2] * 1000)
    assert not kept_TW[FIRST:, 0].any()
    assert float(kept_TW[FIRST:, 1:].float().mean()) >= 0.999


def test_one_bad_gradient_kept_by_chance_does_not_let_in_the_next():
    for seed in range(6):
        kept_TW = kept_at(AdaptiveFilter(), Workers(4, random, seed), [0.07] * 200)
        assert float(kept_TW[AVERAGED:, 0].float().mean()) <= 0.06


@pytest.mark.parametrize("workers", [4, 8])
def test_it_follows_a_slow_fall_of_what_is_common(workers):
    commons = [0.5 * 0.04 ** (step / 800) for step in range(800)] + [0.02] * 200
    kept_TW = kept_at(AdaptiveFilter(), Workers(workers), commons)
    assert float(kept_TW[FIRST:].float().mean()) >= 0.98
    kept_TW = kept_at(AdaptiveFilter(), Workers(workers, flipped), commons[:400])
    assert not kept_TW[FIRST:, 0].any()


@pytest.mark.parametrize(("after", "workers"), [(0.1, 4), (0.02, 2), (0.02, 4), (0.02, 8)])
def test_a_sudden_fall_costs_some_steps_and_not_the_run(after, workers):
    weighting = AdaptiveFilter()
    kept_at(weighting, Workers(workers), [0.5] * 100)
    kept_TW = kept_at(weighting, Workers(workers, seed=1), [after] * 300)
    assert not kept_TW[0].any()
    assert float(kept_TW[60:].any(1).float().mean()) >= 0.99
    assert float(kept_TW[200:].float().mean()) >= 0.97


def test_a_start_without_agreement_does_not_last():
    kept_TW = kept_at(AdaptiveFilter(), Workers(8), [0.002] * 200)
    assert float(kept_TW[:FIRST].float().mean()) < 0.5
    assert float(kept_TW[AVERAGED:].float().mean()) >= 0.98


def test_expected_cosine_is_that_of_gradients_with_something_in_common():
    workers, mean = Workers(6), []
    for _ in range(200):
        gram_WW = workers.gram(0.3)
        rest = float(gram_WW[1:, 1:].sum() * gram_WW[0, 0])
        mean.append(float(gram_WW[0, 1:].sum()) / math.sqrt(rest))
    assert sum(mean) / len(mean) == pytest.approx(expected_cosine(0.3, 5), rel=0.01)
    assert (expected_cosine(0.0, 3), expected_cosine(1.0, 3)) == (0.0, 1.0)


def test_a_stricter_share_leaves_out_who_agrees_by_half():
    def half(gradient_N, signal_N, noise_N):
        return gradient_N + 1.5 * noise_N

    for share, kept in ((0.2, True), (0.8, False)):
        weighting = AdaptiveFilter(share)
        kept_at(weighting, Workers(4), [0.5] * 50)
        kept_TW = kept_at(weighting, Workers(4, half, seed=1), [0.5] * 10)
        assert kept_TW.tolist() == [[kept, True, True, True]] * 10


def test_two_filters_do_not_share_what_they_learnt():
    learnt = AdaptiveFilter()
    kept_at(learnt, Workers(4), [0.5] * 20)
    weak_WW = Workers(4, seed=3).gram(0.08)
    assert (learnt(weak_WW) > 0).tolist() == [False] * 4
    assert (AdaptiveFilter()(weak_WW) > 0).all()
    assert AdaptiveFilter() == learnt


@pytest.mark.parametrize("share", [0, 1, -0.5, math.nan])
def test_a_share_that_cannot_be_is_refused(share):
    with pytest.raises(ValueError, match=r"`share` should lie between 0 and 1\. Found `.*`\. Try 0\.5"):
        AdaptiveFilter(share)
