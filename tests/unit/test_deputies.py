"""Several processes may share the rules among them: what is found stays the same, also when one of them dies."""

import os
import signal
from random import Random

import pytest

import invented_runs
from unisono.records import to_line
from unisono.report import deputies
from unisono.report.checkup import examine
from unisono.report.deputies import DUTIES, Deputies
from unisono.report.lookthrough import look_through
from unisono.rules import RULES

# The tests have `_spare_cores` say that forking is safe, whatever else this process has started.
pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")

CODES = [rule.code for rule in RULES]


@pytest.fixture
def shared(monkeypatch):
    """Every file is long, and two cores are free."""
    monkeypatch.setattr(deputies, "LONG", 0)
    monkeypatch.setattr(deputies, "_spare_cores", lambda: 2)


@pytest.fixture
def faulty(tmp_path):
    """A gradient of the wrong sign on rank 2, and data of another kind on rank 1, from an attempt that was repeated."""
    noise = Random(0).gauss
    odd = {"loss_W": lambda step: tuple((1 + (rank == 1)) * (2 + noise(0, 0.05)) for rank in range(4)), "fresh": True}
    first = invented_runs.steps(count=100, compared=4)
    again = invented_runs.steps(count=300, first=60, number=2, opposed=2, compared=4, **odd)
    attempts = invented_runs.attempt(4), invented_runs.attempt(4, number=2, first_step=60)
    return invented_runs.write(tmp_path, invented_runs.header(), attempts[0], *first, attempts[1], *again)


@pytest.mark.parametrize("after", [0, 1])
def test_what_is_found_is_the_same(faulty, monkeypatch, shared, after):
    with_deputies = examine(faulty, after=after).as_dict()
    monkeypatch.setattr(deputies, "LONG", 10**9)
    assert with_deputies == examine(faulty, after=after).as_dict()
    assert {finding["code"] for finding in with_deputies["findings"]} == {"UN105", "UN501"}
    assert list(with_deputies["checks"]) == CODES


def test_every_rule_is_taken_once(faulty, shared):
    with Deputies(faulty, after=0) as some:
        rules = [rule.code for rule in some.other_rules] + [rule.code for rule in some.rules()]
    assert sorted(rules) == CODES
    assert len(some.other_rules) == len(CODES) - sum(map(len, DUTIES))


def test_deputies_leave_out_the_attempts_that_are_left_out(faulty, shared):
    checks = []
    for after in (0, 1):
        with Deputies(faulty, after) as some:
            checks.append(sum(rule.checks for rule in some.rules()))
    assert checks[0] > checks[1] > 0


def test_a_deputy_that_dies_is_replaced(faulty, monkeypatch, shared):
    here, expected = os.getpid(), examine(faulty).as_dict()
    look = deputies._Deputy._look

    def die(deputy):
        if os.getpid() != here:
            os.kill(os.getpid(), signal.SIGKILL)
        return look(deputy)

    monkeypatch.setattr(deputies._Deputy, "_look", die)
    assert examine(faulty).as_dict() == expected


def test_all_of_them_stop_where_the_file_ended(faulty, shared):
    with Deputies(faulty, after=0) as before:
        checks = {rule.code: rule.checks for rule in before.rules()}
    some = Deputies(faulty, after=0)
    with (faulty / "run.jsonl").open("a") as file:
        file.writelines(to_line(record) + "\n" for record in invented_runs.steps(count=50, first=360, number=2))
    with some:
        assert {rule.code: rule.checks for rule in some.rules()} == checks
    seen = []
    look_through(faulty, seen.append, until=some.until)
    assert seen[-1].step == 359


def test_nobody_goes_on_when_the_reader_gives_up(faulty, shared):
    with pytest.raises(KeyboardInterrupt), Deputies(faulty, after=0) as some:
        raise KeyboardInterrupt
    assert not any(deputy._process.is_alive() for deputy in some._deputies)


def test_a_short_file_is_read_by_one_process(faulty, monkeypatch):
    monkeypatch.setattr(deputies, "_spare_cores", lambda: 2)
    with Deputies(faulty, after=0) as some:
        assert ([rule.code for rule in some.other_rules], some.rules(), some.until) == (CODES, [], None)


@pytest.mark.parametrize(("threads", "load", "spare"), [(1, 0.2, 3), (1, 1.4, 2), (1, 9.0, 0), (2, 0.2, 0)])
def test_busy_cores_are_not_spare_and_a_process_with_threads_is_not_copied(monkeypatch, threads, load, spare):
    monkeypatch.setattr(deputies.sys, "platform", "linux")
    monkeypatch.setattr(deputies.os, "listdir", lambda path: ["thread"] * threads)
    monkeypatch.setattr(deputies.os, "sched_getaffinity", lambda process: set(range(4)), raising=False)
    monkeypatch.setattr(deputies.os, "getloadavg", lambda: (load, 0.0, 0.0))
    assert deputies._spare_cores() == spare
