"""Ranks that go, and ranks that are not heard, on a fleet: who is named, and that nobody is waited for in vain."""

import pytest

from fleet.listening import FIRST_RANK, Listeners
from unisono.exchange import departures as departures_module
from unisono.exchange.last_word import LastWord
from unisono.exchange.watch_rank0 import SILENT_SECONDS
from unisono.measure.rank0 import HEARTBEAT_SECONDS, LAST_WORDS_SECONDS
from unisono.monitor import exit_hooks
from unisono.records import HeartbeatRecord

WORLD = 3
RESET = "RuntimeError: [gloo/transport/tcp/pair.cc:537] Read error: Connection reset by peer"
HERE = {rank: {"place": "here", "pid": str(rank), "started": "1"} for rank in range(WORLD)}


@pytest.fixture
def ended(monkeypatch):
    """The processes that have ended."""
    ended = set()
    monkeypatch.setattr(departures_module, "is_seen", bool)
    monkeypatch.setattr(departures_module, "is_gone", lambda process: int(process["pid"]) in ended)
    return ended


@pytest.fixture
def fleet(monkeypatch, ended):
    fleet = Listeners(WORLD, monkeypatch, HERE)
    trained(fleet, 3)
    yield fleet
    fleet.end()


@pytest.fixture
def spread(monkeypatch):
    """Each rank on a machine of its own."""
    fleet = Listeners(WORLD, monkeypatch)
    trained(fleet, 3)
    yield fleet
    fleet.end()


def trained(fleet, steps, *ranks):
    for step in range(steps):
        fleet.submit(step, *ranks)
    for _ in range(2):
        fleet.turn(*ranks, seconds=0.3)


def stands(fleet, *ranks):
    """These wait in a backward pass from now on."""
    now = fleet.clock.now
    for rank in ranks:
        fleet.exchanges[rank].backward_since = lambda: now


def leaves(fleet, rank, how="", detail=""):
    fleet.exchanges[rank].leave(LastWord(how, detail, time=100.0))
    began = fleet.clock.now
    fleet.exchanges[rank]._finish()
    return fleet.clock.now - began


def told(fleet):
    return [(one.rank - FIRST_RANK, one.how, one.step) for one in fleet.departures]


def test_a_rank_that_raises_is_named_at_once(fleet):
    leaves(fleet, 1, "exception", "ValueError: as planned")
    fleet.turn(0, 2, seconds=0.3)
    assert told(fleet) == [(1, "exception", 2)]
    assert fleet.departures[0].told_by == FIRST_RANK + 1
    assert f"rank {FIRST_RANK + 1} (on host-1) was ended by an exception after step 2" in fleet.complaints[0]


def test_a_process_that_ends_without_a_word_is_named_when_training_stands(fleet, ended):
    ended.add(2)
    fleet.turn(0, 1, seconds=0.6)
    assert told(fleet) == []
    stands(fleet, 0)
    fleet.turn(0, 1, seconds=0.9)
    assert told(fleet) == []
    fleet.turn(0, 1, seconds=0.2)
    assert told(fleet) == [(2, "lost", 2)]
    fleet.turn(0, 1, seconds=SILENT_SECONDS + 1)
    assert fleet.notes == []


def test_a_process_that_ends_when_all_is_done_is_not_missed(fleet, ended):
    ended.add(2)
    fleet.turn(0, 1, seconds=5)
    leaves(fleet, 1)
    leaves(fleet, 0)
    assert (told(fleet), fleet.notes) == ([], [])


def test_who_is_left_behind_is_missed(fleet, ended):
    ended.add(2)
    fleet.turn(0, 1, seconds=0.6)
    for step in range(3, 6):
        fleet.submit(step, 0, 1)
        fleet.turn(0, 1)
    assert told(fleet) == [(2, "lost", 2)]


@pytest.mark.parametrize("how", ["", "exit"])
def test_who_leaves_in_good_order_before_the_others_is_named_when_they_fail(fleet, ended, how):
    leaves(fleet, 1, how)
    fleet.turn(0, 2)
    ended.add(1)
    leaves(fleet, 2, "exception", RESET)
    assert leaves(fleet, 0, "exception", RESET) < 1
    assert told(fleet) == [(1, "exit", 2), (0, "exception", 2), (2, "exception", 2)]


PIPE = "BrokenPipeError: [Errno 32] Broken pipe"


@pytest.mark.parametrize("lives", [False, True])
def test_who_has_finished_well_is_not_blamed_for_anothers_own_connection(fleet, ended, lives):
    for rank in (1, 2):
        leaves(fleet, rank)
    ended.update([] if lives else [1, 2])
    leaves(fleet, 0, "exception", PIPE)
    assert told(fleet) == [(0, "exception", 2)]
    assert [one.rank for one in fleet.exchanges[0].departures.first] == [FIRST_RANK]


