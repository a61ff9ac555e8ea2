"""The manuals' literal thresholds: where they exist, what they are worth, and how they are told."""

import json
import math
from collections import Counter
from pathlib import Path

import pytest

from consoles import Console
from unisono.cli import main as cli
from unisono.cli.run_arguments import parse
from unisono.diagnose.manuals import (
    EXPLOSION,
    NAME,
    PAST,
    THRESHOLDS,
    VANISHING,
    VARIABLE,
    WITHOUT_NUMBER,
    ManualThresholds,
)
from unisono.diagnose.rules import RULES
from unisono.monitor.live_diagnosis import LiveDiagnosis
from unisono.records import AttemptRecord, EndRecord, RunRecord, StepRecord, WorkerFacts
from unisono.records.runfile import RunWriter

EVIDENCE = Path(__file__).parents[3] / "docs" / "evidence" / "healthy" / "detection.json"
SPIKE_AT = 120


def step(number):
    """Norms of 1, and one of 3."""
    norm = 3.0 if number == SPIKE_AT else 1.0
    return StepRecord(1, number, 1.5 + number, True, loss_mean=1.0, loss_std=0.1, grad_norm=norm, cos_mean=0.3)


def test_the_manuals_twelve_patterns_and_the_warning_have_a_threshold_or_none():
    numbered = [one.pattern for one in THRESHOLDS]
    assert len({*numbered, *WITHOUT_NUMBER}) == len(numbered) + len(WITHOUT_NUMBER) == 13
    patterns = {rule.code: rule.pattern or "" for rule in RULES}
    for pattern, code in [*((one.pattern, one.code) for one in THRESHOLDS), *WITHOUT_NUMBER.items()]:
        assert pattern in patterns[code]


def test_alarms_on_healthy_training_are_those_of_the_evidence():
    rows = [row for row in json.loads(EVIDENCE.read_text())["healthy"] if not row["real"]]
    steps = sum(row["steps"] for row in rows)
    alarms = sum((Counter(row["manuals"]) for row in rows), Counter())
    counted = {one.pattern: round(1e6 * alarms[one.pattern] / steps) for one in THRESHOLDS}
    assert {one.pattern: one.alarms for one in THRESHOLDS} == counted


def test_the_first_crossing_is_remembered():
    manuals = ManualThresholds()
    for number in range(200):
        manuals.see(step(number))
    found = manuals.crossings[EXPLOSION]
    assert (found.judged, found.crossed, found.first_step, found.last_step) == (100, 1, SPIKE_AT, SPIKE_AT)
    assert found.first_value == pytest.approx(3)


def test_a_norm_that_is_no_number_is_an_explosion_and_spoils_nothing():
    manuals = ManualThresholds()
    for number in range(PAST + 20):
        norm = math.nan if number in (3, 110) else 1.0
        manuals.see(StepRecord(1, number, 1.5, True, grad_norm=norm))
    assert manuals.crossings[EXPLOSION].crossed == 2
    assert manuals.crossings[VANISHING].crossed == 0


@pytest.fixture
def run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    writer = RunWriter(tmp_path / "run")
    writer.write(RunRecord(1, "the-run", 1.5, "train", "0.1"))
    writer.write(AttemptRecord(1, 1.5, 2, 0, tuple(WorkerFacts(rank, "node", rank, "cpu") for rank in range(2))))
    for number in range(200):
        writer.write(step(number))
    writer.write(EndRecord(1, 199, 1.5, 200, 200, 0))
    writer.close()
    return "run"


def diagnose(capsys, *arguments):
    code = cli.main(["diagnose", *arguments])
    return code, capsys.readouterr().out


def test_they_are_told_beside_the_findings_and_change_no_verdict(run, capsys):
    code, plain = diagnose(capsys, run)
    assert "manuals" not in plain
    again, out = diagnose(capsys, run, "--thresholds", NAME)
    assert (again, out.splitlines()[0]) == (code, plain.splitlines()[0])
    section = " ".join(out[out.index("by the manuals'") :].split())
    assert section.startswith("by the manuals' own thresholds (remarks, asked for with --thresholds manuals")
    assert (
        "Gradient Explosion: gradient norm (GSS) above 2 times its mean over 100 readings, or NaN, 1 times of 100"
        in (section)
    )
    assert (
        f"first at step 120 (3); healthy training: {EXPLOSION.alarms:,} in a million steps; our rule: UN401" in section
    )
    assert "never crossed: Sudden Drop, Persistently Low, Abnormally High, Gradient Vanishing" in section
    assert "no number in the manuals: Gradual Divergence (direction)" in section


def test_they_are_told_as_json_and_for_an_issue(run, capsys):
    assert "manual_thresholds" not in json.loads(diagnose(capsys, run, "--json")[1])
    found = json.loads(diagnose(capsys, run, "--json", "--thresholds", NAME)[1])["manual_thresholds"]
    assert [one["pattern"] for one in found if one["crossed"]] == ["Gradient Explosion"]
    assert found[3]["healthy_alarms_per_million_steps"] == EXPLOSION.alarms
    assert "- Gradient Explosion: gradient norm" in diagnose(capsys, run, "--markdown", "--thresholds", NAME)[1]


def test_explain_says_what_each_is_worth(capsys):
    cli.main(["explain", "UN401"])
    out = " ".join(capsys.readouterr().out.split())
    assert f"On healthy training it alarms at {EXPLOSION.alarms:,} of a million steps." in out
    cli.main(["explain", "UN403"])
    assert "Persistent Oscillation: the manual gives no number." in capsys.readouterr().out


def test_run_hands_them_to_the_job():
    assert parse(["--thresholds", NAME, "--", "python"]).options == {"--thresholds": NAME}
    assert VARIABLE == "UNISONO_THRESHOLDS"


@pytest.mark.parametrize(
    "command", [("run", "--thresholds", "mine", "--", "python"), ("diagnose", "x", "--thresholds", "mine")]
)
def test_no_others_are_known(command, capsys):
    assert cli.main([*command]) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert "mine" in err
    assert NAME in err


@pytest.mark.parametrize(("value", "lines"), [("", 0), (NAME, 4)])
def test_a_running_job_tells_them_in_the_end(value, lines, monkeypatch):
    monkeypatch.setenv(VARIABLE, value)
    diagnosis = LiveDiagnosis(Console(), (), None)
    for number in range(200):
        diagnosis.see(step(number))
    assert len(diagnosis.remarks()) == lines
    assert lines == 0 or "first at step 120 (3)" in diagnosis.remarks()[1]
