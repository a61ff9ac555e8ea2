"""What became of each finding of one run in another: gone, still there, new, or not to be told."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from unisono.records.finding import Finding
from unisono.show.analysis.checkup import count, strict
from unisono.show.analysis.run_digest import Examined
from unisono.show.text.findings import spoken_ranks

GONE, STILL, MOVED, AGAIN, MILDER, UNTOLD, NEW, SEEN_NOW = (
    *("gone", "still-there", "moved", "came-again"),
    *("information-now", "cannot-tell", "new", "seen-only-now"),
)
"""`moved`: it names entirely other ranks. `came-again`: it was there in the second run, too, and was resolved.
`seen-only-now`: the first run could not have shown it."""


@dataclass(frozen=True, slots=True)
class FindingChange:
    code: str
    status: str
    first: Finding | None = None
    second: Finding | None = None
    """`None` in either: the run does not have it, or only as a symptom of another one."""

    remarks: tuple[str, ...] = ()
    checked_steps: int | None = None
    """Of what is gone: steps of the second run up to the last check."""

    waits: bool = False
    """Of what cannot be told: a longer second run may tell."""

    @property
    def newest(self) -> Finding:
        """As the second run has it, else as the first one had it."""
        found = self.second or self.first
        if found is None:
            raise ValueError(f"no run has {self.code}")
        return found

    def as_dict(self) -> dict[str, Any]:
        first, second = (None if found is None else strict(found.as_dict()) for found in (self.first, self.second))
        remarks = list(self.remarks)
        return {"code": self.code, "status": self.status, "remarks": remarks, "first": first, "second": second}


def changes(first: Examined, second: Examined) -> tuple[FindingChange, ...]:
    """Of all findings above information in either run, in the order of the runs' own lists."""
    before, now = first.faults(), second.faults()
    fates = [_fate(finding, first, second) for finding in before.values()]
    return (*fates, *(_arrival(finding, first, second) for code, finding in now.items() if code not in before))


def _fate(finding: Finding, first: Examined, second: Examined) -> FindingChange:
    code, there = finding.code, second.finding(finding.code)
    if there is not None:
        return _met_again(finding, there)
    if code in second.held:
        cause = second.explained_by(code)
        status = MILDER if second.held[code] == "info" else STILL
        return FindingChange(code, status, finding, remarks=(f"a symptom of {cause} now",) if cause else ())
    if second.checkup.checks.get(code) != "passed":
        return FindingChange(code, UNTOLD, finding, remarks=(_unchecked(code, second, "second"),))
    too_early = _ended_too_early(finding, first, second)
    if too_early:
        return FindingChange(code, UNTOLD, finding, remarks=(too_early,), waits=True)
    resolved = ("it had been resolved in the first run already",) if finding.state == "resolved" else ()
    return FindingChange(code, GONE, finding, remarks=resolved, checked_steps=_checked(code, second))


def _met_again(before: Finding, now: Finding) -> FindingChange:
    remarks = tuple(_differences(before, now))
    if not now.at_least("warning"):
        return FindingChange(now.code, MILDER, before, now, remarks)
    if now.state == "resolved":
        return FindingChange(now.code, AGAIN, before, now, remarks)
    has_moved = bool(before.ranks and now.ranks) and not set(before.ranks) & set(now.ranks)
    return FindingChange(now.code, MOVED if has_moved else STILL, before, now, remarks)


def _differences(before: Finding, now: Finding) -> list[str]:
    told = []
    if before.ranks != now.ranks:
        told.append(f"{spoken_ranks(before) or 'nobody named'} before, {spoken_ranks(now) or 'nobody named'} now")
    if before.severity != now.severity:
        told.append(f"was {before.severity}, is {now.severity}")
    if before.first_step != now.first_step:
        told.append(f"began at step {before.first_step:,} before, at step {now.first_step:,} now")
    if before.state == "resolved" and now.state == "open":
        told.append("had been resolved in the first run")
    if before.causes and now.causes and before.causes[0].slug != now.causes[0].slug:
        told.append(f"most likely cause before: {before.causes[0].text}; now: {now.causes[0].text}")
    return told


def _arrival(finding: Finding, first: Examined, second: Examined) -> FindingChange:
    """Of a fault that was none in the first run."""
    code = finding.code
    cause = first.explained_by(code)
    if cause is not None and first.held.get(code) != "info":
        return FindingChange(code, STILL, None, finding, (f"it was a symptom of {cause} in the first run",))
    if code in first.held:
        return FindingChange(code, NEW, first.finding(code), finding, ("it was only information in the first run",))
    if first.checkup.checks.get(code) != "passed":
        return FindingChange(code, SEEN_NOW, None, finding, (_unchecked(code, first, "first"),))
    shown = second.shown[code]
    if first.longest < shown.steps or first.last_passed[code] < finding.first_step:
        checked = f"the first run was checked for it up to step {first.last_passed[code]:,} only"
        return FindingChange(code, SEEN_NOW, None, finding, (checked,))
    return FindingChange(code, NEW, None, finding)


def _unchecked(code: str, run: Examined, which: str) -> str:
    needs = run.checkup.checks.get(code, "").partition(": needs ")[2]
    return f"{code} could not be checked in the {which} run" + (f": it needs {needs}" if needs else "")


def _ended_too_early(finding: Finding, first: Examined, second: Examined) -> str:
    """Why a check that passed proves nothing yet; empty where it does."""
    code, shown, steps = finding.code, first.shown[finding.code], second.curves.steps
    if second.longest < shown.steps:
        length = f"the second run is shorter ({count(second.longest, 'step')})"
        return f"{length} than {code} took to show ({count(shown.steps, 'step')})"
    if not steps or steps[-1] < shown.step:
        end = f"the second run ends at step {steps[-1]:,}" if steps else "the second run has no steps"
        return f"{end}, and {code} showed at step {shown.step:,} of the first"
    if second.last_passed[code] < finding.first_step:
        checked = f"the second run was checked for {code} up to step {second.last_passed[code]:,}"
        return f"{checked}, and it began at step {finding.first_step:,} of the first"
    return ""


def _checked(code: str, run: Examined) -> int:
    return max(0, run.last_passed[code] - run.curves.steps.start + 1)
