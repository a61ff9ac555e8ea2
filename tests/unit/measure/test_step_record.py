"""Measures of hand-made roll calls."""

import math
from dataclasses import replace

import pytest
import torch

from unisono.common.layer_groups import MOST_GROUPS
from unisono.common.limits import ALL_PAIRS_UP_TO, MATRIX_IN_BURSTS_UP_TO
from unisono.listen.messages import AllRanksStep, RankStep
from unisono.measure import agreement as consistency
from unisono.measure.step_record import Memory, measure
from unisono.records import to_line
from unisono.records.runfile.lines import LINE_LIMIT


def signal(loss=1.0, step=0, **values):
    return RankStep(step=step, time=10.0, loss=loss, seconds=1.0, cost=0.01, **values)


def heard(gradient, mean=None, **values):
    share = None if mean is None else float(mean.square().sum())
    return signal(heard=True, squared_norm_G=(float(gradient.square().sum()),), reduced_share=share, **values)


def all_ranks(gradient_WN, with_sketch=True, **values):
    mean = gradient_WN.mean(0)
    shares = [mean if rank == 0 else torch.zeros(1) for rank in range(len(gradient_WN))]
    signals = tuple(heard(row, share, **values) for row, share in zip(gradient_WN, shares, strict=True))
    sketch_WK = gradient_WN if with_sketch else None
    return AllRanksStep(0, signals, sketch_WK, None if sketch_WK is None else sketch_WK[None])


def measured(call, memory=None):
    return measure(call, memory or Memory(), attempt=1)


def test_loss_dispersion_is_the_population_deviation():
    record = measured(AllRanksStep(0, (signal(1.0), signal(3.0))))
    assert (record.loss_mean, record.loss_std, record.loss_range) == (2.0, 1.0, 2.0)
    assert not record.heard


def test_a_silent_rank_is_none_and_the_others_count():
    record = measured(AllRanksStep(0, (signal(1.0), None, signal(3.0))))
    assert record.loss_W == (1.0, None, 3.0)
    assert record.loss_mean == 2.0
    assert record.finite_W == (True, None, True)


@pytest.mark.parametrize(
    ("first", "second", "missed"),
    [
        (signal(), signal(), False),
        (signal(due=True), signal(due=True), True),
        (signal(due=True, syncs=0), signal(due=True, syncs=0), False),
        (heard(torch.ones(1), due=True), signal(due=True), False),
    ],
)
def test_a_step_that_should_have_been_heard_and_was_not_is_missed(first, second, missed):
    """A step whose gradients nobody averages has none that could be heard; what one worker heard is there to see."""
    assert measured(AllRanksStep(0, (first, second))).missed is missed


def test_a_nan_loss_makes_the_statistics_nan():
    record = measured(AllRanksStep(0, (signal(1.0), signal(math.nan))))
    assert math.isnan(record.loss_mean)
    assert math.isnan(record.loss_std)
    assert math.isnan(record.loss_range)


def test_identical_gradients_are_worth_one_worker():
    record = measured(all_ranks(torch.randn(1, 4096).repeat(4, 1)))
    assert record.cos_mean == pytest.approx(1, abs=1e-6)
    assert record.noise_scale == pytest.approx(0, abs=1e-5)
    assert record.effective_workers == pytest.approx(1, abs=1e-5)
    assert record.grad_norm_cv == pytest.approx(0, abs=1e-6)


def test_orthogonal_gradients_are_worth_all_workers():
    record = measured(all_ranks(torch.eye(4, 4096)))
    assert record.cos_mean == pytest.approx(0, abs=1e-6)
    assert record.effective_workers == pytest.approx(4)
    assert record.cos_expected == pytest.approx(0)
    assert record.noise_scale == math.inf


def test_a_worker_with_nan_is_silent_and_the_others_are_compared():
    gradient_WN = torch.randn(3, 4096)
    gradient_WN[1] = math.nan
    record = measured(all_ranks(gradient_WN))
    assert math.isnan(record.norm_W[1])
    assert record.cos_W[1] is None
    assert record.cos_W[0] is not None
    assert record.grad_norm is None
    assert record.window_steps is None


def test_a_worker_without_gradient_has_no_direction():
    gradient_WN = torch.randn(3, 4096)
    gradient_WN[2] = 0
    record = measured(all_ranks(gradient_WN))
    assert record.norm_W[2] == 0
    assert record.cos_W[2] is None


