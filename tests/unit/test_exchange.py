"""The listening thread when the store is gone: it tries again, ever more rarely."""

from unisono.exchange import FIRST_PAUSE, LONGEST_PAUSE, Exchange


class Clock:
    def __init__(self):
        self.waited = []

    def wait(self, seconds):
        self.waited.append(seconds)


def gone():
    raise ConnectionError("the store is gone")


def test_pauses_grow_with_each_failure_and_are_short_again_after_a_success():
    said, clock = [], Clock()
    nobody = dict.fromkeys(("mailbox", "switchyard", "plan", "layout", "keep", "root", "leave_ring", "finished"))
    exchange = Exchange(**nobody, complain=said.append, facts={}, run_facts=None)
    exchange._closing = clock
    for _ in range(8):
        exchange._try(gone)
    assert clock.waited == [1, 2, 4, 8, 16, 32, LONGEST_PAUSE, LONGEST_PAUSE]
    assert "training is not affected" in said[0]
    exchange._try(lambda: None)
    exchange._try(gone)
    assert clock.waited[-1] == FIRST_PAUSE
