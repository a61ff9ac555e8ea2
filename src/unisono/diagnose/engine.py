"""Runs the rules over a stream of records and puts their findings in order: one fault, one leading finding.

The same class listens live and replays a file, record by record, so both give the same findings.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

from unisono.common.own_faults import described
from unisono.diagnose.heard import Heard, Hearing
from unisono.diagnose.rules import RULES, Rule
from unisono.diagnose.rules.shared.rule import Case
from unisono.diagnose.rules.shared.run_state import RunState
from unisono.diagnose.rules.shared.statistical_rule import Statistical
from unisono.diagnose.rules.un001_monitor_degraded import FAILED_RULES, MonitorDegraded
from unisono.records import RECORD_TYPES, Record
from unisono.records.finding import SEVERITIES, Finding

Look: TypeAlias = tuple[Rule, Callable[[Any, RunState], None]]


class Diagnosis:
    def __init__(self, ignore: Sequence[str] = ()) -> None:
        self.run_state, self._hearing = RunState(), Hearing()
        self.ignore = frozenset(ignore)
        self._rules: list[Rule] = [rule() for rule in RULES]
        self._looks = {kind: _methods(self._rules, f"on_{kind}") for kind in RECORD_TYPES}
        statistical = [rule for rule in self._rules if isinstance(rule, Statistical)]
        exact = [rule for rule in self._rules if rule not in statistical]
        self._calm_looks = [*_methods(exact, "on_step"), *_methods(statistical, "hear")]
        self._said: dict[str, str] = {}
        self._failed: dict[str, str] = {}
        """Rules that raised, and what: they are asked no more."""

        self._untellable: set[str] = set()
        """Those of them that raised when asked for their finding."""

        self._unasked: set[str] = set()
        """Rules that raised when asked whether they would like to hear more."""

        self.left_out = 0
        """Records that the run's state could not take in."""

    def see(self, record: Record) -> None:
        run_state = self.run_state
        try:
            run_state.see(record)
            self._hearing.see(record)
        except Exception:
            self.left_out += 1
            return
        calm = record.kind == "step" and run_state.comparable.calm
        for rule, look in self._calm_looks if calm else self._looks[record.kind]:
            try:
                look(record, run_state)
            except Exception as error:
                self._switch_off(rule, error, max(0, run_state.step))

    def news(self, is_ripe: Callable[[Finding], bool] = lambda finding: True) -> list[Finding]:
        """Leading findings that have not been told yet, or have become graver since; not those that are to wait."""
        fresh = [found for found in self.findings() if _graver(found.severity, self._said.get(found.code))]
        fresh = [found for found in fresh if is_ripe(found)]
        self._said |= {found.code: found.severity for found in fresh}
        return fresh

    def findings(self) -> list[Finding]:
        """The leading findings, gravest and earliest first; those they explain are attached to them."""
        # From the last to the first: the first tells of those that fail at this.
        told = [(rule.code, finding) for rule in reversed(self._rules) if (finding := self._finding(rule))]
        found = dict(reversed(told))
        explained = explain(found, {rule.code: rule.case for rule in self._rules if rule.case is not None})
        leading = [
            _with_symptoms(finding, [found[code] for code in sorted(explained) if explained[code] == finding.code])
            for code, finding in found.items()
            if code not in explained and code not in self.ignore
        ]
        return sorted(leading, key=lambda one: (one.state != "open", -SEVERITIES.index(one.severity), one.first_step))

    @property
    def suspicious(self) -> bool:
        """Some rule would like to hear more. One that raises is not asked this again, and finds what it finds."""
        for rule in self._rules:
            try:
                if rule.code not in self._unasked and rule.suspicious:
                    return True
            except Exception:
                self._unasked.add(rule.code)
                raise
        return False

    def muted(self) -> dict[str, int]:
        """Codes that were ignored although their rule found something, with the first step."""
        cases = {rule.code: rule.case for rule in self._rules if rule.code in self.ignore}
        return {code: case.first_step for code, case in cases.items() if case is not None}

    def checks(self) -> dict[str, str]:
        return {rule.code: self._check(rule) for rule in self._rules}

    def remarks(self) -> dict[str, str]:
        """What rules say beside their findings, by code."""
        return {rule.code: rule.remark for rule in self._rules if rule.remark and rule.code not in self.ignore}

    def heard(self, ended: str | None = None) -> Heard:
        """What a verdict can rest on.

        :param ended: How the job ended, where that is known better than from the records.
        """
        off = {*self.ignore, *self._failed}
        wanting = [rule for rule in self._rules if not rule.checks and rule.code not in off]
        return self._hearing.conclude(wanting, self.run_state, ended or self._hearing.ended(time.time()))

    def held(self) -> dict[str, str]:
        """What is held against the run so far, symptoms included: codes with their severities."""
        return {rule.code: rule.case.severity for rule in self._rules if rule.case is not None}

    def last_passed(self) -> dict[str, int]:
        """The last step at which each check found nothing, where it ever did."""
        return {rule.code: rule.last_good for rule in self._rules if rule.last_good is not None}

    def last_healthy_step(self) -> int | None:
        """The last step before the first grave finding; the newest step where there is none."""
        grave = [found for found in self.findings() if found.at_least("warning")]
        if not grave:
            return self.run_state.step if self.run_state.steps else None
        codes = {found.code for found in grave}
        last = min(_last_good(rule.case) for rule in self._rules if rule.case is not None and rule.code in codes)
        return last if last >= 0 else None

    def _finding(self, rule: Rule) -> Finding | None:
        if rule.code in self._untellable:
            return None
        try:
            return rule.finding(self.run_state)
        except Exception as error:
            # When it is asked differs between a live run and its replay; when the case began does not.
            self._switch_off(rule, error, 0 if rule.case is None else rule.case.first_step)
            self._untellable.add(rule.code)
            rule.case = None
            return None

    def _switch_off(self, rule: Rule, error: Exception, step: int) -> None:
        """A fault of ours stays one fault: this rule looks at nothing more, what it has found stays, others go on."""
        if rule.code in self._failed:
            return
        self._failed[rule.code] = f"at step {step:,} ({described(error)})"
        self._looks = {kind: _without(rule, looks) for kind, looks in self._looks.items()}
        self._calm_looks = _without(rule, self._calm_looks)
        own = next(other for other in self._rules if isinstance(other, MonitorDegraded))
        with contextlib.suppress(Exception):  # the one that fails may be this one
            own.rule_failed(step, self.run_state, self._failed)

    def _check(self, rule: Rule) -> str:
        if rule.code in self.ignore:
            return "off"
        if rule.code in self._failed:
            return f"off: failed {self._failed[rule.code]}"
        if rule.case is not None:
            return "found"
        return "passed" if rule.checks else f"not-yet-possible: needs {rule.needs}"


