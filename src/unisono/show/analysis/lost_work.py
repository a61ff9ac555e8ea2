"""How much of the workers' time a fault has cost, as far as that can be known."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from math import fsum, inf
from statistics import median

from unisono.diagnose.rules.shared.run_state import spoken
from unisono.records import StepRecord
from unisono.records.finding import Finding

HOUR, MINUTE = 3600, 60


class Timesheet:
    """What the steps of a run took, and how many workers repeated what another did."""

    def __init__(self) -> None:
        self.workers = 0
        self.last_step = -1
        self.copies = 0
        """Workers with the same batch as one before them, when that was last seen."""

        self._seconds = array("d")

    def see(self, record: StepRecord) -> None:
        self.last_step = max(self.last_step, record.step)
        # Equal labels prove nothing by themselves; with equal indices they are what augmentation leaves unchanged.
        twins_W = record.same_content_W or (record.same_targets_W if record.same_indices_W else ())
        self.workers = max(map(len, (record.step_W, record.loss_W, record.norm_W, twins_W))) or self.workers
        if twins_W:
            copies = sum(first is not None and first != worker for worker, first in enumerate(twins_W))
            self.copies = copies or self.copies
        known = [seconds for seconds in record.step_W if seconds is not None and 0 <= seconds < inf]
        if known:
            self._seconds.append(fsum(known) / len(known))

    @property
    def seconds_per_step(self) -> float | None:
        return median(self._seconds) if self._seconds else None


@dataclass(frozen=True, slots=True)
class Loss:
    """What happened to the time of all workers from the first to the last step of a finding."""

    code: str
    first_step: int
    last_step: int
    worker_seconds: float | None
    """`None` where no step was timed."""

    share: float | None
    """What was lost of it, or at least lost; `None` where that is not known."""

    words: str


@dataclass(frozen=True, slots=True)
class Known:
    share: float
    words: str


def lost_work(findings: Iterable[Finding], times: Timesheet) -> list[Loss]:
    """For each warning or critical finding, the earliest first."""
    grave = [finding for finding in findings if finding.at_least("warning")]
    return [_loss(finding, times) for finding in sorted(grave, key=lambda one: (one.first_step, one.code))]


def spoken_time(worker_seconds: float) -> str:
    """`1.2 worker-hours`; the smaller units are for short trials."""
    for size, unit in ((HOUR, "hours"), (MINUTE, "minutes")):
        if worker_seconds >= size:
            return f"{worker_seconds / size:,.3g} worker-{unit}"
    return f"{worker_seconds:.3g} worker-seconds"


def _loss(finding: Finding, times: Timesheet) -> Loss:
    last = max(finding.first_step, times.last_step if finding.state == "open" else finding.last_step)
    seconds, steps = times.seconds_per_step, last - finding.first_step + 1
    known = KNOWN[finding.code](finding, times) if finding.code in KNOWN else None
    return Loss(
        code=finding.code,
        first_step=finding.first_step,
        last_step=last,
        worker_seconds=None if seconds is None else seconds * steps * times.workers,
        share=None if known is None else known.share,
        words=_unknown(finding) if known is None else known.words,
    )


def _unknown(finding: Finding) -> str:
    return "all of it in doubt" if finding.severity == "critical" else "what share of it was lost is not known"


def _repeated(finding: Finding, times: Timesheet) -> Known | None:
    if not times.copies:
        return None
    share = times.copies / times.workers
    return Known(share, f"{100 * share:.3g} % lost: {times.copies} of {times.workers} workers repeated another's batch")


def _worker_off(finding: Finding, times: Timesheet) -> Known | None:
    if not finding.ranks or not times.workers:
        return None
    share = min(1.0, len(finding.ranks) / times.workers)
    return Known(share, f"at least {100 * share:.3g} % lost, that of {spoken(finding.ranks)}; the rest is in doubt")


def _not_finite(finding: Finding, times: Timesheet) -> Known | None:
    """Where steering left out what was not finite, how often it did says more than the number of workers."""
    return _worker_off(finding, times) if "left_out_steps" not in finding.evidence else None


def _left_out(finding: Finding, times: Timesheet) -> Known | None:
    evidence = finding.evidence
    skipped, steps = evidence.get("skipped"), evidence.get("of_steps")
    if isinstance(skipped, int) and isinstance(steps, int):
        return Known(skipped / steps, f"about {100 * skipped / steps:.3g} % lost: steps that steering skipped")
    rate = evidence.get("rejected_share")
    if not isinstance(rate, float) or not times.workers:
        return None
    share = rate * min(1.0, len(finding.ranks) / times.workers)
    return Known(share, f"about {100 * share:.3g} % lost: steering left out {spoken(finding.ranks)}")


def _waited(finding: Finding, times: Timesheet) -> Known | None:
    lost, seconds = finding.evidence.get("seconds_lost_per_step"), times.seconds_per_step
    if not isinstance(lost, float) or not seconds:
        return None
    share = min(1.0, lost / seconds)
    return Known(share, f"{100 * share:.3g} % lost: all workers waited for {spoken(finding.ranks)}")


KNOWN: dict[str, Callable[[Finding, Timesheet], Known | None]] = {
    "UN101": _repeated,
    "UN404": _not_finite,
    "UN501": _worker_off,
    "UN503": _waited,
    "UN601": _left_out,
}
