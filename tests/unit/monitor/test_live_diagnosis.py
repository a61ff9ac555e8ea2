"""Findings are told once, while training runs, and exactly those that a replay gives."""

import time
from types import SimpleNamespace

import pytest

import invented_runs as invented
from consoles import Console
from unisono.monitor import live_diagnosis as live
from unisono.monitor.live_diagnosis import HELD_SECONDS, HELD_STEPS, MOST_TOLD, LiveDiagnosis
from unisono.records import AttemptRecord, DepartureRecord, NoteRecord, StepRecord, WorkerFacts, to_line
from unisono.records.finding import Cause, Finding


class Findings:
    """Stands for the diagnosis: gives out what it is told to."""

    def __init__(self):
        self.seen = []
        self.fresh = []
        self.asked = 0

    def see(self, record):
        self.seen.append(record)

    def news(self, is_ripe):
        self.asked += 1
        fresh, self.fresh = self.fresh, []
        return fresh

    def findings(self):
        return [finding(code) for code in ("UN101", "UN405")]


def finding(code="UN101", severity="critical"):
    return Finding(
        code=code,
        slug="a-fault",
        title="Something is wrong",
        severity=severity,
        state="open",
        first_step=3,
        last_step=4,
        ranks=(1,),
        where=("host cpu",),
        why="it shows",
        evidence={},
        causes=(Cause("cause", "somebody did it", 0.9),),
        remedies=("undo it",),
        pattern=None,
    )


STEP = StepRecord(1, 5, 1.5, loss_mean=0.12345678912345)


@pytest.fixture
def console():
    return Console()


@pytest.fixture
def findings(monkeypatch):
    findings = Findings()
    monkeypatch.setattr(live, "Diagnosis", lambda ignore: findings)
    return findings


@pytest.fixture
def diagnosis(console, findings):
    diagnosis = LiveDiagnosis(console, (), None)
    diagnosis.see(STEP)
    return diagnosis


def test_records_are_judged_as_they_stand_in_the_file(console, findings):
    LiveDiagnosis(console, (), None).see(STEP)
    assert findings.seen[0].loss_mean == 0.123456789


def test_a_line_that_was_made_already_is_not_made_again(diagnosis, findings, monkeypatch):
    line = to_line(STEP)
    monkeypatch.setattr(live, "to_line", None)
    diagnosis.see(STEP, line)
    assert findings.seen[0].loss_mean == 0.123456789


def test_a_new_finding_is_shown_and_handed_over(console, findings):
    got = []
    diagnosis = LiveDiagnosis(console, (), got.append)
    diagnosis.see(STEP)
    findings.fresh = [finding()]
    assert diagnosis.tell() is True
    assert [found.code for found in got] == ["UN101"]
    assert "UN101" in "\n".join(console.said)
    assert "undo it" in "\n".join(console.said)


def test_sinks_get_each_finding_and_again_when_it_is_graver(console, findings):
    got = []
    feed = SimpleNamespace(finding=lambda found: got.append((found.code, found.severity)))
    diagnosis = LiveDiagnosis(console, (), None, feed)
    for severity in ("info", "critical"):
        diagnosis.see(STEP)
        findings.fresh = [finding(severity=severity)]
        diagnosis.tell()
    assert got == [("UN101", "info"), ("UN101", "critical")]


def test_nothing_new_is_silence(console, diagnosis):
    assert diagnosis.tell() is False
    assert console.said == []
    assert [found.code for found in diagnosis.findings] == ["UN101", "UN405"]


def test_an_info_is_handed_over_but_not_shown_and_no_reason_to_listen_closely(console, findings):
    got = []
    diagnosis = LiveDiagnosis(console, (), got.append)
    diagnosis.see(STEP)
    findings.fresh = [finding(severity="info")]
    assert diagnosis.tell() is False
    assert len(got) == 1
    assert console.said == []


def test_an_error_in_the_users_function_is_told_and_swallowed(console, findings):
    def broken(found):
        raise RuntimeError("mine")

    diagnosis = LiveDiagnosis(console, (), broken)
    diagnosis.see(STEP)
    findings.fresh = [finding()]
    assert diagnosis.tell() is True
    assert "RuntimeError: mine" in console.complaints[0]


