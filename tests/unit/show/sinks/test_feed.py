"""Sinks that are slow, broken or gone cost the run nothing, and no finding."""

import itertools
import threading
import time
from collections import Counter
from dataclasses import replace

import pytest

from consoles import Console
from unisono.common.errors import UserError
from unisono.show.sinks import delivery as delivery_module
from unisono.show.sinks.delivery import LONGEST_QUEUE, READINGS_A_SECOND
from unisono.show.sinks.feed import Feed
from unisono.show.sinks.sink import OpenSink, Sink
from unisono.sinks import Prometheus
from unit.show.sinks.build import finding, record, run, without

SOON = 10.0
"""Seconds after which a test fails rather than waits."""


class Memory(Sink):
    """Remembers what it is handed; `before` may block or raise."""

    name = "memory"

    def __init__(self, before=lambda what: None):
        self.before, self.readings, self.findings, self.verdicts, self.opened = before, [], [], [], 0
        self.batches = []

    def open(self, run):
        self.before("open")
        self.opened += 1
        self.run = run
        return OpenMemory(self)


class OpenMemory(OpenSink):
    seconds = 0.01

    def __init__(self, memory):
        self.memory = memory

    def metrics(self, readings):
        self.memory.before("metrics")
        self.memory.batches.append(len(readings))
        self.memory.readings += readings

    def finding(self, finding):
        self.memory.before(finding.code)
        self.memory.findings.append(finding.code)

    def close(self, verdict):
        self.memory.before("close")
        self.memory.verdicts.append(verdict)


class Latest(Memory):
    name = "latest"
    only_latest = True


class Failing:
    """Raises the first `times` times it is asked for `what`."""

    def __init__(self, what, times=10**9):
        self.what, self.times, self.calls, self.called_at = what, times, Counter(), []

    def __call__(self, what):
        self.calls[what] += 1
        if what == self.what:
            self.called_at.append(time.monotonic())
        if what == self.what and self.calls[what] <= self.times:
            raise ConnectionError(f"{what} is down")


@pytest.fixture
def console():
    return Console()


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """Pauses that a test can wait for."""
    monkeypatch.setattr(delivery_module, "FIRST_PAUSE", 0.01)
    monkeypatch.setattr(delivery_module, "LONGEST_PAUSE", 0.05)
    monkeypatch.setattr(delivery_module, "LAST_PAUSE", 0.01)


@pytest.fixture
def started(console, tmp_path):
    def start(*sinks):
        feed = Feed(sinks, console)
        feed.start(run(tmp_path))
        return feed

    return start


def eventually(condition):
    deadline = time.monotonic() + SOON
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.002)
    assert condition()


def test_numbers_findings_and_the_verdict_arrive(started, console, tmp_path):
    memory = Memory()
    feed = started(memory)
    for step in range(20):
        feed.step(record(step))
    feed.finding(finding())
    feed.close("found: UN101")
    assert [reading.step for reading in memory.readings] == list(range(20))
    assert memory.readings[3].values["grad_norm"] == 5.5
    assert memory.findings == ["UN101"]
    assert memory.verdicts == ["found: UN101"]
    assert memory.run.directory == tmp_path
    assert console.said == console.complaints == []


def test_where_gradients_are_not_heard_the_norm_is_what_clipping_returned(started):
    memory = Memory()
    feed = started(memory)
    for step in range(20):
        heard = step % 10 == 0
        feed.step(record(step, grad_norm=2.5 if heard else None, clip_norm=2.5 if heard else float(step)))
    feed.close("")
    norms = [reading.values["grad_norm"] for reading in memory.readings]
    assert norms == [2.5 if step % 10 == 0 else float(step) for step in range(20)]


def test_putting_does_not_wait_for_a_sink_that_hangs(started, console):
    released = threading.Event()
    memory = Memory(lambda what: released.wait(SOON))
    feed = started(memory)
    for step in range(100_000):
        feed.step(record(step, loss_W=(), norm_W=(), cos_W=()))
    for code in range(30):
        feed.finding(finding(f"UN{code}"))
    assert not released.is_set()
    assert memory.readings == memory.findings == []
    released.set()
    eventually(lambda: len(memory.findings) == 30)
    feed.close("")
    assert memory.findings == [f"UN{code}" for code in range(30)]
    # The newest are kept; what was dropped is counted and told once.
    assert [reading.step for reading in memory.readings] == list(range(99_000, 100_000))
    assert console.said == ["not everything reached the sinks: memory missed 99,000 readings. The run file has it all"]


