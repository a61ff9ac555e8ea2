"""Stored matrices: bounded in number and size, spread over the run, the newest always among them."""

from dataclasses import replace
from itertools import pairwise

from unisono.records import StepRecord
from unisono.show.page.snapshots import MOST, MOST_CELLS, MatrixSnapshots, nearest


def matrices(step, attempt=1, workers=2):
    rows = tuple((1.0,) * workers for _ in range(workers))
    return StepRecord(attempt=attempt, step=step, time=0.0, heard=True, cos_WW=rows)


def seen(*records):
    snapshots = MatrixSnapshots()
    for record in records:
        snapshots.see(record)
    return snapshots.all()


def test_steps_without_matrices_are_passed_over():
    assert seen(StepRecord(attempt=1, step=0, time=0.0)) == []


def test_a_few_are_all_kept():
    assert [one.step for one in seen(*map(matrices, range(5)))] == [0, 1, 2, 3, 4]


def test_many_are_thinned_evenly_and_the_newest_stays():
    kept = [one.step for one in seen(*map(matrices, range(1_000)))]
    assert len(kept) <= MOST + 1
    assert kept[0] == 0
    assert kept[-1] == 999
    assert len({later - earlier for earlier, later in pairwise(kept[:-1])}) == 1


def test_large_ones_are_fewer():
    kept = seen(*(matrices(step, workers=200) for step in range(40)))
    assert sum(one.cells for one in kept) <= MOST_CELLS + 40_000


def test_a_new_attempt_takes_the_place_of_later_ones():
    kept = seen(*map(matrices, range(10)), matrices(5, attempt=2))
    assert [one.step for one in kept] == [0, 1, 2, 3, 4, 5]


def test_an_attempt_from_the_beginning_leaves_nothing_behind():
    later = StepRecord(attempt=2, step=0, time=0.0)
    assert seen(*map(matrices, range(10)), later) == []


def test_a_reading_without_directions_does_not_cost_the_others():
    rows = ((1.0, 1.0), (1.0, 1.0))
    full = [replace(matrices(step), norm_GW=rows, cos_GW=rows) for step in range(10)]
    kept = seen(*full, replace(full[0], step=10, cos_WW=(), cos_GW=()))
    assert [one.step for one in kept] == list(range(10))
    assert len({one.shapes for one in kept}) == 1


def test_with_another_number_of_workers_all_begins_anew():
    kept = seen(*map(matrices, range(5)), matrices(5, workers=3), matrices(6, workers=3))
    assert [one.step for one in kept] == [5, 6]


def test_the_reading_at_or_after_a_step_is_chosen():
    kept = seen(*(matrices(step) for step in (0, 10, 20)))
    assert [nearest(kept, step) for step in (0, 1, 10, 15, 99)] == [0, 1, 1, 2, 2]
