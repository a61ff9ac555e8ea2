"""Whose number counts, and where it stands in the run file."""

import pytest

from fleet.clock import Clock
from fleet.listening import FIRST_RANK, Listeners
from unisono.listen.validation import Validation
from unisono.measure import validations
from unisono.measure.validations import PATIENCE, Validations
from unisono.records import StepRecord, ValidationRecord

RANKS = (4, 5, 6)


@pytest.fixture
def clock(monkeypatch):
    return Clock().install(monkeypatch, validations)


@pytest.fixture
def recorded(clock):
    return Validations(RANKS, 2)


def message(step, value):
    return {"kind": "validation", "step": step, "time": 10.0 + step, "value": value}


def told(recorded, written, everything=False):
    return [(one.step, one.rank, one.validation) for one in recorded.complete(written, everything)]


def test_the_first_worker_is_believed_at_once(recorded):
    recorded.add(2, message(5, 0.2))
    recorded.add(0, message(5, 0.5))
    assert list(recorded.complete(5)) == [ValidationRecord(2, 5, 15.0, 4, 0.5)]
    recorded.add(1, message(5, 0.4))
    assert told(recorded, 9) == []


def test_it_waits_for_its_step(recorded, clock):
    recorded.add(0, message(5, 0.5))
    assert told(recorded, 4) == []
    assert told(recorded, 5) == [(5, 4, 0.5)]
    recorded.add(0, message(9, 0.6))
    assert told(recorded, 5) == []
    clock.advance(PATIENCE + 0.1)
    assert told(recorded, 5) == [(9, 4, 0.6)]


def test_another_worker_counts_where_the_first_says_nothing(recorded, clock):
    recorded.add(2, message(5, 0.2))
    recorded.add(1, message(5, 0.4))
    assert told(recorded, 7) == []
    clock.advance(PATIENCE + 0.1)
    assert told(recorded, 7) == [(5, 5, 0.4)]


def test_once_the_first_has_spoken_the_others_are_not_heard(recorded, clock):
    recorded.add(0, message(5, 0.5))
    assert told(recorded, 7) == [(5, 4, 0.5)]
    recorded.add(1, message(7, 0.1))
    clock.advance(PATIENCE + 0.1)
    recorded.add(0, message(9, 0.6))
    assert told(recorded, 9) == [(9, 4, 0.6)]


def test_at_the_end_nothing_is_waited_for(recorded):
    recorded.add(1, message(5, 0.4))
    recorded.add(1, message(3, 0.3))
    assert told(recorded, 2, everything=True) == [(3, 5, 0.3), (5, 5, 0.4)]


def test_one_number_a_step(recorded):
    recorded.add(0, message(5, 0.5))
    recorded.add(0, message(5, 0.9))
    assert told(recorded, 5) == [(5, 4, 0.5)]
    recorded.add(0, message(5, 0.9))
    assert told(recorded, 5) == []


def test_from_the_ranks_to_the_file_behind_their_step(monkeypatch):
    fleet = Listeners(3, monkeypatch)
    fleet.turn()
    fleet.submit(0)
    fleet.submit(1, 0, 1)
    for rank in range(3):
        fleet.exchanges[rank].submit_validation(Validation(1, 0.5 + rank))
    fleet.turn()
    assert not any(isinstance(record, ValidationRecord) for record in fleet.records)
    fleet.submit(1, 2)
    fleet.turn()
    *_, last_step, validation = fleet.records
    assert isinstance(last_step, StepRecord)
    assert (validation.step, validation.rank, validation.validation) == (1, FIRST_RANK, 0.5)
    fleet.end()


def test_several_short_epochs_in_one_message_keep_their_places(monkeypatch):
    fleet = Listeners(2, monkeypatch)
    fleet.turn()
    for step in range(6):
        fleet.submit(step)
        if step % 2:
            fleet.exchanges[0].submit_validation(Validation(step, step / 10))
    fleet.turn()
    order = [record.step for record in fleet.records if isinstance(record, StepRecord | ValidationRecord)]
    assert order == [0, 1, 1, 2, 3, 3, 4, 5, 5]
    fleet.end()


def test_what_is_recorded_after_the_last_step_is_in_the_file(monkeypatch):
    fleet = Listeners(2, monkeypatch)
    fleet.turn()
    fleet.submit(0)
    fleet.exchanges[0].submit_validation(Validation(0, 0.5))
    fleet.exchanges[1]._finish()
    fleet.exchanges[0]._finish()
    assert [record.validation for record in fleet.records if isinstance(record, ValidationRecord)] == [0.5]
    fleet.end()