def test_a_reduction_that_is_no_mean_is_noticed():
    gradient_WN = torch.randn(2, 4096)
    call = all_ranks(gradient_WN)
    summed = tuple(heard(row, gradient_WN.sum(0)) for row in gradient_WN)
    assert measured(AllRanksStep(0, summed, call.sketch_WK)).cos_weighted is None
    assert measured(call).cos_weighted is not None


def test_directions_add_up_in_a_window_and_start_anew_in_the_next():
    torch.manual_seed(0)
    common, memory = torch.randn(4096), Memory()
    for step in range(8):
        gradient_WN = 0.3 * common + torch.randn(4, 4096)
        gradient_WN[2] = -gradient_WN[2]
        record = measured(all_ranks(gradient_WN, window=0), memory)
        assert record.window_steps == step + 1
    assert record.window_cos_W[2] < -0.3
    assert min(record.window_cos_W[rank] for rank in (0, 1, 3)) > 0.1
    record = measured(all_ranks(torch.randn(4, 4096), window=64), memory)
    assert (record.window_start, record.window_steps) == (64, 1)


def test_old_large_gradients_do_not_outweigh_new_small_ones():
    torch.manual_seed(0)
    memory, common = Memory(), torch.randn(4096)
    for _ in range(60):
        measured(all_ranks(1e3 * (common + torch.randn(4, 4096))), memory)
    for _ in range(300):
        record = measured(all_ranks(1e-3 * torch.randn(4, 4096)), memory)
    assert record.cos_expected < 0.05


def test_listening_cost_is_the_share_of_all_steps_so_far():
    memory = Memory()
    measured(AllRanksStep(0, (signal(), signal())), memory)
    assert measured(AllRanksStep(1, (signal(), None)), memory).listening_cost == pytest.approx(0.01)


def test_large_worlds_store_no_matrix_outside_bursts():
    call = all_ranks(torch.randn(9, 2048))
    assert measured(call).cos_WW == ()
    assert len(measure(call, Memory(), 1, burst=True).cos_WW) == 9
    assert len(measured(call).norm_G) == 1


def test_in_the_largest_world_with_matrices_a_record_fits_into_the_run_file():
    call = all_ranks(torch.randn(MATRIX_IN_BURSTS_UP_TO, 4096))
    signals = tuple(replace(one, squared_norm_G=one.squared_norm_G * MOST_GROUPS) for one in call.signal_W)
    call = AllRanksStep(0, signals, call.sketch_WK, call.sketch_WK.expand(MOST_GROUPS, -1, -1))
    record = measure(call, Memory(), 1, burst=True)
    assert len(record.cos_GW) == MOST_GROUPS
    assert len(to_line(record)) < LINE_LIMIT
    larger = all_ranks(torch.randn(MATRIX_IN_BURSTS_UP_TO + 1, 4096))
    assert measure(larger, Memory(), 1, burst=True).cos_WW == ()


def test_above_64_workers_there_are_no_pairs():
    call = all_ranks(torch.randn(ALL_PAIRS_UP_TO + 1, 2048))
    record = measure(call, Memory(), 1, burst=True)
    assert (record.cos_WW, record.cos_min) == ((), None)
    assert len(record.cos_W) == len(record.window_cos_W) == ALL_PAIRS_UP_TO + 1
    assert len(record.norm_GW) == len(record.cos_GW) == 1
    assert record.cos_mean == pytest.approx(record.cos_weighted, abs=1e-3)


@pytest.mark.parametrize("known", [True, False], ids=["mean known", "mean unknown"])
def test_a_crowd_is_measured_as_few_are(monkeypatch, known):
    torch.manual_seed(0)
    common, few, many = torch.randn(4096), Memory(), Memory()
    for _ in range(3):
        gradient_WN = 0.4 * common + torch.randn(40, 4096)
        gradient_WN[7] = -gradient_WN[7]
        call = replace(all_ranks(gradient_WN), plain_mean=known)
        expected = measure(call, few, 1, burst=True)
        with monkeypatch.context() as patch:
            patch.setattr(consistency, "ALL_PAIRS_UP_TO", 39)
            record = measure(call, many, 1, burst=True)
    for name in ("cos_W", "window_cos_W"):
        assert getattr(record, name) == pytest.approx(getattr(expected, name), abs=1e-5)
    assert record.cos_GW[0] == pytest.approx(expected.cos_GW[0], abs=1e-5)
    for name in ("cos_mean", "grad_norm", "cos_expected", "window_steps", "cos_weighted"):
        assert getattr(record, name) == pytest.approx(getattr(expected, name), abs=1e-5)


