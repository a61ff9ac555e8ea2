"""Limits for the guard from a recorded run, far above its healthy steps; as text and as TOML."""

from __future__ import annotations

import math
import textwrap
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from unisono.act.guard.options import LOSS_SPIKE, NORM_SPIKE, Guard
from unisono.act.guard.policy_conditions import not_finite, stands_out
from unisono.act.guard.step_state import Situation, Watch
from unisono.common.errors import UserError
from unisono.common.terminal import lines_of, plain
from unisono.records import StepRecord
from unisono.records.global_norm import GlobalNorm

ENOUGH = 100
MANY = 1000
"""Readings from which on a limit may be lower than the usual one, but not below half of it."""

MARGIN = 3.0
"""A limit is so many times the highest value of an ordinary step."""

MOST = 10_000
QUANTILE = 0.99
BUDGET = 0.005
"""Share of the step time that listening may take."""


@dataclass(frozen=True, slots=True)
class Suggestion:
    name: str
    value: float | int
    evidence: str


@dataclass(frozen=True, slots=True)
class Calibration:
    workers: int
    first_step: int
    last_step: int
    steps: int
    readings: int
    left_out: str
    """Which steps do not count, in words; empty where all do."""

    suggestions: tuple[Suggestion, ...]
    unknown: tuple[str, ...]
    """What could not be suggested, and why."""


class Peak(NamedTuple):
    value: float = 0.0
    step: int = 0

    def or_higher(self, value: float, step: int) -> Peak:
        return Peak(value, step) if value > self.value else self


class Calibrator:
    """Goes through the steps of a run as the guard would, in bounded memory."""

    def __init__(self) -> None:
        self.steps = self.readings = self.workers = 0
        self.first_step: int | None = None
        self.last_step = 0
        self.norms: deque[tuple[int, float]] = deque(maxlen=MOST)
        self.ratio, self.score = Peak(), Peak()
        self.left_out: dict[str, tuple[int, int]] = {}
        """How many steps were `not finite` or `extreme`, and the first of them."""

        self.scores = 0
        """Losses that could be judged."""

        self.heard, self.cost = 0, 0.0
        self._guard, self._watch, self._norm = Guard(), Watch(0), GlobalNorm()
        self._attempt: int | None = None

    def see(self, record: StepRecord) -> None:
        if record.attempt != self._attempt:
            self._begin(record)
        self.first_step = record.step if self.first_step is None else self.first_step
        self.last_step = max(self.last_step, record.step)
        self.steps += 1
        self.heard += record.heard
        cost = record.listening_cost
        self.cost = cost if cost is not None and 0 <= cost <= 1 else self.cost
        loss_W = record.loss_W or (None,) * self.workers
        if len(loss_W) != self.workers:
            return
        finite_W = record.finite_W or (None,) * self.workers
        self._judge(self._watch.situation(record.step, loss_W, finite_W, self._norm.of(record)))

    def _begin(self, record: StepRecord) -> None:
        """An attempt takes the place of what it does again, and starts without a past."""
        self._attempt = record.attempt
        self.workers = max(len(record.loss_W), len(record.norm_W), len(record.finite_W))
        self._watch = Watch(self.workers)
        while self.norms and self.norms[-1][0] >= record.step:
            self.norms.pop()

    def _judge(self, now: Situation) -> None:
        spike = self._guard.spike(now)
        self._watch.learn(now, spike)
        if spike is not None:
            kind = "not finite" if not_finite(now) else "extreme"
            count, first = self.left_out.get(kind, (0, now.step))
            self.left_out[kind] = (count + 1, first)
            return
        if now.norm is not None and math.isfinite(now.norm):
            self.readings += 1
            self.norms.append((now.step, now.norm))
        self.ratio = self.ratio.or_higher(now.norm_ratio or 0.0, now.step)
        for worker, score in enumerate(now.loss_score_W):
            self.scores += score is not None
            if score is not None and stands_out(now, worker):
                self.score = self.score.or_higher(score, now.step)


def calibration(found: Calibrator) -> Calibration:
    """Raises `UserError` where the run is too short."""
    if found.readings < ENOUGH:
        raise UserError(
            f"a calibration should rest on {ENOUGH} readings of the gradient's norm or more. Found "
            f"{found.readings:,} in {found.steps:,} steps. Record a longer run, or listen more often with --every 1"
        )
    suggestions = [_clip(found), _norm_spike(found)]
    unknown = []
    if found.scores >= ENOUGH and found.workers > 1:
        suggestions.append(_loss_spike(found))
    else:
        why = "one worker has no others to compare it with" if found.workers == 1 else "the losses are not known"
        unknown.append(f"loss_spike: {why}")
    if found.cost > 0 and found.heard:
        suggestions.append(_interval(found))
    else:
        unknown.append("every: what listening costs is not known")
    return Calibration(
        found.workers,
        found.first_step or 0,
        found.last_step,
        found.steps,
        found.readings,
        _left_out(found),
        tuple(suggestions),
        tuple(unknown),
    )


