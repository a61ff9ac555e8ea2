"""Many workers by sums, against all pairs and against plain vectors.

Suffixes give shapes: W = workers, N = elements, K = sketch length.
"""

import math

import pytest
import torch

from unisono.sketch import gram, many_workers, quantise
from unisono.sketch.many_workers import (
    ManyWorkers,
    SummedDirections,
    leave_one_out,
    leave_one_out_of,
    mean_pairwise,
    shift_to_mean,
)

EVERYBODY = torch.ones(64, dtype=torch.bool)


def workers(shared=0.3, spread=0.3, count=64, elements=4_096):
    generator = torch.Generator().manual_seed(count)
    own_WN = torch.randn(count, elements, generator=generator, dtype=torch.float64)
    length_W = (spread * torch.randn(count, 1, generator=generator, dtype=torch.float64)).exp()
    return (own_WN + shared * torch.randn(elements, generator=generator, dtype=torch.float64)) * length_W


def count_sketch(gradient_WN, length, seed):
    generator = torch.Generator().manual_seed(seed)
    bucket_N = torch.randint(length, gradient_WN.shape[1:], generator=generator)
    sign_N = torch.randint(2, gradient_WN.shape[1:], generator=generator) * 2 - 1
    return torch.zeros(len(gradient_WN), length, dtype=torch.float64).index_add_(1, bucket_N, gradient_WN * sign_N)


def looked_at(gradient_WN, sketch_WK=None, mean=True, window=None):
    """What is found in the sketches as they travel."""
    square_W = gradient_WN.square().sum(1)
    step_WK, scale_W = quantise((gradient_WN if sketch_WK is None else sketch_WK).float())
    found = ManyWorkers(step_WK, square_W, scale_W.isfinite()).look(window)
    return shift_to_mean(found, float(gradient_WN.mean(0).square().sum())) if mean else found


def by_pairs(gradient_WN, sketch_WK, mean=True):
    step_WK, scale_W = quantise(sketch_WK.float())
    gram_WW = gram.likeliest(gram.gram(step_WK * scale_W[:, None]), gradient_WN.square().sum(1))
    return gram.shift_to_mean(gram_WW, gradient_WN.mean(0).square().sum()) if mean else gram_WW


@pytest.mark.parametrize("mean", [True, False], ids=["mean known", "mean unknown"])
@pytest.mark.parametrize("shared", [0.0, 0.3, 1.0, 4.0])
def test_sums_say_what_pairs_say(shared, mean):
    """Up to less than the error of either, which is one over the root of the sketch's length."""
    gradient_WN = workers(shared)
    sketch_WK = count_sketch(gradient_WN, 2_048, seed=1)
    found, gram_WW = looked_at(gradient_WN, sketch_WK, mean), by_pairs(gradient_WN, sketch_WK, mean)
    assert (leave_one_out(found.gradients) - gram.leave_one_out(gram_WW)).abs().max() < 1 / math.sqrt(2_048)
    assert abs(mean_pairwise(found) - gram.mean_pairwise(gram_WW)) < (3e-3 if mean else 1e-2)


def test_sums_are_about_as_accurate_as_pairs():
    gradient_WN = workers()
    exact_W, errors = gram.leave_one_out(gram.gram(gradient_WN)), {"sums": [], "pairs": []}
    for seed in range(4):
        sketch_WK = count_sketch(gradient_WN, 1_024, seed)
        errors["sums"].append(leave_one_out(looked_at(gradient_WN, sketch_WK).gradients) - exact_W)
        errors["pairs"].append(gram.leave_one_out(by_pairs(gradient_WN, sketch_WK)) - exact_W)
    rmse = {name: float(torch.stack(error).square().mean().sqrt()) for name, error in errors.items()}
    assert rmse["sums"] < 1.05 * rmse["pairs"] < 1.05 / math.sqrt(1_024)


def test_of_whole_gradients_only_rounding_is_missing():
    gradient_WN = workers()
    found, gram_WW = looked_at(gradient_WN), gram.gram(gradient_WN)
    torch.testing.assert_close(leave_one_out(found.gradients), gram.leave_one_out(gram_WW), rtol=0, atol=1e-3)
    torch.testing.assert_close(mean_pairwise(found), gram.mean_pairwise(gram_WW), rtol=0, atol=1e-5)
    torch.testing.assert_close(leave_one_out_of(gradient_WN), gram.leave_one_out(gram_WW))


