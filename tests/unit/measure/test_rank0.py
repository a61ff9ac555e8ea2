"""Rank 0's part on a fleet: what all ranks say becomes records in order, and nobody is waited for longer than said."""

import math

import pytest

from fleet.listening import FIRST_RANK, Listeners
from unisono.common.schedule import BURST
from unisono.exchange.reconnect import ReconnectingChannel
from unisono.exchange.store import REGISTRATION_PATIENCE
from unisono.exchange.thread import UNASKED
from unisono.measure import rank0
from unisono.measure.adapt_schedule import STEPS_BETWEEN_SUSPICIONS
from unisono.measure.liveness import SILENT_SECONDS
from unisono.measure.step_assembler import PATIENCE, SILENT_AFTER
from unisono.records import FactsRecord, StepRecord

WORLD = 3
ALL = tuple(FIRST_RANK + rank for rank in range(WORLD))


@pytest.fixture
def fleet(monkeypatch):
    fleet = Listeners(WORLD, monkeypatch)
    yield fleet
    fleet.end()


@pytest.fixture
def met(fleet):
    fleet.turn()
    assert len(fleet.met) == 1
    return fleet


def written(fleet):
    return [record.step for record in fleet.steps]


def live(fleet, seconds, *ranks):
    """Time passes, and these ranks get on with nothing but give signs of life."""
    for _ in range(math.ceil(seconds / 0.5)):
        fleet.turn(*ranks, seconds=0.5)


def test_what_all_ranks_say_is_written_down_in_order(met):
    for step in range(5):
        met.submit(step)
    met.turn()
    assert written(met) == list(range(5))
    for record in met.steps:
        assert (record.loss_W, record.loss_mean, record.loss_range) == ((0.0, 1.0, 2.0), 1.0, 2.0)
    assert met.rank0.last_step == 4
    assert met.notes == []


def test_a_step_that_one_rank_has_not_reported_holds_those_after_it(met):
    met.submit(0, 0, 1)
    met.submit(1, 0, 1)
    met.turn()
    assert written(met) == []
    met.submit(0, 2)
    met.turn()
    assert written(met) == [0]
    met.submit(1, 2)
    met.turn()
    assert written(met) == [0, 1]


def test_steps_are_written_in_order_also_where_a_later_one_was_heard_of_first(met):
    met.submit(1, 2)
    met.turn(seconds=0.5)
    assert met.rank0.assembler.open
    for step in range(2):
        met.submit(step, 0, 1)
    met.turn()
    assert written(met) == []
    met.turn(seconds=PATIENCE + 0.1)
    assert written(met) == [0, 1]
    assert [record.loss_W[2] for record in met.steps] == [None, 2.0]


def test_a_step_waits_for_a_rank_exactly_as_long_as_patience_goes(met):
    met.submit(0, 0, 1)
    met.turn(seconds=0)
    begun = met.clock.now
    live(met, PATIENCE)
    assert met.clock.now == begun + PATIENCE
    assert written(met) == []
    met.turn(seconds=0.01)
    assert written(met) == [0]
    assert met.steps[0].loss_W == (0.0, 1.0, None)


def test_who_has_missed_some_steps_in_a_row_is_not_waited_for_until_it_speaks_again(met):
    for step in range(SILENT_AFTER):
        met.submit(step, 0, 1)
    met.turn()
    assert written(met) == []
    met.turn(0, 1, seconds=PATIENCE + 0.1)
    assert written(met) == list(range(SILENT_AFTER))
    met.submit(3, 0, 1)
    met.turn(0, 1)
    assert written(met)[-1] == 3
    met.submit(4)
    met.turn()
    assert met.steps[-1].loss_W == (0.0, 1.0, 2.0)
    met.submit(5, 0, 1)
    met.turn()
    assert written(met)[-1] == 4


def test_a_report_that_comes_too_late_is_counted_as_lost_at_the_end(met):
    met.submit(0, 0, 1)
    met.turn()
    met.turn(0, 1, seconds=PATIENCE + 0.1)
    met.submit(0, 2)
    met.turn()
    assert written(met) == [0]
    finish(met, 2, 1, 0)
    assert met.exchanges[0].lost == 1


def finish(fleet, *ranks):
    for rank in ranks:
        fleet.exchanges[rank]._finish()


