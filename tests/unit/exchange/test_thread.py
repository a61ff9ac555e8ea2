"""How often the listening thread wakes: rarely without gradients, ever more rarely when the store is gone."""

import threading
import time
from types import SimpleNamespace

import pytest

from fleet.listening import FIRST_RANK, Listeners
from unisono.common.schedule import every
from unisono.exchange import store, thread, wait_for_end
from unisono.exchange.reconnect import ReconnectingChannel
from unisono.exchange.thread import FIRST_PAUSE, HURRY, LONGEST_PAUSE, TURN, UNHURRIED, ExchangeThread
from unisono.listen.listening_plan import ListeningPlan


class Clock:
    def __init__(self):
        self.waited = []

    def wait(self, seconds):
        self.waited.append(seconds)

    def clear(self):
        pass


def make_exchange(**known):
    nobody = dict.fromkeys(
        (
            "message_store",
            "channel",
            "plan",
            "layout",
            "keep",
            "rank0",
            "write_last_steps",
            "finished",
            "departures",
            "watch",
            "deaf",
        )
    )
    return ExchangeThread(**nobody | known, facts={}, run_facts=None)


def gone():
    raise ConnectionError("the store is gone")


def test_pauses_grow_with_each_failure_and_are_short_again_after_a_success():
    said, clock = [], Clock()
    exchange = make_exchange(complain=said.append)
    exchange._closing = clock
    for _ in range(8):
        exchange._try(gone)
    assert clock.waited == [1, 2, 4, 8, 16, 32, LONGEST_PAUSE, LONGEST_PAUSE]
    assert "training is not affected" in said[0]
    exchange._try(lambda: None)
    exchange._try(gone)
    assert clock.waited[-1] == FIRST_PAUSE


@pytest.mark.parametrize(
    ("waiting", "idle", "next_step", "seconds"),
    [(0, True, 4, UNHURRIED), (1, True, 4, TURN), (0, False, 4, TURN), (0, True, 5, TURN)],
)
def test_turns_are_rare_while_no_gradients_are_on_their_way(waiting, idle, next_step, seconds):
    exchange = make_exchange(channel=SimpleNamespace(idle=idle), plan=ListeningPlan(every(5)), complain=print)
    exchange._wake = clock = Clock()
    exchange._queue.extend([SimpleNamespace(step=3)] * waiting)
    exchange.newest = next_step - 1
    assert not exchange._ends_while_resting()
    assert clock.waited == [seconds]


def test_many_steps_do_not_wait_for_a_turn_and_neither_does_the_end():
    exchange = make_exchange(channel=SimpleNamespace(idle=True), plan=ListeningPlan(every(5)), complain=print)
    for step in range(HURRY):
        assert not exchange._wake.is_set()
        exchange.submit(SimpleNamespace(step=step, time=0.0))
    assert exchange._wake.is_set()
    assert not exchange._ends_while_resting()
    # What a GPU has not yet finished stays in the queue: no reason to wake at every further step.
    exchange.submit(SimpleNamespace(step=HURRY, time=0.0))
    assert not exchange._wake.is_set()
    exchange.leave()
    assert exchange._wake.is_set()
    assert exchange._ends_while_resting()


@pytest.fixture
def short(monkeypatch):
    monkeypatch.setattr(thread, "STANDS_STILL", 0.2)
    monkeypatch.setattr(wait_for_end, "STANDS_STILL_AT_END", 0.3)


def turning(listeners, rank, trouble):
    """The rank's real thread, which meets trouble in the turn after some steps."""
    exchange = listeners.exchanges[rank]
    turn, fired = exchange._turn, threading.Event()

    def troubled():
        turn()
        if exchange.newest >= 2:
            fired.set()
            trouble()

    exchange._turn = troubled
    exchange.start()
    for step in range(3):
        listeners.submit(step, rank)
    assert fired.wait(10)
    return exchange


def die():
    raise SystemExit


def test_whoever_closes_a_thread_that_has_died_does_its_last_work(short):
    listeners = Listeners(1)
    exchange = turning(listeners, 0, die)
    exchange._thread.join(10)
    listeners.submit(3)
    ((rank, word, closing),) = listeners.deaf
    assert (rank, word.unheard_since, closing) == (0, exchange._turned + 1, False)
    exchange.close(patience=1.0)
    exchange.close(patience=1.0)
    assert [record.step for record in listeners.steps] == list(range(4))
    assert listeners.notes == [("unheard", (FIRST_RANK,))]
    assert listeners.finished == [0]


def test_a_thread_that_stands_still_is_not_waited_for(short):
    listeners, go_on = Listeners(1), threading.Event()
    exchange = turning(listeners, 0, lambda: go_on.wait(30))
    began = time.monotonic()
    exchange.close(patience=6.0)
    assert time.monotonic() - began < 2
    ((rank, word, closing),) = listeners.deaf
    assert (rank, word.step, closing) == (0, 2, True)
    assert word.unheard_since is not None
    go_on.set()
    exchange.join(10)
    assert not exchange._thread.is_alive()