def test_only_the_first_findings_are_shown(console, findings):
    got = []
    diagnosis = LiveDiagnosis(console, (), got.append)
    diagnosis.see(STEP)
    findings.fresh = [finding(f"UN{number}") for number in range(100, 100 + MOST_TOLD + 3)]
    diagnosis.tell()
    shown = "\n".join(console.said)
    assert f"UN{100 + MOST_TOLD - 1}" in shown
    assert f"UN{100 + MOST_TOLD}" not in shown
    assert len(got) == MOST_TOLD + 3


def test_findings_are_sought_when_there_is_something_to_read(diagnosis, findings):
    findings.fresh = []
    diagnosis.tell()
    diagnosis.tell()
    assert findings.asked == 1


def missing_worker(console, step=0):
    diagnosis = LiveDiagnosis(console, (), None)
    diagnosis.see(AttemptRecord(1, 0.0, 2, 0, tuple(WorkerFacts(rank, "h", rank, "cpu") for rank in range(2))))
    diagnosis.see(StepRecord(1, step, 1.0))
    diagnosis.see(NoteRecord(1, step, 2.0, "gone", "missing", (1,)))
    diagnosis.tell()
    assert console.said == []
    return diagnosis


def test_at_the_end_nothing_is_held_back(console):
    missing_worker(console).tell(last=True)
    assert "UN502" in console.said[0]


def test_a_finding_waits_for_the_next_steps(console):
    diagnosis = missing_worker(console)
    for step in range(1, HELD_STEPS):
        diagnosis.see(StepRecord(1, step, 3.0))
        diagnosis.tell()
    assert console.said == []
    diagnosis.see(StepRecord(1, HELD_STEPS, 3.0))
    diagnosis.tell()
    assert "UN502" in console.said[0]


def test_a_finding_is_told_also_when_no_step_follows(console, monkeypatch):
    diagnosis = missing_worker(console)
    later = time.monotonic() + HELD_SECONDS
    monkeypatch.setattr(live.time, "monotonic", lambda: later)
    diagnosis.tell()
    assert "UN502" in console.said[0]


def test_the_verdict_names_what_is_grave(diagnosis, monkeypatch):
    monkeypatch.setattr(live, "conclude", lambda *_: SimpleNamespace(verdict_text="the sentence"))
    assert diagnosis.verdict() == "the sentence"
    diagnosis.tell()
    assert diagnosis.verdict() == "the sentence (UN101 a-fault, UN405 a-fault)"


def test_with_real_rules_a_missing_worker_is_found_and_can_be_ignored(console):
    def run(ignore):
        diagnosis = LiveDiagnosis(console, ignore, None)
        diagnosis.see(AttemptRecord(1, 0.0, 2, 0, tuple(WorkerFacts(rank, "h", rank, "cpu") for rank in range(2))))
        diagnosis.see(StepRecord(1, 0, 1.0))
        diagnosis.see(NoteRecord(1, 0, 1.5, "rank 1 is silent", about="missing", ranks=(1,)))
        diagnosis.tell(last=True)
        return [found.code for found in diagnosis.findings]

    assert "UN502" in run(())
    assert "UN502" not in run(("UN502",))


def test_a_rank_that_has_gone_is_told_at_once(console):
    diagnosis = LiveDiagnosis(console, (), None)
    diagnosis.see(invented.attempt(2))
    diagnosis.see(DepartureRecord(1, 5, 50.0, 1, "lost", "its process is gone"))
    diagnosis.tell()
    assert any("UN502" in line for line in console.said)


def test_what_becomes_graver_is_one_line(diagnosis, findings, console):
    findings.fresh = [finding(severity="warning")]
    diagnosis.tell(last=True)
    whole = len(console.said)
    findings.fresh = [finding(severity="critical")]
    diagnosis.tell(last=True)
    assert whole > 2
    assert console.said[whole:] == ["UN101 a-fault is critical now: it shows"]
