"""Who is missing, who trains on unheard, and who is back."""

import pytest

from unisono.measure import liveness
from unisono.measure.liveness import LONGEST_GAP, SILENT_SECONDS, Liveness, LivenessChange


class Clock:
    now = 100.0

    def monotonic(self):
        return self.now


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(liveness, "time", clock)
    return clock


@pytest.fixture
def watch(clock):
    watch = Liveness()
    for worker in range(3):
        watch.heard(worker, newest=10)
    return watch


def hear(watch, *workers, newest):
    for worker in workers:
        watch.heard(worker, newest)


def later(watch, clock, seconds=SILENT_SECONDS + 0.1):
    """Rank 0 looks now and then meanwhile."""
    until = clock.now + seconds
    while clock.now < until:
        clock.now = min(until, clock.now + LONGEST_GAP)
        watch.silence(0)


def test_nothing_changes_while_everybody_speaks(watch, clock):
    later(watch, clock, SILENT_SECONDS - 0.1)
    assert watch.changes(newest=1000) == []


def test_while_rank_0_itself_is_held_up_nobody_is_silent(watch, clock):
    clock.now += 10 * SILENT_SECONDS
    assert watch.changes(newest=1000) == []
    assert watch.silence(1) == LONGEST_GAP
    later(watch, clock)
    assert watch.changes(newest=1000) == [LivenessChange("unheard", (0, 1, 2))]


def test_who_was_never_heard_is_not_missed(clock):
    assert Liveness().changes(newest=5) == []


def test_silence_while_nobody_gets_on_is_told_once(watch, clock):
    later(watch, clock)
    hear(watch, 0, 2, newest=11)
    assert watch.changes(newest=11) == [LivenessChange("missing", (1,))]
    assert watch.changes(newest=11) == []


def test_silence_while_training_goes_on_is_something_else(watch, clock):
    later(watch, clock)
    hear(watch, 0, newest=12)
    assert watch.changes(newest=12) == [LivenessChange("unheard", (1, 2))]


def test_one_step_further_may_just_have_been_under_way(watch, clock):
    later(watch, clock)
    assert watch.changes(newest=11) == [LivenessChange("missing", (0, 1, 2))]


def test_who_was_missing_may_turn_out_to_train_on(watch, clock):
    later(watch, clock)
    hear(watch, 0, 2, newest=11)
    watch.changes(newest=11)
    hear(watch, 0, 2, newest=20)
    assert watch.changes(newest=20) == [LivenessChange("unheard", (1,))]
    assert watch.changes(newest=21) == []


def test_both_kinds_at_once(watch, clock):
    watch.heard(2, newest=50)
    later(watch, clock)
    hear(watch, 0, newest=51)
    assert watch.changes(newest=51) == [LivenessChange("missing", (2,)), LivenessChange("unheard", (1,))]


def test_who_comes_back_is_told(watch, clock):
    later(watch, clock)
    hear(watch, 0, 2, newest=11)
    watch.changes(newest=11)
    watch.heard(1, newest=11)
    assert watch.changes(newest=11) == [LivenessChange("returned", (1,))]
    assert watch.changes(newest=11) == []


def test_one_comes_while_another_goes(watch, clock):
    later(watch, clock)
    hear(watch, 0, 2, newest=11)
    watch.changes(newest=11)
    later(watch, clock)
    hear(watch, 0, 1, newest=11)
    assert watch.changes(newest=11) == [LivenessChange("missing", (2,)), LivenessChange("returned", (1,))]


def test_who_says_goodbye_is_neither_missed_nor_back(watch, clock):
    watch.left(2)
    later(watch, clock)
    hear(watch, 0, newest=11)
    assert watch.changes(newest=11) == [LivenessChange("missing", (1,))]
    watch.left(1)
    assert watch.changes(newest=11) == []
