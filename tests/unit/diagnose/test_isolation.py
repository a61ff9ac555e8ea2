"""A rule that raises is switched off alone: everything else is found as if it were not there, and it is said once."""

import pytest

from consoles import Console
from unisono.diagnose import engine
from unisono.diagnose.engine import Diagnosis, diagnose
from unisono.diagnose.rules import RULES
from unisono.diagnose.rules.shared.run_state import RunState
from unisono.diagnose.rules.un001_monitor_degraded import MonitorDegraded
from unisono.diagnose.rules.un102_overlapping_shards import OverlappingShards
from unisono.diagnose.rules.un303_optimizer_differs import OptimizerDiffers
from unisono.diagnose.rules.un404_non_finite import NonFinite
from unisono.diagnose.rules.un408_dispersion_spike import DispersionSpike
from unisono.diagnose.rules.un501_outlier_worker import OutlierWorker
from unisono.monitor.live_diagnosis import LiveDiagnosis
from unit.diagnose.test_engine import FAULTS, run

RECORDS, _ = FAULTS["NaN on one"]
METHODS = {
    "on_step": OverlappingShards,
    "on_attempt": DispersionSpike,
    "on_facts": OptimizerDiffers,
    "hear": OutlierWorker,
    "finding": OutlierWorker,
    "passed": OptimizerDiffers,
}


class Broken:
    """Raises whenever it is asked, and counts that."""

    def __init__(self):
        self.asked = 0

    def __call__(self, *_arguments, **_options):
        self.asked += 1
        raise ZeroDivisionError("division by zero")


def broken(monkeypatch, rule, method):
    fault = Broken()
    monkeypatch.setattr(rule, method, lambda *_arguments, **_options: fault(), raising=False)
    return fault


def others(findings, *codes):
    return [found for found in findings if found.code not in ("UN001", *codes)]


@pytest.mark.parametrize(("method", "rule"), METHODS.items(), ids=METHODS)
def test_one_rule_fails_and_everything_else_goes_on(monkeypatch, method, rule):
    usual, before = diagnose(RECORDS).findings(), diagnose(RECORDS).checks()
    fault = broken(monkeypatch, rule, method)
    found = diagnose(RECORDS)
    assert others(found.findings(), rule.code) == others(usual, rule.code)
    (degraded,) = [one for one in found.findings() if one.code == "UN001"]
    assert rule.code in degraded.evidence["failed_rules"]
    assert "ZeroDivisionError: division by zero, in test_isolation.py line" in degraded.why
    assert (degraded.state, degraded.severity) == ("open", "warning")
    checks = found.checks()
    assert checks.pop(rule.code).startswith("off: failed at step ")
    assert {code: checks[code] for code in checks if code != "UN001"} == {
        code: before[code] for code in before if code not in ("UN001", rule.code)
    }
    assert fault.asked == 1


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.code)
def test_any_rule_may_fail_at_every_step(monkeypatch, rule):
    before = diagnose(RECORDS).findings()
    fault = broken(monkeypatch, rule, "on_step")
    broken(monkeypatch, rule, "hear")
    found = diagnose(RECORDS)
    assert fault.asked
    # Its finding may have been the cause or a symptom of another one: what is named then stays the same.
    assert {(one.code, one.ranks) for one in others(before, rule.code)} <= {
        (one.code, one.ranks) for one in found.findings()
    }
    assert found.checks()[rule.code].startswith("off: failed at step")
    assert "UN001" in [one.code for one in found.findings()]


def test_what_a_rule_had_found_before_it_failed_stays(monkeypatch):
    records, (code, _, ranks) = FAULTS["learning rate on one"]
    (finding,) = diagnose(records).findings()
    diagnosis = Diagnosis()
    for record in records:
        if record.kind == "replicas":
            broken(monkeypatch, OptimizerDiffers, "on_step")
        diagnosis.see(record)
    assert [(one.code, one.ranks) for one in others(diagnosis.findings())] == [(code, ranks)]
    assert finding.code == code


def test_the_rule_that_tells_of_failures_may_fail_itself(monkeypatch):
    broken(monkeypatch, MonitorDegraded, "on_step")
    broken(monkeypatch, MonitorDegraded, "report")
    found = diagnose(RECORDS)
    assert [one.code for one in found.findings()] == ["UN404"]
    assert found.checks()["UN001"].startswith("off: failed")


def test_a_failure_is_no_symptom_of_a_rank_that_is_gone(monkeypatch):
    broken(monkeypatch, OptimizerDiffers, "on_step")
    found = diagnose(FAULTS["a worker died"][0]).findings()
    assert {"UN001", "UN502"} <= {one.code for one in found}


def test_a_record_that_the_state_cannot_take_in_is_left_out_and_counted(monkeypatch):
    taken = RunState.see

    def see(self, record):
        if getattr(record, "step", None) == 7:
            raise OverflowError
        taken(self, record)

    monkeypatch.setattr(RunState, "see", see)
    found = diagnose(RECORDS)
    assert (found.left_out, [one.code for one in found.findings()]) == (1, ["UN404"])


@pytest.mark.parametrize(("method", "rule"), METHODS.items(), ids=METHODS)
def test_live_and_replayed_say_the_same_of_it(monkeypatch, method, rule):
    fault = broken(monkeypatch, rule, method)
    console, got = Console(), []
    live = LiveDiagnosis(console, (), got.append)
    for record in RECORDS:
        live.see(record)
        live.tell()
    live.tell(last=True)
    assert fault.asked == 1
    assert {"UN001", "UN404"} <= {one.code for one in got}
    assert "\n".join(console.said).count(f"{rule.code} at step") == 1
    assert console.complaints == []
    assert [(one.code, one.why) for one in diagnose(RECORDS).findings()] == [
        (one.code, one.why) for one in live.findings
    ]


def test_a_rule_that_cannot_say_whether_it_is_suspicious_finds_as_before(monkeypatch):
    fault = Broken()
    usual = diagnose(RECORDS).findings()
    monkeypatch.setattr(NonFinite, "suspicious", property(lambda _rule: fault()))
    console = Console()
    live = LiveDiagnosis(console, (), None)
    for record in RECORDS:
        live.see(record)
        assert not live.suspicious
    live.tell(last=True)
    assert (fault.asked, len(console.complaints)) == (1, 1)
    assert live.findings == usual


def test_what_is_not_a_rule_may_fail_too(monkeypatch):
    console, got = Console(), []
    live = LiveDiagnosis(console, (), got.append)
    monkeypatch.setattr(engine, "explain", lambda *_: 1 / 0)
    for record in RECORDS:
        live.see(record)
        assert live.tell() is False
    assert "ZeroDivisionError" in console.complaints[0]
    monkeypatch.undo()
    live.tell(last=True)
    assert "UN404" in {one.code for one in got}


def test_it_is_not_said_that_a_check_which_failed_was_not_possible(monkeypatch):
    broken(monkeypatch, NonFinite, "on_step")
    found = diagnose(run(40, 0))
    assert "UN404" not in str(found.heard())
    assert [one.code for one in found.findings()] == ["UN001"]
