"""The workers' gradients beside each other: who stays apart, by which sign, since when."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from operator import sub
from typing import TypeAlias

from unisono.diagnose.rules.shared.layer_profile import Place, Profile
from unisono.diagnose.rules.shared.log_values import logs
from unisono.diagnose.statistics import LEARNT, Opposition, Peers, Relation, gaps_to_others, median, scatter
from unisono.records import Floats, StepRecord

LEAST_NORM = 0.05
LEAST_COSINE = 0.02
LEAST_LOSS = 0.02
"""Smaller differences (of logarithms, of cosines) are not worth a word, however persistent."""

RECENT = 128
LOSS_CLEAR = 3.0
"""A loss further off than this many standard errors is off as well."""

AGREES_CLEARLY_LESS = 2.0
"""Standard errors by which the mean of a worker's cosines is below the others'."""

CONFIRMED = 64
"""Readings after which a worker that stays apart is taken for faulty."""

TINY = 1e-30
"""Stands for the norm of a gradient that is zero."""

ANOTHER_SIZE = math.log(30)
"""Where all norms change by more than this from one reading to the next, what was usual before is so no longer."""

WINDOW_READINGS = 16
"""Fewer readings do not make a window of directions."""

Row: TypeAlias = tuple[int, Sequence[float], list[float]]
"""Step, what each worker said, and each one's gap to the others, if somebody has asked for one."""


@dataclass(frozen=True, slots=True)
class Apart:
    sign: str
    """`norm`, `cosine` (it agrees less) or `opposed` (it points the other way)."""

    workers: list[int]
    since: int


