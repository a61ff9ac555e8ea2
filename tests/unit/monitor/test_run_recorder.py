"""Whatever fails behind it, every record is in the file."""

import pytest

import invented_runs as invented
from consoles import Console
from unisono.diagnose.rules.un404_non_finite import NonFinite
from unisono.diagnose.rules.un501_outlier_worker import OutlierWorker
from unisono.exchange.last_word import LastWord
from unisono.monitor.live_diagnosis import LiveDiagnosis
from unisono.monitor.run_recorder import RunRecorder
from unisono.records import FactsRecord
from unisono.records.runfile import read_run
from unisono.show.analysis.checkup import examine
from unisono.show.sinks.feed import Feed
from unisono.show.text.summary import Summary

STEPS = 60


def fails(*_arguments, **_options):
    raise ZeroDivisionError("division by zero")


@pytest.fixture
def console():
    return Console()


def recorded(folder, console, **fields):
    """Four workers, of which rank 2 opposes the others."""
    recorder = RunRecorder(folder, [0, 1, 2, 3], 0, console, LiveDiagnosis(console, (), None), Feed((), console))
    recorder.write(invented.attempt(4))
    for record in invented.steps(count=STEPS, opposed=2, **fields):
        recorder.write(record)
        recorder.diagnosis.tell()
    recorder.diagnosis.tell(last=True)
    recorder.close(lost=0)
    return read_run(folder)


@pytest.mark.parametrize("method", ["on_step", "finding"])
def test_a_rule_that_raises_at_every_step_costs_no_record(tmp_path, monkeypatch, console, method):
    monkeypatch.setattr(NonFinite, method, fails)
    run = recorded(tmp_path, console)
    assert [record.step for record in run.steps] == list(range(STEPS))
    assert (len(run.attempts), len(run.ends), run.bad_count) == (1, 1, 0)
    told = " ".join(" ".join(console.said).split())
    assert "UN501" in told
    assert told.count("UN404 at step 0 (ZeroDivisionError: division by zero, in test_run_recorder.py line") == 1
    assert {"UN001", "UN501"} <= {found.code for found in examine(tmp_path).findings}


@pytest.mark.parametrize(
    ("owner", "method"),
    [(Summary, "add"), (Summary, "lines"), (Feed, "step"), (LiveDiagnosis, "_is_ripe"), (LiveDiagnosis, "verdict")],
)
def test_nor_does_anything_else_behind_the_file(tmp_path, monkeypatch, console, owner, method):
    monkeypatch.setattr(owner, method, fails)
    assert len(recorded(tmp_path, console).steps) == STEPS
    assert "ZeroDivisionError" in console.complaints[0]


def test_a_finding_that_cannot_be_shown_is_handed_on(tmp_path, monkeypatch):
    got, console = [], Console()
    monkeypatch.setattr(LiveDiagnosis, "_say", fails)
    monkeypatch.setattr(Feed, "finding", fails)
    live = LiveDiagnosis(console, (), got.append, Feed((), console))
    for record in [invented.attempt(4), *invented.steps(count=STEPS, opposed=2)]:
        live.see(record)
    live.tell(last=True)
    assert OutlierWorker.code in {found.code for found in got}
    assert len(console.complaints) == 2 * len(got)


def test_numbers_that_nobody_can_reckon_with_cost_nothing_either(tmp_path, console):
    run = recorded(
        tmp_path, console, loss_mean=1.7e308, loss_W=(1.7e308,) * 4, grad_norm=1e300, compute_W=(0.0, 1, 1, 1)
    )
    assert (len(run.steps), console.complaints) == (STEPS, [])
    assert any(line.startswith(f"{STEPS} steps, 4 workers") for line in console.said)


@pytest.mark.parametrize(
    ("count", "ended", "verdict"),
    [(60, "finished", "healthy"), (20, "finished", "unheard"), (60, "crashed", "broken"), (0, "crashed", "broken")],
)
def test_stderr_sinks_and_a_later_diagnosis_say_the_same(tmp_path, monkeypatch, console, count, ended, verdict):
    told = []
    monkeypatch.setattr(Feed, "close", lambda _feed, words: told.append(words))
    recorder = RunRecorder(tmp_path, [0, 1, 2, 3], 0, console, LiveDiagnosis(console, (), None), Feed((), console))
    evidence = {"compared": 4, "fresh": True, "audits": ("reduced", "weights"), "parts": 1}
    initial = FactsRecord(1, 0, 1e9, "initial", same={"weights": "12ab"})
    for record in (invented.attempt(4), initial, *invented.steps(count=count, **evidence)):
        recorder.write(record)
    recorder.diagnosis.tell(last=True)
    recorder.close(0, LastWord({"crashed": "exception"}.get(ended, "")))
    found = examine(tmp_path)
    assert found.verdict == verdict
    assert told == [found.verdict_text]
    assert console.said.count(found.verdict_text) == 1