def test_who_has_finished_well_elsewhere_is_not_blamed_for_a_connection_to_somebody(spread):
    """Nobody knows whether its process lives; rank 2 may have gone."""
    leaves(spread, 1)
    leaves(spread, 0, "exception", RESET)
    assert FIRST_RANK + 1 not in [one.rank for one in spread.departures]


@pytest.mark.parametrize("how", ["", "exit"])
def test_who_left_in_good_order_is_no_suspect(fleet, how):
    """A process that lives, or of which nobody knows."""
    departures = fleet.exchanges[0].departures
    departures.said(1, LastWord(how, step=2), 2, None)
    departures.suspect(set())
    assert departures.lost == ({1} if how else set())


def test_who_ends_with_an_exit_code_is_named_before_those_whom_the_launcher_then_sends_away(fleet):
    leaves(fleet, 1, "exit", "exit code 1")
    leaves(fleet, 2, "signal", "SIGTERM")
    leaves(fleet, 0, "signal", "SIGTERM")
    assert told(fleet)[0] == (1, "exit", 2)
    assert [one.rank for one in fleet.exchanges[0].departures.first] == [FIRST_RANK + 1]


def test_who_ends_with_an_exit_code_is_named_though_nobody_is_sent_away(fleet):
    leaves(fleet, 1, "exit", "exit code 1")
    fleet.turn(0, 2, seconds=0.3)
    assert told(fleet) == []
    fleet.turn(0, 2, seconds=1.1)
    assert told(fleet) == [(1, "exit", 2)]


def test_a_job_that_ends_with_an_exit_code_names_nobody(fleet):
    for rank in (2, 1, 0):
        leaves(fleet, rank, "exit", "exit code 3")
    assert len(told(fleet)) == WORLD
    assert fleet.exchanges[0].departures.first == []
    assert fleet.complaints == []


@pytest.mark.parametrize("others", [(), (1,)])
def test_rank_0_that_is_ended_by_a_signal_while_others_live_is_done_before_its_process_ends(fleet, others):
    for rank in others:
        leaves(fleet, rank, "signal", "SIGTERM")
    assert leaves(fleet, 0, "signal", "SIGTERM") < exit_hooks.PATIENCE * 0.7


def test_rank_0_finds_out_who_went_before_it_goes_itself(fleet, ended):
    ended.add(2)
    assert leaves(fleet, 0, "exception", RESET) < 1
    assert told(fleet) == [(2, "lost", 2), (0, "exception", 2)]


def test_a_consequence_waits_for_its_cause(fleet, ended):
    leaves(fleet, 1, "exception", RESET)
    fleet.turn(0, seconds=0.3)
    assert told(fleet) == []
    leaves(fleet, 2, "exception", "ValueError: as planned")
    fleet.turn(0, seconds=0.3)
    assert told(fleet) == [(2, "exception", 2), (1, "exception", 2)]


def test_a_rank_of_another_machine_is_named_if_it_alone_gave_no_sign_of_life(spread):
    leaves(spread, 1, "exception", RESET)
    assert leaves(spread, 0, "exception", RESET) < 1
    assert told(spread)[0] == (2, "lost", 2)


def test_nobody_is_named_if_several_gave_none(spread):
    assert leaves(spread, 0, "exception", RESET) < 1
    assert told(spread) == [(0, "exception", 2)]


def test_ranks_that_were_stopped_together(fleet):
    for rank in (2, 1, 0):
        leaves(fleet, rank, "signal", "SIGTERM")
    assert sorted(told(fleet)) == [(rank, "signal", 2) for rank in range(WORLD)]
    assert fleet.exchanges[0].departures.first == []


def test_a_process_that_had_gone_when_rank_0_was_sent_away(fleet, ended, monkeypatch):
    ended.add(1)
    monkeypatch.setattr(departures_module.time, "time", lambda: 100.0, raising=False)
    leaves(fleet, 0, "signal", "SIGTERM")
    assert told(fleet)[0] == (1, "lost", 2)


def test_silence_is_a_departure_until_the_rank_is_back(fleet):
    for _ in range(12):
        fleet.turn(0, 1, seconds=0.5)
    assert fleet.notes == [("missing", (FIRST_RANK + 2,))]
    assert told(fleet) == [(2, "silence", 2)]
    fleet.turn(seconds=0.5)
    assert fleet.notes[-1] == ("returned", (FIRST_RANK + 2,))
    assert fleet.exchanges[0].departures.gone == set()


def test_rank_0_is_named_by_the_others(fleet, ended):
    ended.add(0)
    leaves(fleet, 1, "exception", RESET)
    (departure,) = fleet.told[1]
    assert (departure.rank, departure.how, departure.told_by) == (FIRST_RANK, "lost", FIRST_RANK + 1)


def test_rank_0_is_named_while_the_others_hang(fleet, ended):
    ended.add(0)
    stands(fleet, 1)
    fleet.turn(1, seconds=0.6)
    fleet.turn(1, seconds=1.1)
    assert [one.rank for one in fleet.told[1]] == [FIRST_RANK]
    assert fleet.told[2] == []