class Gradients:
    def __init__(self) -> None:
        self.norms: Peers | None = None
        self.cosines: Peers | None = None
        self._opposition: Opposition | None = None
        self._relation = Relation()
        self._profile = Profile()
        self._zero: set[int] = set()
        self._last_norm_W: Sequence[float] = ()
        self._window: tuple[int, int, Sequence[float]] | None = None
        self._cosines: deque[Row] = deque(maxlen=RECENT)
        self._losses: deque[Row] = deque(maxlen=RECENT)

    @property
    def ready(self) -> bool:
        return self.norms is not None and self.norms.ready

    @property
    def alarmed(self) -> bool:
        return True in [test.alarmed for test in (self.norms, self.cosines, self._opposition) if test is not None]

    @property
    def suspicious(self) -> bool:
        return any(test is not None and test.suspicious for test in (self.norms, self.cosines, self._opposition))

    @property
    def losses_known(self) -> bool:
        return len(self._losses) >= LEARNT

    def hear(self, record: StepRecord, log_loss_W: list[float] | None) -> bool:
        """Whether the step says something about gradients."""
        if log_loss_W is not None:
            self._losses.append((record.step, log_loss_W, []))
        norm_W = logs(record.norm_W, TINY) if any(record.norm_W) else None
        if norm_W is None:
            return False
        if 0.0 in record.norm_W:
            self._zero.update([worker for worker, norm in enumerate(record.norm_W) if not norm])
        if len(self._zero) > 1:
            # Gradients that vanish now and then, on several workers: their logarithms say nothing.
            self.norms = self.cosines = None
            return False
        if self._have_another_size(norm_W):
            self.norms, self._relation, self._profile = None, Relation(), Profile()
        self._last_norm_W = norm_W
        self._hear_norms(record.step, norm_W, log_loss_W)
        self._hear_directions(record, len(norm_W))
        self._profile.add(record)
        return True

    def _have_another_size(self, norm_W: Sequence[float]) -> bool:
        """Those of all workers, in the same direction: that is nobody's own fault, and norms scatter otherwise then."""
        if len(norm_W) != len(self._last_norm_W):
            return False
        changes: list[float] = list(map(sub, norm_W, self._last_norm_W))
        return min(changes) > ANOTHER_SIZE or max(changes) < -ANOTHER_SIZE

    def _hear_norms(self, step: int, norm_W: list[float], loss_W: list[float] | None) -> None:
        """The part of a norm that its loss does not explain: batches with large losses have long gradients."""
        if loss_W is not None and len(loss_W) == len(norm_W):
            norm_W = self._relation.rest(norm_W, loss_W)
        if self.norms is None or self.norms.workers != len(norm_W):
            self.norms = Peers(len(norm_W), LEAST_NORM)
        self.norms.add(norm_W, step)

    def _hear_directions(self, record: StepRecord, workers: int) -> None:
        cosine_W = _known(record.cos_W)
        if len(cosine_W) == workers:
            if self.cosines is None or self.cosines.workers != workers:
                self.cosines = Peers(workers, LEAST_COSINE, sudden=False)
            self.cosines.add(cosine_W, record.step)
            self._cosines.append((record.step, cosine_W, []))
        if record.window_start is None or record.window_steps is None:
            return
        summed_W = _known(record.window_cos_W)
        if len(summed_W) < workers:
            return
        if self._window is not None and record.window_start != self._window[0]:
            self._end_window(*self._window)
        self._window = record.window_start, record.window_steps, summed_W
        if self._opposition is not None and record.window_steps >= WINDOW_READINGS:
            self._opposition.glance(summed_W)

    def _end_window(self, start: int, readings: int, cosine_W: Sequence[float]) -> None:
        if readings < WINDOW_READINGS:
            return
        if self._opposition is None or self._opposition.workers != len(cosine_W):
            self._opposition = Opposition(len(cosine_W))
        self._opposition.add(cosine_W, start)

    def apart(self) -> Apart | None:
        """Those that stay apart, with the clearest sign; whether their data differ too, `loss_is_off` says."""
        if self._opposition is not None and self._opposition.alarmed:
            began = self._opposition.since
            opposing = [worker for worker in self._opposition.outliers() if self._agrees_less(worker, began(worker))]
            if opposing:
                return Apart("opposed", opposing, min(map(began, opposing)))
        norms, cosines = self.norms, self.cosines
        longer = [] if norms is None else norms.outliers()
        if norms is not None and longer:
            return Apart("norm", longer, min(map(norms.since, longer)))
        # A higher cosine is no fault: a long gradient of one worker lowers the cosines of the others.
        lower = [] if cosines is None else [worker for worker in cosines.outliers() if cosines.level(worker) < 0]
        if cosines is None or not lower:
            return None
        since = min(map(cosines.since, lower))
        return Apart("opposed" if self._is_negative(lower[0], since) else "cosine", lower, since)

    def _agrees_less(self, worker: int, since: int) -> bool:
        """Also reading by reading: sums alone may oppose each other in a healthy run."""
        gaps = [_gap(row, worker) for row in self._cosines if row[0] >= since]
        return len(gaps) > 1 and sum(gaps) / len(gaps) < -AGREES_CLEARLY_LESS * scatter(gaps) / math.sqrt(len(gaps))

    def _is_negative(self, worker: int, since: int) -> bool:
        """The worker's direction is not merely lost in noise: it points the other way."""
        own = [cosine_W[worker] for step, cosine_W, _ in self._cosines if step >= since]
        return len(own) > 1 and sum(own) / len(own) < -scatter(own) / math.sqrt(len(own))

    def loss_is_off(self, worker: int, since: int) -> bool:
        """Then its data differ, and UN105 says so."""
        if not self.losses_known:
            return False
        all_gaps = [_gap(row, worker) for row in self._losses]
        gaps = [gap for gap, row in zip(all_gaps, self._losses, strict=True) if row[0] >= since] or all_gaps
        error = 1.25 * scatter(all_gaps) / math.sqrt(len(gaps))
        return abs(median(gaps)) > max(LEAST_LOSS, LOSS_CLEAR * error)

    def is_confirmed(self, apart: Apart) -> bool:
        """It has lasted: neighbouring batches that happen to be alike do not."""
        return self.norms is not None and self.norms.readings_since(apart.since) >= CONFIRMED

    def place(self, apart: Apart) -> Place | None:
        """Where in the model the difference is."""
        return self._profile.place(apart.workers[0], apart.since) if apart.sign == "norm" else None

    def numbers(self, worker: int) -> dict[str, float | int | str]:
        found: dict[str, float | int | str] = {}
        if self.norms is not None:
            found["norm_to_others"] = round(math.exp(self.norms.level(worker)), 4)
        if self.cosines is not None:
            found["cos_minus_others"] = round(self.cosines.level(worker), 4)
        if self._opposition is not None and self._opposition.alarmed:
            found["window_cos"] = round(self._opposition.cosine(worker), 4)
        return found


def _known(value_W: Floats) -> Sequence[float]:
    return value_W if None not in value_W else [value for value in value_W if value is not None]  # type: ignore[return-value]


def _gap(row: Row, worker: int) -> float:
    _, value_W, gap_W = row
    if not gap_W:
        # Of all workers at once: with many of them apart, one sorting each would take seconds.
        gap_W += gaps_to_others(value_W)
    return gap_W[worker]