def test_a_rank_that_gives_no_sign_of_life_is_missing_and_heard_again_when_it_returns(met):
    met.submit(0)
    met.turn()
    live(met, SILENT_SECONDS, 0, 1)
    assert met.notes == []
    live(met, 1, 0, 1)
    assert met.notes == [("missing", (FIRST_RANK + 2,))]
    live(met, 5, 0, 1)
    assert len(met.notes) == 1
    met.turn(seconds=0.5)
    assert met.notes == [("missing", (FIRST_RANK + 2,)), ("returned", (FIRST_RANK + 2,))]
    assert met.complaints[0] == "ranks (6,) give no sign of life, and nobody gets on with training"


def test_a_silent_rank_while_the_others_train_on_is_unheard(met):
    for step in range(4):
        met.submit(step, 0, 1)
        live(met, 2, 0, 1)
    assert met.notes == [("unheard", (FIRST_RANK + 2,))]


def test_who_has_said_goodbye_is_not_missed(met):
    met.submit(0)
    met.turn()
    finish(met, 2)
    met.turn(0, 1)
    live(met, SILENT_SECONDS + 1, 0, 1)
    assert met.notes == []


def test_nothing_is_written_before_all_have_introduced_themselves_or_patience_has_ended(fleet):
    fleet.submit(0, 0, 1)
    fleet.turn(0, 1)
    begun = fleet.clock.now
    fleet.turn(0, 1, seconds=REGISTRATION_PATIENCE - 1)
    assert (fleet.records, fleet.met) == ([], [])
    fleet.turn(0, 1, seconds=begun + REGISTRATION_PATIENCE - fleet.clock.now + 0.1)
    assert [sorted(greeted) for greeted in fleet.met] == [[0, 1]]
    assert fleet.notes == [("unheard", (FIRST_RANK + 2,))]
    assert "are not heard: call attach on every rank. Going on with ranks [4, 5] alone" in fleet.complaints[0]
    assert written(fleet) == [0]


def test_who_comes_after_that_is_asked_for_once_a_second_and_takes_part(fleet):
    fleet.turn(0, 1)
    fleet.turn(0, 1, seconds=REGISTRATION_PATIENCE + 0.1)
    fleet.turn(0, 1, seconds=0.1)
    fleet.turn(2, seconds=0.1)
    fleet.turn(0, 1, seconds=0.1)
    assert len(fleet.notes) == 1
    fleet.turn(seconds=1.0)
    assert fleet.notes == [("unheard", (FIRST_RANK + 2,)), ("returned", ALL)]
    assert len(fleet.met) == 1
    fleet.submit(0)
    fleet.turn()
    assert fleet.steps[0].loss_W == (0.0, 1.0, 2.0)


def test_all_messages_of_a_rank_that_wait_are_taken_in_one_turn(met):
    for step in range(5):
        met.submit(step, 1, 2)
        met.turn(1, 2)
    met.submit(0, 0)
    met.turn(0)
    assert written(met) == [0]
    assert len(met.rank0.assembler._open_steps) == 4


def test_messages_that_were_overwritten_are_counted(met):
    for step in range(70):
        met.submit(step, 1)
        met.turn(1)
    met.turn(0, 2)
    assert met.exchanges[0].lost > 0


def test_rank_0_looks_rarely_while_nothing_can_be_there(met):
    met.turn(0, seconds=1.1)
    looks = []
    collect = met.exchanges[0].message_store.collect
    met.exchanges[0].message_store.collect = lambda ranks: looks.append(ranks) or collect(ranks)
    for _ in range(8):
        met.turn(0, seconds=UNASKED / 10)
    assert looks == []
    met.turn(0, seconds=UNASKED / 2)
    assert looks == [[0, 1, 2]]
    # A step that waits for somebody is a reason to look.
    met.submit(0, 0)
    met.turn(0, seconds=0.001)
    assert len(looks) > 1
    before = len(looks)
    met.turn(0, seconds=0.001)
    assert len(looks) > before