@pytest.mark.parametrize("place", ["open", "metrics", "UN0"])
def test_putting_does_not_wait_wherever_a_sink_hangs(place, started):
    inside, released = threading.Event(), threading.Event()

    def hang(what):
        if what == place:
            inside.set()
            released.wait(SOON)

    memory = Memory(hang)
    feed = started(memory)
    feed.finding(finding("UN0"))
    feed.step(record(0))
    assert inside.wait(SOON)
    for step in range(1, 100):
        feed.step(record(step))
        feed.finding(finding(f"UN{step}"))
    # It is still in there: nothing has waited for it.
    assert len(memory.findings) == (place == "metrics")
    assert memory.readings == []
    released.set()
    eventually(lambda: len(memory.findings) == len(memory.readings) == 100)
    feed.close("")


def test_findings_and_the_end_do_not_wait_for_the_next_delivery(started, monkeypatch):
    monkeypatch.setattr(OpenMemory, "seconds", 10 * SOON)
    memory = Memory()
    feed = started(memory)
    feed.step(record(0))
    time.sleep(0.1)
    feed.finding(finding())
    eventually(lambda: memory.findings == ["UN101"])
    time.sleep(0.1)
    feed.step(record(1))
    before = time.monotonic()
    feed.close("over", seconds=SOON)
    assert time.monotonic() - before < SOON / 2
    assert [reading.step for reading in memory.readings] == [0, 1]
    assert memory.verdicts == ["over"]


def test_closing_does_not_wait_longer_than_asked(started, console):
    hanging, memory = Memory(lambda what: time.sleep(SOON)), Latest()
    feed = started(hanging, memory)
    feed.step(record())
    feed.finding(finding())
    before = time.monotonic()
    feed.close("", seconds=0.3)
    assert time.monotonic() - before < SOON / 2
    assert memory.findings == ["UN101"]
    assert "memory missed 1 reading and UN101" in console.said[0]
    assert "latest" not in console.said[0]


def test_a_sink_that_hangs_holds_up_no_other(started):
    released = threading.Event()
    hanging, memory = Memory(lambda what: released.wait(SOON)), Latest()
    feed = started(hanging, memory)
    feed.finding(finding())
    eventually(lambda: memory.findings == ["UN101"])
    assert hanging.findings == []
    released.set()
    feed.close("")


@pytest.mark.parametrize("what", ["open", "metrics", "UN101", "close"])
def test_a_sink_that_raises_is_complained_about_once_and_tried_again(what, started, console):
    failing, memory = Memory(Failing(what)), Latest()
    feed = started(failing, memory)
    feed.step(record(1))
    feed.finding(finding())
    if what != "close":
        eventually(lambda: failing.before.calls[what] > 3 or what == "metrics")
    eventually(lambda: memory.findings == ["UN101"])
    feed.close("", seconds=0.5)
    told = f"the sink `memory` fails (ConnectionError: {what} is down); training is not affected"
    assert console.complaints == [told]
    assert memory.verdicts == [""]
    if what in ("open", "UN101"):
        assert "UN101" in console.said[0]


def test_findings_arrive_when_a_sink_is_back(started, console):
    memory = Memory(Failing("open", times=5))
    feed = started(memory)
    for code in ("UN101", "UN404"):
        feed.finding(finding(code))
    eventually(lambda: memory.findings == ["UN101", "UN404"])
    feed.close("")
    assert memory.opened == 1
    assert len(console.complaints) == 1
    assert console.said == []


def test_a_finding_told_at_the_end_is_tried_more_than_once(started, console):
    memory = Memory(Failing("UN101", times=3))
    feed = started(memory)
    eventually(lambda: memory.opened)
    feed.finding(finding())
    feed.close("")
    assert memory.findings == ["UN101"]
    assert console.said == []


def test_one_finding_that_cannot_be_taken_keeps_nothing_else_from_the_sink(started):
    memory = Memory(Failing("UN101"))
    feed = started(memory)
    feed.finding(finding("UN101"))
    feed.finding(finding("UN404"))
    feed.step(record(5))
    eventually(lambda: memory.findings == ["UN404"])
    eventually(lambda: [reading.step for reading in memory.readings] == [5])
    feed.close("", seconds=0.2)