def _clip(found: Calibrator) -> Suggestion:
    newest = list(found.norms)[-max(ENOUGH, min(len(found.norms), found.readings // 2)) :]
    ordered = sorted(norm for _, norm in newest)
    value = rounded_up(ordered[math.ceil(QUANTILE * len(ordered)) - 1])
    step, highest = max(newest, key=lambda pair: pair[1])
    return Suggestion(
        "clip",
        value,
        f"max_grad_norm: 99 % of the norms of the last {len(ordered):,} readings (steps {newest[0][0]:,} to "
        f"{newest[-1][0]:,}) are below it; median {ordered[len(ordered) // 2]:.3g}, highest {highest:.3g} at step "
        f"{step:,}",
    )


def _norm_spike(found: Calibrator) -> Suggestion:
    return _limit("norm_spike", found.ratio, NORM_SPIKE, found.readings, "norm was {} times the end of its usual range")


def _loss_spike(found: Calibrator) -> Suggestion:
    words = "loss of a single worker was {} times as far from its recent ones as usual"
    return _limit("loss_spike", found.score, LOSS_SPIKE, found.steps, words)


def _limit(name: str, peak: Peak, usual: float, count: int, words: str) -> Suggestion:
    least = usual / 2 if count >= MANY else usual
    value = max(least, rounded_up(MARGIN * peak.value))
    few = "" if count >= MANY else f" (fewer than {MANY:,}, so not below the default)"
    if not peak.value:
        return Suggestion(name, value, f"none stood out in {count:,} steps{few}")
    seen = f"the highest ordinary {words.format(f'{peak.value:.3g}')}, at step {peak.step:,}, in {count:,} steps{few}"
    return Suggestion(name, value, f"{seen}; three times that, and at least {least:g}")


def _interval(found: Calibrator) -> Suggestion:
    each = found.cost * found.steps / found.heard
    value = max(1, math.ceil(each / BUDGET))
    return Suggestion(
        "every",
        value,
        f"listening took {100 * found.cost:.2g} % of the step time with {found.heard:,} of {found.steps:,} steps "
        f"heard, so a heard step costs {100 * each:.2g} % of one; every {value:,} steps that is "
        f"{100 * BUDGET:g} % or less",
    )


def _left_out(found: Calibrator) -> str:
    return "; ".join(
        f"{count:,} {'step was' if count == 1 else 'steps were'} {kind} (first: {first:,})"
        for kind, (count, first) in found.left_out.items()
    )


def rounded_up(value: float) -> float:
    """To two digits."""
    if value <= 0:
        return value
    unit = 10.0 ** (math.floor(math.log10(value)) - 1)
    return float(f"{math.ceil(value / unit - 1e-9) * unit:.6g}")


LABEL = 14
COMMENT = 100
LISTENING = ("every",)
OFF = {"clip": "scale gradients down to it", "every": "listen so often from the first step on"}
"""Written down, but commented out: they change what was healthy, so they are asked for by hand."""


def as_text(found: Calibration, width: int = 80) -> str:
    parts = [lines_of(f"Limits for the guard, from {_source(found)}.", width)]
    for one in found.suggestions:
        head = f"{one.name:<{LABEL}}{one.value:g}"
        parts.append([head, *lines_of(one.evidence, width, first=" " * LABEL, rest=" " * LABEL)])
    remarks = [f"Left out: {found.left_out}."] * bool(found.left_out)
    remarks += [f"No suggestion for {one}." for one in found.unknown]
    parts += [lines_of(remark, width) for remark in remarks]
    return "\n\n".join("\n".join(lines) for lines in parts)


def as_toml(found: Calibration, run: str) -> str:
    lines = [*_comment(f"Written by `unisono calibrate` from {plain(run)}: {_source(found)}.")]
    lines += _comment(f"Left out: {found.left_out}.") if found.left_out else []
    lines += ["", "[guard]", "skip = true"]
    lines += _entries([one for one in found.suggestions if one.name not in LISTENING])
    listening = [one for one in found.suggestions if one.name in LISTENING]
    if listening:
        lines += ["", "# [listening]", *_entries(listening)]
    lines += [line for one in found.unknown for line in ("", *_comment(f"No suggestion for {one}."))]
    return "\n".join(lines) + "\n"


def _source(found: Calibration) -> str:
    workers = f"{found.workers} {'worker' if found.workers == 1 else 'workers'}"
    steps = f"steps {found.first_step:,} to {found.last_step:,}"
    return f"{found.readings:,} readings of the gradient's norm, {steps}, {workers}"


def _entries(suggestions: Sequence[Suggestion]) -> list[str]:
    lines: list[str] = []
    for one in suggestions:
        off = one.name in OFF
        hint = f" Take away the # to {OFF[one.name]}." if off else ""
        lines += ["", *_comment(f"{one.evidence}.{hint}"), f"{'# ' * off}{one.name} = {one.value!r}"]
    return lines


def _comment(text: str) -> list[str]:
    return [f"# {line}" for line in textwrap.wrap(text, COMMENT)]
