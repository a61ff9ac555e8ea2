"""Rank by step: who differs stays visible when many steps share a column and many ranks a row."""

import numpy as np
import pytest

from unisono.records import StepRecord
from unisono.show.page.rankmaps import MOST, MOST_ROWS, RankMap
from unisono.show.page.timeline import Timeline


def rank_map(value_NW, first=0):
    found = RankMap(value_NW.shape[1])
    found.restart(first)
    step_N = np.arange(first, first + len(value_NW))
    found.make_room(int(step_N[-1]))
    found.add(step_N, value_NW)
    return found.filled()


def test_a_short_run_is_shown_as_it_was():
    value_NW = np.random.default_rng(0).random((20, 4))
    assert rank_map(value_NW) == pytest.approx(value_NW.T)


def test_the_value_furthest_from_the_others_is_kept():
    value_NW = np.zeros((10 * MOST, 4))
    value_NW[1_234, 2] = -0.5
    value_RT = rank_map(value_NW)
    assert value_RT.shape[1] <= MOST
    assert np.argwhere(value_RT == -0.5)[:, 0].tolist() == [2]
    assert (np.delete(value_RT, 2, axis=0) == 0).all()


def grown(chunks):
    """Values that come in several blocks, so that stretches double over what is there already."""
    found = RankMap(chunks[0].shape[1])
    found.restart(0)
    first = 0
    for value_NW in chunks:
        step_N = np.arange(first, first + len(value_NW))
        found.make_room(int(step_N[-1]))
        found.add(step_N, value_NW)
        first += len(value_NW)
    return found


@pytest.mark.parametrize("place", [100, 101])
def test_it_is_kept_also_when_the_stretches_double_later(place):
    early = np.zeros((MOST, 4))
    early[place, 3] = 7.0
    found = grown([early, *[np.zeros((MOST, 4))] * 9])
    assert found.stretches.length == 16
    assert np.argwhere(found.filled() == 7).tolist() == [[3, place // 16]]


def test_a_restart_forgets_what_came_later():
    found = grown([np.ones((MOST, 2)), np.full((MOST, 2), 5.0)])
    found.restart(301)
    assert found.stretches.count == 150
    found.make_room(305)
    found.add(np.array([305]), np.array([[9.0, 2.0]]))
    assert found.filled()[0, 152] == 9
    assert found.filled()[0, 140] == 5
    assert (found.filled()[0, 150:152] == 5).all()


def test_a_single_odd_rank_of_a_thousand_stays_visible_in_its_row():
    value_NW = np.zeros((50, 1_024))
    value_NW[:, 777] = 1.0
    value_RT = rank_map(value_NW)
    assert len(value_RT) <= MOST_ROWS
    assert set(np.argwhere(value_RT == 1)[:, 0]) == {777 // 4}


def test_ranks_that_do_not_fill_the_last_row():
    value_NW = np.zeros((3, MOST_ROWS + 1))
    value_NW[:, -1] = 1.0
    assert (rank_map(value_NW)[-1] == 1).all()


def test_between_readings_the_last_one_stands():
    found = RankMap(2)
    found.restart(0)
    found.make_room(9)
    found.add(np.array([0, 5]), np.array([[1.0, 2.0], [3.0, 4.0]]))
    assert found.filled()[0, :10].tolist() == [1, 1, 1, 1, 1, 3, 3, 3, 3, 3]


def step(number, **fields):
    return StepRecord(attempt=1, step=number, time=0.0, **fields)


def test_a_measured_nan_stands_out_and_an_unknown_value_does_not():
    found = Timeline()
    nan = float("nan")
    found.see(step(0, loss_W=(1.0, nan, None), finite_W=(True, False, None)))
    value_R = found.map("loss").filled()[:, 0]
    assert value_R[1] == np.inf
    assert np.isnan(value_R[2])


def test_when_no_worker_is_finite_any_more_all_stand_out():
    found = Timeline()
    nan = float("nan")
    found.see(step(0, loss_W=(1.0, 2.0), finite_W=(True, True)))
    found.see(step(1, heard=True, loss_W=(nan, nan), norm_W=(nan, nan), finite_W=(False, False)))
    assert (found.map("loss").filled()[:, 1] == np.inf).all()
    assert (found.map("norm").filled()[:, -1] == np.inf).all()


def test_norms_are_told_in_doublings_from_the_median():
    found = Timeline()
    found.see(step(0, heard=True, loss_W=(1.0,) * 3, norm_W=(1.0, 1.0, 4.0)))
    assert found.map("norm").filled()[:, 0].tolist() == [0, 0, 2]


def test_sums_of_few_readings_are_left_out():
    found = Timeline()
    for number in range(10):
        fields = {"window_start": 0, "window_steps": number + 1, "window_cos_W": (float(number), 0.0)}
        found.see(step(number, heard=True, loss_W=(1.0, 1.0), norm_W=(1.0, 1.0), **fields))
    assert found.map("window").filled()[0, -1] == 9
    assert np.isnan(found.map("window").filled()[0, :7]).all()
    assert found.map("window").filled()[0, 7] == 7


def test_directions_that_are_no_longer_known_do_not_keep_their_colour():
    found = Timeline()
    for number in range(20):
        known = {"window_start": 0, "window_steps": number + 1, "window_cos_W": (0.5, 0.5), "cos_W": (0.5, 0.5)}
        unknown = {"cos_W": (None, None)}
        fields = known if number < 15 else unknown
        found.see(step(number, heard=True, loss_W=(1.0, 1.0), norm_W=(1.0, 1.0), **fields))
    for name in ("cos", "window"):
        value_RT = found.map(name).filled()
        assert (value_RT[:, 14] == 0.5).all()
        assert np.isnan(value_RT[:, 15:]).all(), name


def test_when_the_number_of_workers_changes_the_map_begins_anew():
    found = Timeline()
    for number, workers in ((0, 4), (1, 4), (2, 2), (3, 2)):
        found.see(step(number, loss_W=(1.0,) * workers))
    assert found.map("loss").filled().shape == (2, 2)
    assert found.map("loss").stretches.origin == 2