def test_rank_0_on_another_machine_falls_silent(spread):
    stands(spread, 1, 2)
    for _ in range(10):
        spread.turn(1, 2, seconds=1.0)
    assert [(one.rank, one.how) for one in spread.told[1]] == [(FIRST_RANK, "silence")]


def test_rank_0_on_another_machine_that_comes_back_was_only_silent(spread):
    taken_back = []
    spread.exchanges[1]._watch._take_back = lambda: taken_back.append(True)
    stands(spread, 1, 2)
    for _ in range(10):
        spread.turn(1, 2, seconds=1.0)
    assert taken_back == []
    for _ in range(3):
        spread.turn(seconds=1.0)
    assert taken_back == [True]
    assert spread.exchanges[1].departures.gone == set()
    for _ in range(10):
        spread.turn(1, 2, seconds=1.0)
    assert [one.how for one in spread.told[1]] == ["silence", "silence"]


def test_rank_0_does_not_get_further_when_it_has_gone(fleet, ended):
    ended.add(0)
    fleet.turn(1, seconds=0.6)
    for step in range(3, 9):
        fleet.submit(step, 1)
        fleet.turn(1, seconds=0.1)
    ((rank, how, step),) = [(one.rank - FIRST_RANK, one.how, one.step) for one in fleet.told[1]]
    assert (rank, how) == (0, "lost")
    assert step < 3


def test_a_store_that_is_gone_was_hosted_by_rank_0(spread):
    with spread.fleet.stores[1].broken(), pytest.raises(ConnectionError):
        leaves(spread, 1, "exception", RESET)
    assert [(one.rank, one.how) for one in spread.told[1]] == [(FIRST_RANK, "lost")]


def test_a_rank_that_was_never_attached_is_told_of_at_the_end_of_a_short_job(monkeypatch):
    fleet = Listeners(WORLD, monkeypatch)
    trained(fleet, 3, 0, 1)
    leaves(fleet, 1)
    assert leaves(fleet, 0) <= LAST_WORDS_SECONDS + 0.1
    assert fleet.notes == [("unheard", (FIRST_RANK + 2,))]
    assert "call attach on every rank" in fleet.complaints[-1]
    assert [record.loss_W for record in fleet.steps] == [(0.0, 1.0, None)] * 3
    fleet.end()


def test_a_rank_that_fell_silent_in_a_short_job(spread):
    for step in range(3, 6):
        spread.submit(step, 0, 1)
        spread.turn(0, 1, seconds=0.5)
    leaves(spread, 1)
    assert leaves(spread, 0) < 2
    assert spread.notes == [("unheard", (FIRST_RANK + 2,))]
    assert [record.step for record in spread.records if getattr(record, "about", "")] == [3]


def test_whoever_closes_a_dead_thread_says_since_when_it_was_not_heard(fleet):
    for step in range(3, 6):
        fleet.submit(step)
    fleet.turn(0, 2)
    fleet.exchanges[1]._take_over()
    leaves(fleet, 2)
    assert leaves(fleet, 0) < 1
    assert fleet.notes == [("unheard", (FIRST_RANK + 1,))]
    assert [record.loss_W for record in fleet.steps] == [(0.0, 1.0, 2.0)] * 6
    assert next(record.step for record in fleet.records if getattr(record, "about", "")) == 3


@pytest.mark.parametrize("lives", [False, True])
def test_who_is_done_first_in_a_job_that_does_not_synchronise_is_not_left_behind(fleet, ended, lives):
    for step in range(3, 9):
        fleet.submit(step, 1)
    fleet.turn(seconds=0.3)
    leaves(fleet, 1)
    ended.update([] if lives else [1])
    for step in range(3, 9):
        fleet.submit(step, 0, 2)
        fleet.turn(0, 2, seconds=0.6)
    leaves(fleet, 2)
    leaves(fleet, 0)
    assert (told(fleet), fleet.notes) == ([], [])


def test_at_the_end_a_rank_that_lives_and_has_nothing_to_say_is_waited_for_a_second(fleet):
    fleet.submit(3, 0)
    leaves(fleet, 1)
    began = fleet.clock.now
    fleet.exchanges[0].leave(LastWord())
    collect = fleet.exchanges[0].message_store.collect

    def lives(ranks):
        fleet.exchanges[2]._turn()
        return collect(ranks)

    fleet.exchanges[0].message_store.collect = lives
    fleet.exchanges[0]._finish()
    assert fleet.clock.now - began <= LAST_WORDS_SECONDS + 0.2
    assert fleet.notes == []


def test_a_writer_with_nothing_to_write_says_that_it_lives(fleet):
    for _ in range(3):
        fleet.turn(seconds=HEARTBEAT_SECONDS / 2 + 0.1)
    beats = [record for record in fleet.records if isinstance(record, HeartbeatRecord)]
    assert [(beat.attempt, beat.step) for beat in beats] == [(1, 2)]
