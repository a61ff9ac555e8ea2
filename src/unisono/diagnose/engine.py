"""Runs the rules over a stream of records and puts their findings in order: one fault, one leading finding.

The same class listens live and replays a file, record by record, so both give the same findings.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from unisono.diagnose.rules import RULES, Rule
from unisono.diagnose.rules.shared.rule import Case
from unisono.diagnose.rules.shared.run_state import RunState
from unisono.diagnose.rules.shared.statistical_rule import Statistical
from unisono.records import RECORD_TYPES, Record
from unisono.records.finding import SEVERITIES, Finding


class Diagnosis:
    def __init__(self, ignore: Sequence[str] = ()) -> None:
        self.run_state = RunState()
        self.ignore = frozenset(ignore)
        self._rules: list[Rule] = [rule() for rule in RULES]
        self._looks = {kind: _methods(self._rules, f"on_{kind}") for kind in RECORD_TYPES}
        statistical = [rule for rule in self._rules if isinstance(rule, Statistical)]
        exact = [rule for rule in self._rules if rule not in statistical]
        self._calm_looks = [*_methods(exact, "on_step"), *_methods(statistical, "hear")]
        self._said: dict[str, str] = {}

    def see(self, record: Record) -> None:
        run_state = self.run_state
        run_state.see(record)
        calm = record.kind == "step" and run_state.comparable.calm
        for look in self._calm_looks if calm else self._looks[record.kind]:
            look(record, run_state)

    def news(self, is_ripe: Callable[[Finding], bool] = lambda finding: True) -> list[Finding]:
        """Leading findings that have not been told yet, or have become graver since; not those that are to wait."""
        fresh = [found for found in self.findings() if _graver(found.severity, self._said.get(found.code))]
        fresh = [found for found in fresh if is_ripe(found)]
        self._said |= {found.code: found.severity for found in fresh}
        return fresh

    def findings(self) -> list[Finding]:
        """The leading findings, gravest and earliest first; those they explain are attached to them."""
        found = {rule.code: finding for rule in self._rules if (finding := rule.finding(self.run_state))}
        explained = explain(found, {rule.code: rule.case for rule in self._rules if rule.case is not None})
        leading = [
            _with_symptoms(finding, [found[code] for code in sorted(explained) if explained[code] == finding.code])
            for code, finding in found.items()
            if code not in explained and code not in self.ignore
        ]
        return sorted(leading, key=lambda one: (one.state != "open", -SEVERITIES.index(one.severity), one.first_step))

    @property
    def suspicious(self) -> bool:
        """Some rule would like to hear more."""
        return any(rule.suspicious for rule in self._rules)

    def muted(self) -> dict[str, int]:
        """Codes that were ignored although their rule found something, with the first step."""
        cases = {rule.code: rule.case for rule in self._rules if rule.code in self.ignore}
        return {code: case.first_step for code, case in cases.items() if case is not None}

    def checks(self) -> dict[str, str]:
        return {rule.code: self._check(rule) for rule in self._rules}

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

    def _check(self, rule: Rule) -> str:
        if rule.code in self.ignore:
            return "off"
        if rule.case is not None:
            return "found"
        return "passed" if rule.checks else f"not-yet-possible: needs {rule.needs}"


def diagnose(records: Iterable[Record], ignore: Sequence[str] = ()) -> Diagnosis:
    diagnosis = Diagnosis(ignore)
    for record in records:
        diagnosis.see(record)
    return diagnosis


def _methods(rules: Iterable[Rule], name: str) -> list[Callable[[Any, RunState], None]]:
    return [getattr(rule, name) for rule in rules if hasattr(rule, name)]


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
    return not too_early and not ended and cause.at_least(symptom.severity)


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