def test_a_thread_that_was_left_behind_exchanges_nothing_any_more(short):
    """It would come back while the interpreter ends, and abort the process."""
    listeners, go_on, used = Listeners(1), threading.Event(), []
    exchange = turning(listeners, 0, lambda: go_on.wait(30))
    listeners.submit(3)
    exchange.close(patience=6.0)
    for name in ("send", "register", "announcements", "has_ended"):
        setattr(exchange.message_store, name, lambda *_, name=name, **__: used.append(name))
    go_on.set()
    exchange.join(10)
    assert not exchange._thread.is_alive()
    assert (used, listeners.finished) == ([], [])
    exchange.close(patience=1.0)
    assert (used, listeners.finished) == ([], [])


def test_a_turn_that_takes_long_is_waited_for(short):
    """As on a machine with more to do than it can."""
    listeners, until = Listeners(1), time.monotonic() + 1.0

    def compute():
        while time.monotonic() < until:
            sum(range(1000))

    exchange = turning(listeners, 0, compute)
    exchange.close(patience=6.0)
    assert listeners.deaf == []


def test_no_connection_is_left_on_its_way(short):
    listeners = Listeners(1)
    exchange = listeners.exchanges[0]
    exchange.channel = ReconnectingChannel(lambda *_: time.sleep(0.5), print)
    exchange.channel.begin(0, 0)
    exchange.start()
    exchange.close()
    assert "unisono-connect" not in {thread.name for thread in threading.enumerate()}


def test_a_thread_that_waits_for_the_store_is_waited_for(short):
    """A name server that does not answer holds the store up for 5 s at a new connection."""
    listeners, began = Listeners(1), time.monotonic()
    waits = compile("time.sleep(1.0)", store.__file__, "exec")
    exchange = turning(listeners, 0, lambda: exec(waits, {"time": time}))
    exchange.close(patience=0.5)
    assert time.monotonic() - began > 1.0
    assert listeners.deaf == []
    assert listeners.finished == [0]


def test_a_store_that_never_answers_is_not_waited_for_for_ever(short, monkeypatch):
    monkeypatch.setattr(wait_for_end, "FAREWELL", 0.5)
    listeners, began = Listeners(1), time.monotonic()
    waits, go_on = compile("go_on.wait(30)", store.__file__, "exec"), threading.Event()
    exchange = turning(listeners, 0, lambda: None)
    exchange._finish = lambda: (setattr(exchange, "_phase", thread.FINISHING), exec(waits, {"go_on": go_on}))
    exchange.close(patience=0.2)
    assert 1.0 < time.monotonic() - began < 5.0
    assert [closing for _, _, closing in listeners.deaf] == [True]
    go_on.set()
    exchange.join(10)
    assert listeners.finished == []


def test_a_thread_that_was_left_behind_at_its_last_work_goes_to_no_store(short):
    listeners, go_on, used = Listeners(2), threading.Event(), []
    exchange = turning(listeners, 1, lambda: None)
    exchange._watch = SimpleNamespace(find=lambda *_: used.append("find"), turn=lambda *_: None)
    exchange.message_store.send = lambda *_, **__: go_on.wait(30)
    exchange.close(patience=0.0)
    go_on.set()
    exchange.join(10)
    assert not exchange._thread.is_alive()
    assert used == []


def test_a_step_that_cannot_be_read_costs_no_last_word(short):
    """As after a failure of the device: all that lies on it raises."""
    listeners = Listeners(1)
    exchange = turning(listeners, 0, lambda: None)

    def ready():
        raise RuntimeError("device-side assert")

    exchange._queue.append(SimpleNamespace(step=3, time=time.time(), ready=ready))
    exchange.close(patience=1.0)
    assert any("a step could not be read (RuntimeError: device-side assert)" in line for line in listeners.complaints)
    assert exchange.message_store.left == {0}
    assert listeners.finished == [0]


def test_a_thread_that_has_stood_still_is_heard_again(short):
    listeners, go_on = Listeners(1), threading.Event()
    exchange = turning(listeners, 0, lambda: go_on.wait(30))
    time.sleep(0.3)
    listeners.submit(3)
    assert len(listeners.deaf) == 1
    go_on.set()
    deadline = time.monotonic() + 10
    while ("returned", (FIRST_RANK,)) not in listeners.notes and time.monotonic() < deadline:
        time.sleep(0.02)
    assert ("returned", (FIRST_RANK,)) in listeners.notes
    exchange.close(patience=1.0)


def test_a_thread_that_stands_still_is_noticed_by_training(short):
    listeners, go_on = Listeners(1), threading.Event()
    turning(listeners, 0, lambda: go_on.wait(30))
    time.sleep(0.3)
    for step in range(3, 6):
        listeners.submit(step)
    assert [closing for _, _, closing in listeners.deaf] == [False]
    go_on.set()
