"""How often the listening thread wakes: rarely without gradients, ever more rarely when the store is gone."""

from types import SimpleNamespace

import pytest

from unisono.common.schedule import every
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
        ("message_store", "channel", "plan", "layout", "keep", "rank0", "write_last_steps", "finished")
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
        exchange.submit(SimpleNamespace(step=step))
    assert exchange._wake.is_set()
    assert not exchange._ends_while_resting()
    # What a GPU has not yet finished stays in the queue: no reason to wake at every further step.
    exchange.submit(SimpleNamespace(step=HURRY))
    assert not exchange._wake.is_set()
    exchange.leave()
    assert exchange._wake.is_set()
    assert exchange._ends_while_resting()