def test_pauses_grow(started, monkeypatch):
    monkeypatch.setattr(delivery_module, "FIRST_PAUSE", 0.1)
    monkeypatch.setattr(delivery_module, "LONGEST_PAUSE", 60.0)
    memory = Memory(Failing("open"))
    feed = started(memory)
    eventually(lambda: memory.before.calls["open"] >= 4)
    assert_doubled(memory.before.called_at)
    feed.close("", seconds=0.0)


def assert_doubled(called_at):
    """At 0, 0.1, 0.3 and 0.7 seconds, or later where the machine is busy."""
    gaps = [later - earlier for earlier, later in itertools.pairwise(called_at[:4])]
    assert all(gap >= 0.99 * pause for gap, pause in zip(gaps, (0.1, 0.2, 0.4), strict=True)), gaps


def test_a_turn_with_nothing_to_deliver_is_no_success(started, monkeypatch, console):
    monkeypatch.setattr(delivery_module, "FIRST_PAUSE", 0.1)
    monkeypatch.setattr(delivery_module, "LONGEST_PAUSE", 60.0)
    memory = Memory(Failing("metrics"))
    feed = started(memory)
    deadline = time.monotonic() + SOON
    while memory.before.calls["metrics"] < 4 and time.monotonic() < deadline:
        feed.step(record(time.monotonic()))
        time.sleep(0.01)
    assert_doubled(memory.before.called_at)
    feed.close("", seconds=0.0)
    assert len(console.complaints) == 1


def test_a_mistake_of_the_user_is_told_in_plain_words(started, console):
    def refuse(what):
        raise UserError('the sink needs a package. Install it with: pip install "unisono[wandb]"')

    feed = started(Memory(refuse))
    eventually(lambda: console.complaints)
    feed.close("", seconds=0.1)
    assert 'pip install "unisono[wandb]"' in console.complaints[0]
    assert "UserError" not in console.complaints[0]


def test_a_missing_package_is_told_and_others_go_on(started, console, monkeypatch):
    without("prometheus_client", monkeypatch)
    memory = Memory()
    feed = started(Prometheus(), memory)
    feed.finding(finding())
    eventually(lambda: memory.findings == ["UN101"] and console.complaints)
    feed.close("", seconds=0.2)
    assert len(console.complaints) == 1
    assert 'pip install "unisono[prometheus]"' in console.complaints[0]


def test_complaints_are_one_short_line(started, console):
    def long(what):
        raise RuntimeError("\x1b[31m\n" + "x" * 10_000)

    feed = started(Memory(long))
    eventually(lambda: console.complaints)
    feed.close("", seconds=0.1)
    assert len(console.complaints[0]) < 500
    assert console.complaints[0].isprintable()


def test_sinks_that_show_the_newest_only_get_it_merged(started):
    released = threading.Event()
    latest = Latest(lambda what: released.wait(SOON))
    feed = started(latest)
    feed.step(record(1))
    for step in range(2, 3 * LONGEST_QUEUE):
        feed.step(record(step, grad_norm=None))
    released.set()
    feed.close("")
    assert [reading.step for reading in latest.readings] == [3 * LONGEST_QUEUE - 1]
    assert latest.readings[0].values["grad_norm"] == 3.5


def test_readings_that_come_too_fast_are_merged(started, console):
    memory = Memory()
    feed = started(memory)
    for step in range(1_000):
        feed.step(replace(record(step), time=1_700_000_000 + step / 1_000))
    feed.close("")
    # A thousand steps in a second. What was delivered cannot be merged with what comes next.
    assert READINGS_A_SECOND <= len(memory.readings) <= READINGS_A_SECOND + len(memory.batches)
    assert memory.readings[-1].step == 999
    assert console.said == []


def test_without_sinks_there_is_no_thread(started):
    before = threading.active_count()
    feed = started()
    feed.step(record())
    feed.finding(finding())
    feed.close("")
    assert threading.active_count() == before


def test_a_thread_ends_with_the_feed(started):
    feed = started(type("Brief", (Memory,), {"name": "brief"})())
    assert "unisono-brief" in [thread.name for thread in threading.enumerate()]
    feed.close("")
    assert "unisono-brief" not in [thread.name for thread in threading.enumerate()]
