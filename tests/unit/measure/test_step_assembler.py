"""Rank 0's book: complete steps in order, and nobody waits for ever."""

import pytest
import torch

from unisono.listen.messages import RankStep
from unisono.measure import step_assembler
from unisono.measure.step_assembler import StepAssembler
from unisono.sketch.wire_format import Directions


@pytest.fixture
def clock(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(step_assembler.time, "monotonic", lambda: now[0])
    return now


@pytest.fixture
def assembler(clock):
    assembler = StepAssembler(3)
    for rank in range(3):
        assembler.register(rank)
    return assembler


def report(assembler, step, *ranks):
    for rank in ranks:
        assembler.add_signal(rank, RankStep(step=step, time=0.0, loss=float(rank)))


def closed(assembler, **options):
    return [
        (all_ranks.step, [signal is not None for signal in all_ranks.signal_W])
        for all_ranks in assembler.complete(True, **options)
    ]


def test_a_step_is_complete_when_all_have_reported(assembler):
    report(assembler, 0, 0, 1)
    assert closed(assembler) == []
    report(assembler, 0, 2)
    assert closed(assembler) == [(0, [True, True, True])]
    assert not assembler.open


def test_steps_come_in_order(assembler):
    report(assembler, 1, 0, 1, 2)
    report(assembler, 0, 0, 1)
    assert closed(assembler) == []
    report(assembler, 0, 2)
    assert [step for step, _ in closed(assembler)] == [0, 1]


def test_a_step_waits_for_its_directions(assembler):
    report(assembler, 0, 0, 1, 2)
    assembler.await_directions(0)
    assert closed(assembler) == []
    assembler.add_directions(0, Directions(torch.ones(3, 4), torch.ones(1, 3, 4)))
    (all_ranks,) = assembler.complete(True)
    assert all_ranks.sketch_WK.shape == (3, 4)


def test_lost_directions_hold_nothing_up(assembler):
    report(assembler, 0, 0, 1, 2)
    assembler.await_directions(0)
    assembler.lose_directions()
    (all_ranks,) = assembler.complete(True)
    assert all_ranks.sketch_WK is None


def test_patience_ends(assembler, clock):
    report(assembler, 0, 0, 2)
    clock[0] = step_assembler.PATIENCE + 1
    (all_ranks,) = assembler.complete(True)
    assert all_ranks.signal_W[1] is None
    assert not all_ranks.plain_mean


def test_a_silent_rank_is_no_longer_waited_for_until_it_speaks(assembler, clock):
    for step in range(3):
        report(assembler, step, 0, 2)
    clock[0] = step_assembler.PATIENCE + 1
    assert len(closed(assembler)) == 3
    assert assembler.silent() == [1]
    report(assembler, 3, 0, 2)
    assert [step for step, _ in closed(assembler)] == [3]
    report(assembler, 4, 0, 1, 2)
    assert assembler.silent() == []
    report(assembler, 5, 0, 2)
    assert [step for step, _ in closed(assembler)] == [4]


def test_reports_that_come_too_late_change_nothing(assembler, clock):
    for step in range(3):
        report(assembler, step, 0, 2)
    clock[0] = step_assembler.PATIENCE + 1
    assert len(closed(assembler)) == 3
    for step in range(3):
        report(assembler, step, 1)
    assert not assembler.open
    assert assembler.silent() == []
    report(assembler, 3, 0, 1, 2)
    assert closed(assembler) == [(3, [True, True, True])]


def test_open_steps_are_bounded(assembler):
    for step in range(step_assembler.MOST_OPEN_STEPS + 10):
        report(assembler, step, 0, 2)
    assert len(closed(assembler)) > 0
    assert len(assembler._open_steps) <= step_assembler.MOST_OPEN_STEPS


def test_everything_is_given_out_at_the_end(assembler):
    report(assembler, 0, 0)
    report(assembler, 1, 1)
    assert [step for step, _ in closed(assembler, everything=True)] == [0, 1]


def test_directions_that_wait_are_bounded_and_the_oldest_go(assembler, monkeypatch):
    monkeypatch.setattr(step_assembler, "MOST_HELD_BYTES", 100)
    for step in range(3):
        report(assembler, step, 0, 1)
        assembler.await_directions(step)
        assembler.add_directions(step, Directions(torch.zeros(3, 15, dtype=torch.int8), None))
    report(assembler, 0, 2)
    report(assembler, 1, 2)
    report(assembler, 2, 2)
    assert [all_ranks.sketch_WK is not None for all_ranks in assembler.complete(True)] == [False, True, True]
