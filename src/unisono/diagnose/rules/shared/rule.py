"""What a rule is: a title, a meaning, causes and remedies, and what it looks for in the stream of records."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from unisono.diagnose.rules.shared.run_state import RunState, minority, spoken
from unisono.records.finding import SEVERITIES, Cause, Finding

Number = float | int | str
STATISTICAL = (
    *("UN104", "UN105", "UN401", "UN402", "UN403", "UN405", "UN406", "UN407", "UN408", "UN409", "UN410", "UN411"),
    *("UN412", "UN501", "UN503", "UN601"),
)
"""Findings about how numbers behave. Whatever is exactly known to be wrong may be behind them."""


CLOSE = 0.25
"""A cause is worth acting on if it is hardly less likely than the first."""


@dataclass(slots=True)
class Case:
    """What a rule holds against a run."""

    severity: str
    first_step: int
    last_step: int
    last_good: int | None
    """The last step at which the same check had passed; `None` if it never had."""

    ranks: set[int] = field(default_factory=set)
    causes: dict[str, float] = field(default_factory=dict)
    evidence: dict[str, Number] = field(default_factory=dict)
    whys: dict[str, str] = field(default_factory=dict)
    """Sentences, by what they are about."""

    cleared: int = 0


class Rule:
    """The docstring of a rule is its title.

    A rule looks at records through methods named after their kinds: `on_step`, `on_facts`, `on_replicas`,
    `on_coverage`, `on_streams`, `on_batch`, `on_decision`, `on_validation`, `on_note`, `on_attempt`, each
    `(record, run_state) -> None`. Workers are positions in W fields there, which `run_state.ranks` turns into numbers.
    """

    code: ClassVar[str]
    slug: ClassVar[str]
    severity: ClassVar[str]
    """The highest this rule may give."""

    pattern: ClassVar[str | None] = None
    """What the manuals call it."""

    source: ClassVar[str]
    """Where this is known from: a manual's section, a public report, a paper."""

    meaning: ClassVar[str]
    """What it means and how it is found, for `unisono explain`: a short paragraph for an engineer in a hurry."""

    correction: ClassVar[str] = ""
    """Where the manuals' advice is wrong, and what is right."""

    needs: ClassVar[str]
    """What must have been seen before this can be checked."""

    causes: ClassVar[Mapping[str, str]]
    """Slug to text, the usual order first."""

    remedies: ClassVar[Mapping[str, Sequence[str]]]
    """For each cause what to do, in the imperative, naming the call or argument to change."""

    explains: ClassVar[tuple[str, ...]] = ()
    """Codes of findings that are symptoms of this one."""

    cleared_after: ClassVar[int] = 3
    """Checks in a row without the fault after which it counts as resolved."""

    def __init__(self) -> None:
        self.case: Case | None = None
        self.checks = 0
        self.last_good: int | None = None
        """The last step at which the check was possible and found nothing."""

        self.not_before: int | None = None
        """Steps before this one, which may still be on their way, have no say any more in this attempt."""

    @property
    def suspicious(self) -> bool:
        """Something may be going on: worth listening more closely, no word yet."""
        return False

    @property
    def remark(self) -> str:
        """Worth knowing and no finding; empty where there is nothing to say."""
        return ""

    @classmethod
    def title(cls) -> str:
        return (cls.__doc__ or cls.slug).strip()

    def see(self, record: Any, run_state: RunState) -> None:
        if record.kind == "attempt":
            self.not_before = None
        look = getattr(self, "on_" + record.kind, None)
        if look is not None:
            look(record, run_state)

    def report(
        self,
        step: int,
        run_state: RunState,
        *,
        why: str,
        causes: Mapping[str, float],
        workers: Sequence[int] = (),
        held_W: Sequence[Any] = (),
        ranks: Sequence[int] = (),
        severity: str | None = None,
        evidence: Mapping[str, Number] | None = None,
        since: int | None = None,
        good: int | None = None,
        about: str = "",
    ) -> None:
        """The fault was seen at `step`: opens a case or adds to it. The latest evidence and the gravest word count.

        :param causes: Slug of a cause to its confidence in (0, 1].
        :param workers: The positions of those at fault.
        :param held_W: Instead of `workers`: what each of them holds. Those in the minority are at fault.
        :param ranks: Instead of `workers`: the launcher's numbers of those at fault.
        :param since: The step at which it began, where that is known to be earlier.
        :param good: The last step without it, where that is not the last `passed` one.
        :param about: Sentences about different things stand side by side; of those about the same the last one counts.
        """
        self.checks += 1
        severity, evidence = severity or self.severity, dict(evidence or {})
        case = self.case
        if case is None:
            last_good = self.last_good if good is None else good
            case = self.case = Case(severity, step if since is None else since, step, last_good)
        workers = workers or minority(held_W)
        if not workers and len(held_W) == 2:
            evidence["undecidable"] = f"between {spoken(run_state.ranks((0, 1)))}"
            why += f"; undecidable {evidence['undecidable']}"
        case.severity = max(case.severity, severity, key=SEVERITIES.index)
        if severity != "info":
            run_state.hold(self.code)
        case.last_step = max(case.last_step, step)
        case.ranks |= {*run_state.ranks(workers), *ranks}
        case.causes = case.causes | {slug: max(sure, case.causes.get(slug, 0.0)) for slug, sure in causes.items()}
        case.evidence |= evidence
        case.whys[about] = why
        case.cleared = 0

    def passed(self, step: int) -> None:
        """The check was possible at `step` and found nothing."""
        self.checks += 1
        self.last_good = step
        if self.case is not None and (self.not_before is None or step >= self.not_before):
            self.case.cleared += 1

    def excuse(self, why: str) -> None:
        """What was seen so far turned out to be healthy."""
        if self.case is not None:
            self.case.severity, self.case.whys, self.case.cleared = "info", {"": why}, self.cleared_after

    def finding(self, run_state: RunState) -> Finding | None:
        case = self.case
        if case is None:
            return None
        ordered = sorted(case.causes, key=lambda slug: (-case.causes[slug], list(self.causes).index(slug)))
        ranks = tuple(sorted(case.ranks))
        return Finding(
            code=self.code,
            slug=self.slug,
            title=self.title(),
            severity=case.severity,
            state="resolved" if case.cleared >= self.cleared_after else "open",
            first_step=case.first_step,
            last_step=case.last_step,
            ranks=ranks,
            where=run_state.where(ranks),
            why="; ".join(case.whys.values()),
            evidence=dict(case.evidence),
            causes=tuple(Cause(slug, self.causes[slug], round(case.causes[slug], 2)) for slug in ordered),
            remedies=tuple(dict.fromkeys(step for slug in self._likely(ordered) for step in self.remedies[slug])),
            pattern=self.pattern,
        )

    def _likely(self, ordered: Sequence[str]) -> list[str]:
        """The causes worth acting on: what is far less likely than the first would only distract."""
        sure = {} if self.case is None else self.case.causes
        return [slug for slug in ordered if sure[slug] >= sure[ordered[0]] - CLOSE]
