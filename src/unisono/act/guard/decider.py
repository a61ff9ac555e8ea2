"""The first worker decides: what the workers reported, against what was usual of late, through the policy."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

from unisono.act.guard.options import Guard
from unisono.act.guard.policy import Decision, Policy
from unisono.act.guard.step_state import Situation, Watch
from unisono.exchange.guard_messages import ENDINGS, RankReport, RoundResult
from unisono.records.finding import Finding


class Decider:
    def __init__(
        self, ranks: Sequence[int], options: Guard, policy: Policy, findings: Callable[[], Sequence[Finding]]
    ) -> None:
        self.apart: tuple[int, ...] = ()
        """Ranks whose decisions so far are not the first worker's."""

        self._ranks, self._options, self._policy, self._findings = tuple(ranks), options, policy, findings
        self._watches: dict[int, Watch] = {}
        """Each synchronised pass of a step has its own past."""

        self._skips = False
        """The step that goes on is skipped already, with whatever is added to its gradients."""

        self._checked: int | None = None
        self._agreed = -1

    def consider(self, reports: Sequence[RankReport], nth: int, left_out: bool | None = None) -> RoundResult:
        """
        :param nth: Which synchronised pass of its step this is.
        :param left_out: The step is over, and was left out or not.
        """
        step = reports[0].step
        named = zip(self._ranks, reports, strict=True)
        self.apart = tuple(rank for rank, report in named if report.chain != reports[0].chain)
        leaving = any(report.leaving for report in reports)
        if leaving or self.apart:
            return RoundResult(step, quiet=False, ends=ENDINGS[1] if leaving else ENDINGS[2])
        if nth and self._skips:
            return RoundResult(step, quiet=False)
        watch = self._watches.setdefault(nth, Watch(len(self._ranks), self._ranks))
        held = sorted(set.intersection(*(set(report.held) for report in reports)))
        situation = self._situation(step, reports, watch, held)
        if left_out is not None:
            situation = self._as_on_device(situation, left_out)
        spike = self._options.spike(situation)
        decision = self._policy.decide(situation)
        watch.learn(situation, spike)
        self._skips = decision is not None and "skip" in decision.actions and not decision.dry
        if decision is not None and "resync" in decision.actions:
            self._checked = step
        return RoundResult(
            step,
            quiet=spike is None and not _grave(decision),
            agreed=self._newly_agreed(held),
            late=all(report.may_be_late for report in reports),
            norm_limit=self._limit_on_device(watch),
            decision=b"" if decision is None else decision.to_json().encode(),
        )

    @property
    def broken_rows(self) -> dict[str, str]:
        """Rows that failed when they were asked, and how."""
        return self._policy.broken

    @property
    def used_up(self) -> str:
        """Why a roll-back was not made, in words; empty where all were."""
        return self._policy.used_up

    def _limit_on_device(self, watch: Watch) -> float:
        """Beyond which a norm is extreme whatever the losses do."""
        share, limit = watch.norm.ratio(1.0), self._options.norm_limit
        return limit.with_losses / share if share and limit is not None else math.inf

    def _as_on_device(self, situation: Situation, left_out: bool) -> Situation:
        """The policy says what the device has done, where losses are not judged and the limit is the high one."""
        ratio, limit = situation.norm_ratio, self._options.norm_limit
        if ratio is not None and limit is not None:
            beyond = math.nextafter(limit.with_losses, math.inf)
            ratio = max(ratio, beyond) if left_out else min(ratio, limit.with_losses)
        nobody = (None,) * len(situation.loss_score_W)
        return replace(situation, risen=True, norm_ratio=ratio, loss_score_W=nobody)

    def charge(self, decision: Decision) -> None:
        """What was not counted beforehand turned out to be needed."""
        self._policy.charge(decision.step)

    def _situation(self, step: int, reports: Sequence[RankReport], watch: Watch, held: list[int]) -> Situation:
        squares = [report.share_square for report in reports]
        known = [square for square in squares if square is not None]
        self._checked = step if self._checked is None else self._checked
        return watch.situation(
            step,
            [report.loss for report in reports],
            [report.finite for report in reports],
            math.sqrt(sum(known)) or None if len(known) == len(squares) else None,
            scaled=any(report.scaled for report in reports),
            findings=[finding for finding in self._findings() if finding.state == "open"],
            restorable=held,
            since_check=step - self._checked,
        )

    def _newly_agreed(self, held: list[int]) -> int | None:
        if not held or held[-1] <= self._agreed:
            return None
        self._agreed = held[-1]
        return self._agreed


def _grave(decision: Decision | None) -> bool:
    """Whether a checkpoint taken now should not be trusted."""
    return decision is not None and decision.counted