def test_evidence_is_laid_side_by_side_and_written_before_its_step(met):
    for rank in range(WORLD):
        met.submit(0, rank, facts={"loader": {"workers": "2", "seed": str(rank)}})
    met.turn()
    facts, step = met.records
    assert isinstance(facts, FactsRecord)
    assert isinstance(step, StepRecord)
    assert (facts.same, facts.differ) == ({"workers": "2"}, {"seed": ("0", "1", "2")})


def test_evidence_that_one_rank_does_not_give_waits_for_it_as_long_as_a_step(met):
    met.submit(0, 0, 1, facts={"loader": {"workers": "2"}})
    met.submit(0, 2)
    met.turn()
    assert [type(record) for record in met.records] == [StepRecord]
    met.turn(seconds=PATIENCE + 0.1)
    assert [type(record) for record in met.records] == [StepRecord, FactsRecord]


def test_a_finding_makes_all_ranks_keep_their_steps_and_listen_closely(met):
    met.submit(0)
    met.turn()
    met.diagnosis.found = True
    met.turn()
    met.turn(seconds=1)
    assert sorted(met.saved) == [0, 1, 2]
    bursts = [next(step for step in range(1_000) if one.plan.in_burst(step)) for one in met.exchanges]
    assert len(set(bursts)) == 1
    assert bursts[0] > 0
    assert all(one.plan.in_burst(bursts[0] + BURST - 1) for one in met.exchanges)
    assert not any(one.plan.in_burst(bursts[0] + BURST) for one in met.exchanges)


def test_a_suspicion_is_followed_now_and_then_only(met):
    announced = []
    announce = met.exchanges[0].message_store.announce
    met.exchanges[0].message_store.announce = lambda one: announced.append(one.start) or announce(one)
    met.diagnosis.suspicious = True
    for step in range(STEPS_BETWEEN_SUSPICIONS + 2):
        met.submit(step)
        met.turn()
    assert len(announced) == 2
    assert met.saved == []


def test_a_worker_that_is_not_finite_is_listened_to_closely(met):
    met.submit(0, 0, 2)
    met.submit(0, 1, loss=math.nan)
    met.turn()
    assert met.steps[0].finite_W == (True, False, True)
    assert any(met.exchanges[0].plan.in_burst(step) for step in range(100))


def test_at_the_end_all_is_written_that_came_and_rank_0_waits_for_goodbyes(met):
    met.submit(0)
    met.submit(1, 0, 1)
    begun = met.clock.now
    finish(met, 2, 1, 0)
    assert written(met) == [0, 1]
    assert met.diagnosis.told_last
    assert met.clock.now - begun < 1
    assert met.exchanges[0].message_store.left == {0, 1, 2}


def test_at_the_end_a_rank_that_says_no_goodbye_is_waited_for_while_it_gives_signs_of_life(met):
    met.submit(0, 0, 1)
    begun = met.clock.now
    finish(met, 1, 0)
    assert rank0.QUIET_SECONDS <= met.clock.now - begun < rank0.QUIET_SECONDS + 0.5
    assert written(met) == [0]
    assert met.steps[0].loss_W == (0.0, 1.0, None)


def test_at_the_end_directions_on_their_way_are_waited_for_from_when_all_are_done(met, monkeypatch):
    monkeypatch.setattr(ReconnectingChannel, "idle", False)
    met.submit(0)
    finish(met, 2, 1)
    begun = met.clock.now
    finish(met, 0)
    assert rank0.LAST_DIRECTIONS_SECONDS <= met.clock.now - begun < rank0.LAST_DIRECTIONS_SECONDS + 0.1


def test_at_the_end_others_have_a_moment_however_long_rank_0_was_held_up(met):
    met.submit(0, 0, 1)
    met.turn()
    begun = met.clock.now
    met.rank0.finish(met.exchanges[0], deadline=begun - 5)
    assert rank0.LAST_WORDS_SECONDS <= met.clock.now - begun < rank0.LAST_WORDS_SECONDS + 0.1


def test_lists_that_do_not_fit_are_said_once(met, monkeypatch):
    monkeypatch.setattr(rank0, "shortened", lambda record: (record, ["cos_WW"]))
    for step in range(3):
        met.submit(step)
    met.turn()
    assert written(met) == [0, 1, 2]
    assert [note.text for note in met.records if not isinstance(note, StepRecord)] == [
        "records of 3 workers are too long for the run file; left out of them: cos_WW"
    ]