@pytest.mark.parametrize("size", [1e-30, 1e25])
def test_the_size_of_gradients_does_not_matter(size):
    gradient_WN = workers()
    usual, other = (
        leave_one_out(looked_at(gradient_WN).gradients),
        leave_one_out(looked_at(size * gradient_WN).gradients),
    )
    torch.testing.assert_close(other, usual, rtol=0, atol=1e-5)


@pytest.mark.parametrize("poison", [0.0, math.nan])
def test_silent_workers_do_not_spoil_others(poison):
    gradient_WN = workers()
    gradient_WN[5] = poison
    heard_WN = torch.cat([gradient_WN[:5], gradient_WN[6:]])
    found = looked_at(gradient_WN, mean=False)
    cos_W = leave_one_out(found.gradients)
    assert cos_W[5].isnan()
    others = looked_at(heard_WN, mean=False)
    torch.testing.assert_close(torch.cat([cos_W[:5], cos_W[6:]]), leave_one_out(others.gradients), rtol=0, atol=1e-6)
    torch.testing.assert_close(mean_pairwise(found), mean_pairwise(others), rtol=0, atol=1e-6)


def test_sketches_that_were_not_sent_count_for_nothing():
    gradient_WN = workers()
    square_W, sent_W = gradient_WN.square().sum(1), EVERYBODY.clone()
    sent_W[7] = False
    step_WK, _ = quantise(gradient_WN.float())
    step_WK[7] = 127
    found = ManyWorkers(step_WK, square_W, sent_W).look(None)
    step_WK[7] = 0
    expected = ManyWorkers(step_WK, square_W, sent_W).look(None)
    cos_W = leave_one_out(found.gradients)
    assert cos_W[7].isnan()
    torch.testing.assert_close(cos_W, leave_one_out(expected.gradients), equal_nan=True)
    torch.testing.assert_close(mean_pairwise(found), mean_pairwise(expected))


def test_one_loud_worker_does_not_hide_where_the_others_point():
    gradient_WN = workers()
    gradient_WN[3] *= 500
    exact_W = gram.leave_one_out(gram.gram(gradient_WN))
    torch.testing.assert_close(leave_one_out(looked_at(gradient_WN).gradients), exact_W, rtol=0, atol=3e-3)


def test_others_that_are_lost_in_rounding_are_not_known():
    gradient_WN = workers()
    gradient_WN[3] *= 1e4
    assert leave_one_out(looked_at(gradient_WN).gradients)[3].isnan()


def test_copies_agree_and_the_opposite_does_not():
    gradient_WN = workers(count=1).repeat(64, 1)
    gradient_WN[9] *= -1
    cos_W = leave_one_out(looked_at(gradient_WN).gradients)
    assert cos_W[9] == pytest.approx(-1, abs=1e-4)
    assert cos_W[8] == pytest.approx(1, abs=1e-4)


def test_a_window_sums_unit_directions():
    window, unit_WN = SummedDirections.none(64, 4_096), torch.zeros(64, 4_096, dtype=torch.float64)
    for shared in (0.1, 0.5, 0.2):
        gradient_WN = workers(shared)
        found = looked_at(gradient_WN, window=window)
        unit_WN += gradient_WN / gradient_WN.norm(dim=1, keepdim=True)
    assert found.window is not None
    expected_W = gram.leave_one_out(gram.gram(unit_WN))
    torch.testing.assert_close(leave_one_out(found.window), expected_W, rtol=0, atol=1e-3)


def test_blocks_of_any_size_give_the_same(monkeypatch):
    gradient_WN = workers()
    whole = leave_one_out(looked_at(gradient_WN, window=SummedDirections.none(64, 4_096)).gradients)
    monkeypatch.setattr(many_workers, "BLOCK", 7 * 4_096)
    found = looked_at(gradient_WN, window=SummedDirections.none(64, 4_096))
    torch.testing.assert_close(leave_one_out(found.gradients), whole, rtol=0, atol=1e-6)


def test_nobody_and_one_worker_know_nothing():
    for count in (0, 1):
        gradient_WN = workers()
        gradient_WN[count:] = 0
        found = looked_at(gradient_WN, mean=False)
        assert leave_one_out(found.gradients).isnan().all()
        assert mean_pairwise(found).isnan()