def test_in_a_crowd_a_worker_with_nan_is_silent_and_the_others_are_compared():
    gradient_WN = torch.randn(70, 2048)
    gradient_WN[1] = math.nan
    record = measured(all_ranks(gradient_WN))
    assert record.cos_W[1] is None
    assert None not in (*record.cos_W[:1], *record.cos_W[2:])
    assert (record.grad_norm, record.window_steps) == (None, None)


@pytest.mark.parametrize("workers", [3, 70])
def test_sketches_may_come_as_whole_numbers(workers):
    step_WK = torch.randint(-127, 128, (workers, 1024), dtype=torch.int8)
    call = all_ranks(0.5 * step_WK)
    travelled = replace(
        call,
        sketch_WK=step_WK,
        sketch_GWK=step_WK[None],
        scale_W=torch.full((workers,), 0.5),
        scale_GW=torch.full((1, workers), 0.5),
    )
    expected, found = (measure(one, Memory(), 1, burst=True) for one in (call, travelled))
    assert found.cos_W == pytest.approx(expected.cos_W, abs=1e-6)
    assert found.cos_GW[0] == pytest.approx(expected.cos_GW[0], abs=1e-6)


def test_matrices_are_kept_less_often_later():
    call, memory = all_ranks(torch.randn(2, 1024)), Memory()
    kept = [bool(measure(call, memory, 1).norm_GW) for _ in range(520)]
    assert all(kept[:500])
    assert sum(kept[500:]) == 5
    assert measure(call, memory, 1, burst=True).norm_GW


def steered(weight_W, distance_W, heard_too=False, **values):
    """A step of all ranks in which the first worker says what steering decided."""
    call = all_ranks(torch.randn(len(weight_W), 64)) if heard_too else AllRanksStep(0, (signal(),) * len(weight_W))
    first = replace(call.signal_W[0], weight_W=tuple(weight_W), distance_W=tuple(distance_W), **values)
    return replace(call, signal_W=(first, *call.signal_W[1:]))


def test_without_steering_nothing_is_said_of_it():
    record = measured(AllRanksStep(0, (signal(), signal())))
    assert (record.kept_workers, record.weight_W, record.distance_W) == (None, (), ())


def test_a_rejected_worker_is_written_down_with_all_distances():
    record = measured(steered((0.5, 0.0, 0.5), (0.2, math.nan, 0.3)))
    assert (record.kept_workers, record.weight_W) == (2, (0.5, 0.0, 0.5))
    assert record.distance_W == (0.2, None, 0.3)


def test_equal_weights_go_without_saying_and_distances_are_kept_at_heard_steps():
    third = float(torch.tensor(1 / 3))
    unheard = measured(steered((third,) * 3, (0.2, 0.1, 0.3)))
    heard_too = measured(steered((third,) * 3, (0.2, 0.1, 0.3), heard_too=True))
    assert (unheard.kept_workers, unheard.weight_W, unheard.distance_W) == (3, (), ())
    assert (heard_too.kept_workers, heard_too.weight_W, heard_too.distance_W) == (3, (), (0.2, 0.1, 0.3))


def test_equal_weights_that_make_no_mean_are_written_down():
    assert measured(steered((1.0, 1.0), (0.2, 0.2))).weight_W == (1.0, 1.0)


def test_a_step_that_steering_skips_keeps_nobody():
    record = measured(steered((0.0, 0.0), (1.7, 1.7), skipped=True))
    assert (record.kept_workers, record.weight_W, record.distance_W) == (0, (), (1.7, 1.7))
    assert (record.skipped, record.skipped_steps) == (True, 1)


@pytest.mark.parametrize(("heard_too", "rejects", "kept"), [(True, True, 65), (True, False, 0), (False, True, 0)])
def test_in_large_worlds_little_is_kept_of_each_worker(heard_too, rejects, kept):
    weight_W = (0.0, *(1 / 64,) * 64) if rejects else (0.5, *(0.5 / 64,) * 64)
    record = measured(steered(weight_W, (0.1,) * 65, heard_too=heard_too))
    assert record.kept_workers == 65 - rejects
    assert (len(record.weight_W), len(record.distance_W)) == (kept, kept)


def test_a_steered_gradient_is_not_taken_for_the_mean():
    call = steered((0.5, 0.5, 0.0), (0.5, 0.5, 1.2), heard_too=True)
    assert measured(call).cos_weighted is None
    plain = measured(all_ranks(call.sketch_WK))
    assert plain.cos_weighted is not None
    assert measured(call).grad_norm == pytest.approx(plain.grad_norm, rel=0.1)
