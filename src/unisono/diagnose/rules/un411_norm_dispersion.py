"""UN411: the workers' gradient norms suddenly lie much further apart, or have done so from the start."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence

from unisono.diagnose.rules.shared.dispersion_shifts import IN_A_ROW, PAST, Jump
from unisono.diagnose.rules.shared.known_batches import batches_known, new_batches
from unisono.diagnose.rules.shared.log_values import logs
from unisono.diagnose.rules.shared.recent_values import RecentValues
from unisono.diagnose.rules.shared.run_state import RunState, spoken
from unisono.diagnose.rules.shared.statistical_rule import Statistical
from unisono.diagnose.statistics import gaps_to_others, median
from unisono.records import StepRecord

AT_THE_START = 256
"""Readings from the first on, over which workers are compared with each other: later a jump would be seen."""

CONFIRMED = 64
LARGE = math.log(1.3)
PARTS, CLEAR = 8, 10.0
"""Neighbouring readings may be alike, eighths of all hardly: ten standard errors of these are 1 in 50,000."""

LEARNT = 0.5
"""Of the median loss over the last 100 readings: where these are rare, they reach back to the early steps."""

NEXT_TO_NOTHING = 0.1
"""Of the usual norm: where hardly anything is left of the gradients, it means little how they differ."""


class NormDispersion(Statistical):
    """The workers' gradient norms have moved apart"""

    code, slug, severity = "UN411", "norm-dispersion", "warning"
    pattern = "High Dispersion"
    source = "global gradient norm manual, section 3"
    meaning = (
        "The standard deviation of the gradient norm across workers, divided by its mean, was for five readings in a "
        "row above all of its last 100 values and above three times their median. Or it was high from the start: of "
        "workers with data of their own, half or more have stayed apart for 64 readings or more, by a factor of 1.3 "
        "or more and ten standard errors, so that nobody can be named; it is over when that is not true of the last "
        "256. One worker that stays apart is UN501 or UN105. "
        "Norms that differ as much in no order are no finding: small batches and rare large samples do that."
    )
    correction = (
        "The manual names unaligned random seeds. Workers see different data, and their dropout must differ, so their "
        "norms always differ; what counts is a change against this run's own past."
    )
    needs = "two or more workers and 100 readings of their gradient norms, or three workers and 64 from the start"
    causes = {
        "data-changed": "some workers began to read other data: another file, source or length of samples",
        "one-worker": "one worker's data or computation changed",
        "instability": "training is becoming unstable, and rare samples have large gradients",
        "ranks-set-up-differently": "these ranks preprocess, sample or compute differently: settings of their node",
    }
    remedies = {
        "data-changed": ("look at what each worker reads from this step on; shuffle before sharding",),
        "one-worker": ("look at the worker with the largest norm from this step on; test its device",),
        "instability": ("look at the gradient norm and the learning rate; lower the rate or clip gradients",),
        "ranks-set-up-differently": (
            "compare these ranks' hosts with the others': versions, configuration, preprocessing and its seeds",
            "check that all ranks' DistributedSampler have the same seed, shuffle and epoch, and their own rank",
        ),
    }

    def forget(self) -> None:
        self._jump = Jump()
        self._gap_TW: deque[list[float]] = deque(maxlen=AT_THE_START)
        self._began_at = self._compared = 0
        self._was_apart = False
        """At some time: how long it lasts is worth following then."""

        self._means, self._losses = RecentValues(PAST), RecentValues(PAST)
        self._apart = False

    def hear(self, record: StepRecord, run_state: RunState) -> None:
        known = [norm for norm in record.norm_W if norm is not None]
        if record.grad_norm_cv is None or len(known) < 2:
            return
        mean = sum(known) / len(known)
        if mean < NEXT_TO_NOTHING * self._means.median:
            return
        self._means.add(mean)
        self._compare(record, run_state)
        if self._has_learnt_since(record.loss_mean):
            self._jump.learn(record.grad_norm_cv)
        elif self._jump.add(record.grad_norm_cv):
            if self._jump.due:
                self._accuse(record, run_state)
        elif self._jump.ready and not self._apart:
            self.passed(record.step)

    def _has_learnt_since(self, loss: float | None) -> bool:
        """The better a model knows its samples, the more their gradients differ."""
        if loss is None:
            return False
        self._losses.add(loss)
        return 0 < loss < LEARNT * self._losses.median

    def _compare(self, record: StepRecord, run_state: RunState) -> None:
        """The workers with each other, from the start."""
        log_norm_W = logs(record.norm_W)
        if log_norm_W is None or len(log_norm_W) < 3 or not (batches_known(record) and new_batches(record)):
            return
        if self._gap_TW and len(self._gap_TW[0]) != len(log_norm_W):
            self._gap_TW.clear()
        if len(self._gap_TW) >= AT_THE_START and not self._was_apart:
            return
        self._began_at = self._began_at if self._gap_TW else record.step
        self._gap_TW.append(gaps_to_others(log_norm_W))
        self._compared += 1
        if len(self._gap_TW) < CONFIRMED or self._compared % IN_A_ROW:
            return
        level_by_worker = _apart(list(self._gap_TW))
        larger = [worker for worker, level in level_by_worker.items() if level > 0]
        # Of fewer than half each can be named: that is UN501's to tell.
        self._apart = 2 * max(len(larger), len(level_by_worker) - len(larger)) >= len(log_norm_W)
        self._was_apart = self._was_apart or self._apart
        if self._apart:
            self._tell_apart(record, run_state, level_by_worker, larger)

    def _tell_apart(
        self, record: StepRecord, run_state: RunState, level_by_worker: dict[int, float], larger: list[int]
    ) -> None:
        named = larger or list(level_by_worker)
        ratio = math.exp(median([level_by_worker[worker] for worker in named]))
        self.report(
            record.step,
            run_state,
            why=(
                f"the gradient norms of {spoken(run_state.ranks(named))} have been {ratio:.3g} times the others' from "
                "the start; so many differ that nobody can be called wrong"
            ),
            causes={"ranks-set-up-differently": 0.7, "data-changed": 0.4},
            evidence={"norm_to_others": round(ratio, 4), "grad_norm_cv": round(record.grad_norm_cv or 0.0, 4)},
            since=self._began_at,
        )

    def _accuse(self, record: StepRecord, run_state: RunState) -> None:
        now, before = self._jump.now, self._jump.before
        self.report(
            record.step,
            run_state,
            why=(
                f"the standard deviation of the workers' gradient norms is {100 * now:.3g} % of their mean, for "
                f"{IN_A_ROW} readings or more; it was {100 * before:.3g} % in the {PAST} readings before"
            ),
            causes={"data-changed": 0.4, "one-worker": 0.4, "instability": 0.3},
            evidence={"grad_norm_cv": round(now, 4), "grad_norm_cv_before": round(before, 4)},
        )


def _apart(gap_TW: Sequence[Sequence[float]]) -> dict[int, float]:
    """The workers whose gap to the others has one sign in all parts of the run, far beyond how the parts differ."""
    length = len(gap_TW) // PARTS
    found = {}
    for worker, gap_T in enumerate(zip(*gap_TW, strict=True)):
        parts = [sum(gap_T[at : at + length]) / length for at in range(0, PARTS * length, length)]
        level = sum(parts) / PARTS
        error = math.sqrt(sum((part - level) ** 2 for part in parts) / (PARTS - 1) / PARTS)
        if abs(level) >= LARGE and abs(level) > CLEAR * error:
            found[worker] = level
    return found
