"""What the guard says on stderr, and how often."""

from types import SimpleNamespace

import pytest

from consoles import Console
from unisono.act.guard import reporter as module
from unisono.act.guard.reporter import SAID_EACH, Reporter
from unit.diagnose.rules.build import decision


@pytest.fixture
def clock(monkeypatch):
    now = SimpleNamespace(seconds=0.0)
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: now.seconds, time=lambda: 0.0))
    return now


@pytest.fixture
def written():
    return []


@pytest.fixture
def console():
    return Console()


@pytest.fixture
def reporter(console, written):
    log = SimpleNamespace(attempt=1, write_at_once=lambda record, grave=True: written.append(record))
    return Reporter(log, console, lambda: 0)


def test_acts_of_one_kind_are_said_one_by_one_and_then_once_a_minute(reporter, console, written, clock):
    for step in range(1_000):
        clock.seconds = 0.1 * step
        reporter.decided(decision("skip", 2, at=step, row="non-finite"))
    assert len(written) == 1_000
    assert len(console.said) == SAID_EACH + 1
    assert console.said[0].startswith("step 0: skipped on all workers")
    assert console.said[SAID_EACH - 1].endswith("from now on said once a minute, the run file has them all")
    assert console.said[-1].startswith("step 609: skipped on all workers")
    assert console.said[-1].endswith("; 599 more since the last line")


def test_another_kind_of_act_is_said_at_once(reporter, console, clock):
    for step in range(100):
        reporter.decided(decision("skip", 2, at=step, row="non-finite"))
    reporter.decided(decision("skip", 2, at=100, row="extreme"))
    reporter.decided(decision("halt", 2, at=101, row="non-finite"))
    assert [line.partition(":")[0] for line in console.said[SAID_EACH:]] == ["step 100", "step 101"]


def test_clipping_is_written_down_and_not_said(reporter, console, written, clock):
    reporter.decided(decision("clip", at=1))
    assert (len(written), console.said) == (1, [])


def test_that_roll_backs_are_used_up_is_said_once_until_one_is_made_again(reporter, console, written):
    for why in ("", "three did not help", "three did not help", "", "three did not help"):
        reporter.tell_of_used_up(why)
    assert console.said == ["not rolled back: three did not help (guard)"] * 2
    assert [note.about for note in written] == ["roll-backs-used-up"] * 2
