"""Rank 0's book: complete steps in order, and nobody waits for ever."""

import pytest
import torch

from unisono.listen.messages import RankStep
from unisono.measure import step_assembler as rollbook
from unisono.measure.step_assembler import StepAssembler
from unisono.sketch.wire_format import Directions


@pytest.fixture
def clock(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(rollbook.time, "monotonic", lambda: now[0])
    return now


@pytest.fixture
def book(clock):
    book = StepAssembler(3)
    for rank in range(3):
        book.greet(rank)
    return book


def report(book, step, *ranks):
    for rank in ranks:
        book.add_signal(rank, RankStep(step=step, time=0.0, loss=float(rank)))


def closed(book, **options):
    return [(roll.step, [signal is not None for signal in roll.signal_W]) for roll in book.complete(True, **options)]


def test_a_step_is_complete_when_all_have_reported(book):
    report(book, 0, 0, 1)
    assert closed(book) == []
    report(book, 0, 2)
    assert closed(book) == [(0, [True, True, True])]
    assert not book.open


def test_steps_come_in_order(book):
    report(book, 1, 0, 1, 2)
    report(book, 0, 0, 1)
    assert closed(book) == []
    report(book, 0, 2)
    assert [step for step, _ in closed(book)] == [0, 1]


def test_a_step_waits_for_its_directions(book):
    report(book, 0, 0, 1, 2)
    book.await_directions(0)
    assert closed(book) == []
    book.add_directions(0, Directions(torch.ones(3, 4), torch.ones(1, 3, 4)))
    (roll,) = book.complete(True)
    assert roll.sketch_WK.shape == (3, 4)


def test_lost_directions_hold_nothing_up(book):
    report(book, 0, 0, 1, 2)
    book.await_directions(0)
    book.lose_directions()
    (roll,) = book.complete(True)
    assert roll.sketch_WK is None


def test_patience_ends(book, clock):
    report(book, 0, 0, 2)
    clock[0] = rollbook.PATIENCE + 1
    (roll,) = book.complete(True)
    assert roll.signal_W[1] is None
    assert not roll.plain_mean


def test_a_silent_rank_is_no_longer_waited_for_until_it_speaks(book, clock):
    for step in range(3):
        report(book, step, 0, 2)
    clock[0] = rollbook.PATIENCE + 1
    assert len(closed(book)) == 3
    assert book.silent() == [1]
    report(book, 3, 0, 2)
    assert [step for step, _ in closed(book)] == [3]
    report(book, 4, 0, 1, 2)
    assert book.silent() == []
    report(book, 5, 0, 2)
    assert [step for step, _ in closed(book)] == [4]


def test_reports_that_come_too_late_change_nothing(book, clock):
    for step in range(3):
        report(book, step, 0, 2)
    clock[0] = rollbook.PATIENCE + 1
    assert len(closed(book)) == 3
    for step in range(3):
        report(book, step, 1)
    assert not book.open
    assert book.silent() == []
    report(book, 3, 0, 1, 2)
    assert closed(book) == [(3, [True, True, True])]


def test_open_steps_are_bounded(book):
    for step in range(rollbook.MOST_OPEN_STEPS + 10):
        report(book, step, 0, 2)
    assert len(closed(book)) > 0
    assert len(book._pages) <= rollbook.MOST_OPEN_STEPS


def test_everything_is_given_out_at_the_end(book):
    report(book, 0, 0)
    report(book, 1, 1)
    assert [step for step, _ in closed(book, everything=True)] == [0, 1]


def test_directions_that_wait_are_bounded_and_the_oldest_go(book, monkeypatch):
    monkeypatch.setattr(rollbook, "MOST_HELD_BYTES", 100)
    for step in range(3):
        report(book, step, 0, 1)
        book.await_directions(step)
        book.add_directions(step, Directions(torch.zeros(3, 15, dtype=torch.int8), None))
    report(book, 0, 2)
    report(book, 1, 2)
    report(book, 2, 2)
    assert [roll.sketch_WK is not None for roll in book.complete(True)] == [False, True, True]