def diagnose(records: Iterable[Record], ignore: Sequence[str] = ()) -> Diagnosis:
    diagnosis = Diagnosis(ignore)
    for record in records:
        diagnosis.see(record)
    return diagnosis


def _methods(rules: Iterable[Rule], name: str) -> list[Look]:
    return [(rule, getattr(rule, name)) for rule in rules if hasattr(rule, name)]


def _without(rule: Rule, looks: Sequence[Look]) -> list[Look]:
    return [look for look in looks if look[0] is not rule]


def _graver(severity: str, said: str | None) -> bool:
    return said is None or SEVERITIES.index(severity) > SEVERITIES.index(said)


def _last_good(case: Case) -> int:
    before = case.first_step - 1
    return before if case.last_good is None else min(case.last_good, before)


def explain(found: Mapping[str, Finding], cases: Mapping[str, Case]) -> dict[str, str]:
    """Each finding that another one explains, and by which: the cause of a cause where they form a chain.

    What began earlier explains what began later, so that two that explain each other do not both disappear.
    """
    direct: dict[str, str] = {}
    for cause in sorted(found, key=lambda code: (found[code].first_step, code)):
        for symptom in _EXPLAINS[cause]:
            covered = symptom in found and _covers(found[cause], found[symptom], cases[cause])
            if covered and symptom not in direct and _root(cause, direct) != symptom:
                direct[symptom] = cause
    return {symptom: _root(symptom, direct) for symptom in direct}


def _covers(cause: Finding, symptom: Finding, case: Case) -> bool:
    """A finding explains only what is no graver than itself, came when it may have been there, and was not over."""
    # Who is left out is left out for what is wrong with it, whichever was noticed first.
    left_out = symptom.code == "UN601" and bool(set(cause.ranks) & set(symptom.ranks))
    too_early = not left_out and case.last_good is not None and symptom.first_step <= _last_good(case)
    ended = symptom.state == "resolved" and symptom.last_step < cause.first_step
    # That a rule of ours failed has no cause in the training.
    own_fault = FAILED_RULES in symptom.evidence
    return not too_early and not ended and not own_fault and cause.at_least(symptom.severity)


def _root(code: str, direct: Mapping[str, str]) -> str:
    while code in direct:
        code = direct[code]
    return code


def _with_symptoms(finding: Finding, symptoms: list[Finding]) -> Finding:
    """A fault that is gone stays open as long as the damage that it has done."""
    if not symptoms:
        return finding
    told = "; ".join(f"{symptom.code} {symptom.slug} since step {symptom.first_step}" for symptom in symptoms)
    damaged = any(symptom.state == "open" and symptom.at_least("warning") for symptom in symptoms)
    return replace(
        finding,
        evidence={**finding.evidence, "symptoms": told},
        state="open" if damaged else finding.state,
        last_step=max(one.last_step for one in (finding, *symptoms)) if damaged else finding.last_step,
    )


_EXPLAINS = {rule.code: rule.explains for rule in RULES}
