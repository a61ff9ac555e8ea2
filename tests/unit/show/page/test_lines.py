"""Time lines in bounded memory: nothing that stood out is lost, whatever the length of the run."""

from dataclasses import replace

import numpy as np
import pytest

from unisono.records import StepRecord
from unisono.show.page.lines import MOST
from unisono.show.page.timeline import Timeline


def record(step, attempt=1, **fields):
    return StepRecord(attempt=attempt, step=step, time=float(step), **fields)


def losses(values, attempt=1, first=0, workers=2):
    for step, value in enumerate(values, start=first):
        yield record(step, attempt, loss_mean=value, loss_W=(value,) * workers)


def timeline(records):
    found = Timeline()
    for one in records:
        found.see(one)
    return found


def test_a_short_run_is_kept_step_by_step():
    line = timeline(losses([3.0, 2.0, 1.0])).line("loss")
    assert line.step_T.tolist() == [0, 1, 2]
    assert line.mean_T.tolist() == [3, 2, 1]


@pytest.mark.parametrize("count", [MOST, MOST + 1, 30_000])
def test_the_number_of_stretches_is_bounded_and_they_cover_the_run(count):
    line = timeline(losses(np.ones(count).tolist())).line("loss")
    assert MOST / 2 <= len(line.step_T) <= MOST
    assert line.step_T[0] < count / 200
    assert line.step_T[-1] > count * 0.99 - 2


def test_one_spike_in_thirty_thousand_steps_is_kept():
    values = np.ones(30_000)
    values[17_777] = 50.0
    line = timeline(losses(values.tolist())).line("loss")
    place = int(line.high_T.argmax())
    assert line.high_T[place] == 50
    assert abs(line.step_T[place] - 17_777) <= 128


def test_a_dip_and_a_spike_survive_every_doubling():
    values = np.ones(10_000)
    values[3], values[4] = -7.0, 9.0
    line = timeline(losses(values.tolist())).line("loss")
    assert (line.low_T[0], line.high_T[0]) == (-7, 9)
    assert (line.low_T[1:] == 1).all()


def test_the_norm_is_drawn_also_where_only_clipping_knows_it():
    records = [
        record(0, grad_norm=2.0, norm_W=(2.5, 3.0), clip_norm=2.0),
        *(record(n, clip_norm=9.0 * n) for n in (1, 2)),
    ]
    records = [replace(one, loss_W=(1.0, 1.0)) for one in records]
    line = timeline(records).line("norm")
    assert line.mean_T.tolist() == [2, 9, 18]
    assert (line.low_T.tolist(), line.high_T.tolist()) == ([2.5, 9, 18], [3, 9, 18])
    long = timeline(replace(record(n, clip_norm=9.0 if n == 700 else 1.0), loss_W=(1.0, 1.0)) for n in range(2_000))
    assert long.line("norm").high_T.max() == 9


def test_what_a_restart_replaced_is_gone_also_from_the_stretch_that_it_cuts():
    values = np.ones(2_000)
    values[1_003] = 99.0
    line = timeline([*losses(values.tolist()), *losses([1.0] * 50, attempt=2, first=1_002)]).line("loss")
    assert line.high_T.max() == 1


def test_a_record_that_comes_too_late_is_passed_over():
    line = timeline([*losses([1.0, 2.0], first=10), record(3, loss_mean=9.0, loss_W=(9.0, 9.0))]).line("loss")
    assert line.step_T.tolist() == [10, 11]


def test_means_are_those_of_all_steps():
    values = np.random.default_rng(0).random(10_000)
    line = timeline(losses(values.tolist())).line("loss")
    assert line.mean_T[0] == pytest.approx(values[:32].mean())


def test_the_band_holds_the_smallest_and_the_largest_worker():
    line = timeline([record(0, loss_mean=2.0, loss_W=(1.0, 2.0, 3.0))]).line("loss")
    assert (line.low_T[0], line.mean_T[0], line.high_T[0]) == (1, 2, 3)


def test_what_is_not_known_or_not_finite_is_left_out():
    records = [record(0, loss_mean=float("nan"), loss_W=(1.0, float("inf"))), record(1, loss_W=(None, None))]
    assert timeline(records).line("loss").is_empty


def test_steps_without_a_finite_number_are_counted_and_leave_a_gap():
    nan = float("nan")
    line = timeline([*losses([1.0, 2.0]), *losses([nan, nan], first=2), *losses([3.0], first=4)]).line("loss")
    assert line.broken == 2
    assert np.isnan(line.mean_T).tolist() == [False, False, True, True, False]
    assert line.finite().step_T.tolist() == [0, 1, 4]


def test_the_norm_of_the_mean_is_no_worker():
    line = timeline([record(0, heard=True, loss_W=(1.0, 1.0), norm_W=(3.0, 4.0), grad_norm=2.0)]).line("norm")
    assert (line.low_T[0], line.mean_T[0], line.high_T[0]) == (3, 2, 4)


def test_a_new_attempt_takes_the_place_of_later_steps():
    first = losses([1.0] * 100)
    line = timeline([*first, *losses([5.0] * 20, attempt=2, first=50)]).line("loss")
    assert line.step_T.tolist() == list(range(70))
    assert line.mean_T[49] == 1
    assert line.mean_T[50] == 5


def test_an_attempt_that_begins_earlier_replaces_everything():
    line = timeline([*losses([1.0] * 10, first=100), *losses([2.0] * 5, attempt=2, first=10)]).line("loss")
    assert line.step_T.tolist() == [10, 11, 12, 13, 14]


def test_times_per_step_are_averaged_over_workers():
    assert timeline([record(0, loss_W=(1.0, 1.0), step_W=(1.0, 3.0))]).line("seconds").mean_T.tolist() == [2]
