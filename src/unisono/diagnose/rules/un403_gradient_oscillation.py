"""UN403: the gradient norm swings far more than it used to, or than training can bear."""

from __future__ import annotations

import math
import re
from collections import deque
from collections.abc import Sequence

from unisono.diagnose.rules.shared.loss_blocks import BLOCK, LONG, Block, LossBlocks, mean_of, spread
from unisono.diagnose.rules.shared.run_state import RunState
from unisono.diagnose.rules.shared.statistical_rule import Statistical
from unisono.diagnose.statistics import median
from unisono.records import StepRecord

RECENT = 50
PAST = 200
EVERY = 10
ALTERNATING = 0.9
"""Share of changes of opposite sign to the one before; two thirds for independent numbers."""

GROWN = 3.0
LARGE = math.log(1.5)

READINGS, FEWEST = 64, 10
RAISED, FASTER = 1.3, 1.5
"""The loss against its lowest block, and the learning rate against what it was there."""

SHARED = 3.0
"""All workers' losses swing together: the weights swing. Batches of their own give 1; calm training up to 1.7."""

WORTH_A_WORD = 0.01
"""A rise of the loss by less of its first value is small, however often it doubles."""

SWINGS, WILD, WILD_LOSS = 2.5, 8.0, 50.0
"""Between the lower and the upper tenth: of norms at the edge of stability, of norms with batches that are too small,
and of losses there, where the norm was hardly heard."""

HIGH = 0.1
"""Of the first losses: below, nearly all is learnt."""

HEAVY = 0.95
"""Momentum with which a swing is remembered for twenty steps."""


class GradientOscillation(Statistical):
    """The gradient norm swings up and down, and the loss does not fall"""

    code, slug, severity = "UN403", "gradient-oscillation", "warning"
    pattern = "Persistent Oscillation"
    source = "global gradient norm manual, section 3"
    meaning = (
        "One of three things. Edge of stability: over the last 200 steps the mean loss was more than 1.3 times what it "
        "was over its best 100 steps, at a learning rate that has risen by half or more since without a jump, and the "
        "losses of all workers swing together around their trend, with three times the variance that their batches "
        "explain, and three times as clearly as over those 100 steps: so the weights swing. Batches too small: over "
        "300 steps the mean loss, still above a tenth of its first value, is no lower than it was before, while eight "
        "of ten norms span a factor of 8 or more, and so do losses that are above zero, each worker's by itself: a "
        "remark, because batches of one sample look like this in healthy training, too, where little is left to learn "
        "or the loss depends on a drawn noise level. Where the norm was hardly heard, closer listening is waited for. "
        "Or over the last 50 consecutive steps the norm (where it is not heard at every step: the mean loss) has gone "
        "up and down in turn at nine of ten steps, usually by more than half, three times as much as before."
    )
    correction = (
        "The manual gives no number. Noise alone makes norms of small batches differ tenfold while the loss falls; "
        "cyclic learning rates and batches that are easy and hard in turn swing by intention. None of them keeps the "
        "loss up."
    )
    needs = "200 steps with the mean loss"
    causes = {
        "learning-rate": "the learning rate is at the edge of what is stable",
        "small-batch": "batches are small, and few rare samples make the norm jump",
        "momentum": "momentum is so large that the steps swing past their aim",
    }
    remedies = {
        "learning-rate": ("lower the learning rate (try half), or lengthen its warm-up",),
        "small-batch": ("use larger batches or accumulate gradients over more of them, or lower the learning rate",),
        "momentum": ("lower the momentum (0.9 is usual), or the learning rate with it",),
    }
    explains = ("UN406",)
    forgets_at_jumps = False

    def __init__(self) -> None:
        self._start_loss = 0.0
        """Of the whole run: after a restart little may be left to learn. 0 where nobody heard how it began."""

        super().__init__()

    def forget(self) -> None:
        self._start_anew()
        self._first: list[float] = []

    @property
    def suspicious(self) -> bool:
        """The losses swing, and the norm has hardly been heard."""
        return self._wants_norms

    def on_step(self, record: StepRecord, run_state: RunState) -> None:
        if run_state.comparable.jumped:
            self._start_anew()
        super().on_step(record, run_state)

    def _start_anew(self) -> None:
        """A learning rate that jumps was set so: a warm restart or another stage; the loss may be higher after it."""
        self._swinging_norms, self._swinging_losses = Swings(), Swings()
        self._blocks, self._wants_norms = LossBlocks(), False
        self._norms: deque[tuple[int, float]] = deque(maxlen=READINGS)

    def hear(self, record: StepRecord, run_state: RunState) -> None:
        norm, loss = record.grad_norm, record.loss_mean
        if norm is not None and norm > 0:
            self._swinging_norms.add(record.step, norm)
            self._norms.append((record.step, norm))
        if loss is not None and loss > 0:
            self._swinging_losses.add(record.step, loss)
        if loss is not None and math.isfinite(loss):
            self._hear_loss(record, run_state, loss)
        if record.step % EVERY == 0:
            self._judge_swings(record, run_state)

    def _hear_loss(self, record: StepRecord, run_state: RunState, loss: float) -> None:
        if len(self._first) < EVERY:
            self._first.append(loss)
            begun = run_state.attempt is not None and run_state.attempt.first_step == 0
            if len(self._first) == EVERY and (begun or self._start_loss):
                self._start_loss = max(self._start_loss, median(self._first))
        if self._blocks.add(record, loss):
            self._judge_blocks(record, run_state)

    def _judge_blocks(self, record: StepRecord, run_state: RunState) -> None:
        edge, noise = self._is_past_the_edge(), self._is_lost_in_noise()
        norms = [norm for step, norm in self._norms if step > record.step - (LONG if edge else 2 * LONG) * BLOCK]
        heard = len(norms) >= FEWEST
        asked, self._wants_norms = self._wants_norms, (edge or noise) and not heard
        if self._wants_norms and not asked:
            return
        low, high = spread(norms) if heard else (0.0, 0.0)
        wild = high > WILD * low if heard else all(one.high > WILD_LOSS * one.low for one in self._blocks.last(LONG))
        if edge and (high > SWINGS * low or not heard):
            self._accuse_rate(record, run_state, _told(norms))
        elif noise and wild and self._is_remark:
            self._remark_on_batch(record, run_state, _told(norms))
        elif self._blocks.lowest_long is not None and not (edge or noise):
            self.passed(record.step)

    @property
    def _is_remark(self) -> bool:
        """A remark must not cover what was graver."""
        return self.case is None or self.case.severity == "info"

    def _make_room(self) -> None:
        """What was only remarked on before began earlier, and has another cause."""
        self.case = None if self._is_remark else self.case

    def _is_past_the_edge(self) -> bool:
        lowest, newest = self._blocks.lowest, self._blocks.last(2)
        if lowest is None or lowest.mean <= 0 or lowest.low < 0 or len(newest) < 2:
            return False
        limit = max(RAISED * lowest.mean, lowest.mean + WORTH_A_WORD * self._start_loss)
        # Workers that draw the same lengths or tasks at each step swing together at their best, too.
        shared = SHARED * max(1.0, lowest.shared)
        return all(block.mean > limit and block.shared > shared and _is_faster(block, lowest) for block in newest)

    def _is_lost_in_noise(self) -> bool:
        before, newest = self._blocks.lowest_long, self._blocks.last(LONG)
        if before is None or len(newest) < LONG or any(block.shared > SHARED for block in newest):
            return False
        now = mean_of(newest)
        # Of losses around zero or below it no factor can be told.
        wild = all(0 < WILD * block.low < block.high for block in newest)
        return wild and now >= before > 0 and now > HIGH * self._start_loss > 0

    def _accuse_rate(self, record: StepRecord, run_state: RunState, norms: str) -> None:
        lowest, newest = self._blocks.lowest, self._blocks.last(2)
        if lowest is None:
            return
        self._make_room()
        now = mean_of(newest)
        heavy = _momentum(run_state) >= HEAVY
        self.report(
            record.step,
            run_state,
            why=(
                f"the losses of all workers swing up and down together {norms}; their mean over the last {2 * BLOCK} "
                f"steps is {now:.3g}, at a learning rate of {newest[-1].rate:.3g}; at its best, until step "
                f"{lowest.step}, it was {lowest.mean:.3g} at {lowest.rate:.3g}"
            ),
            causes={"learning-rate": 0.6, "momentum": 0.7} if heavy else {"learning-rate": 0.8},
            evidence={"loss": now, "lowest_loss": lowest.mean, "swing_to_noise": round(newest[-1].shared, 2)},
            since=record.step - 2 * BLOCK + 1,
        )

    def _remark_on_batch(self, record: StepRecord, run_state: RunState, norms: str) -> None:
        newest, before = self._blocks.last(LONG), self._blocks.lowest_long or 0.0
        now, last = mean_of(newest), newest[-1]
        self.report(
            record.step,
            run_state,
            why=(
                f"each worker's loss jumps by itself {norms}, their mean from {last.low:.2g} to {last.high:.2g}; over "
                f"the last {LONG * BLOCK} steps it is {now:.3g}, no lower than before ({before:.3g})"
            ),
            causes={"small-batch": 0.8, "learning-rate": 0.6},
            severity="info",
            evidence={"loss": now, "loss_before": before, "swing_to_noise": round(last.shared, 2)},
            since=record.step - LONG * BLOCK + 1,
        )

    def _judge_swings(self, record: StepRecord, run_state: RunState) -> None:
        consecutive = self._swinging_norms.ready(record.step)
        swings, thing = (self._swinging_norms, "gradient norm") if consecutive else (self._swinging_losses, "mean loss")
        if not swings.ready(record.step):
            return
        if swings.alternate():
            self._accuse(record, run_state, swings, thing)
        else:
            self.passed(record.step)

    def _accuse(self, record: StepRecord, run_state: RunState, swings: Swings, thing: str) -> None:
        self._make_room()
        now, before = math.exp(swings.size), math.exp(swings.before)
        self.report(
            record.step,
            run_state,
            why=f"the {thing} goes up and down by a factor of {now:.3g} at every step (before: {before:.3g})",
            causes={"learning-rate": 0.7, "small-batch": 0.3},
            evidence={"of": thing, "swing": round(now, 3), "swing_before": round(before, 3)},
        )


def _told(norms: Sequence[float]) -> str:
    if not norms:
        return "(the gradient norm was not heard)"
    return f"(gradient norm: {min(norms):.2g} to {max(norms):.2g} at {len(norms)} readings)"


def _is_faster(block: Block, lowest: Block) -> bool:
    return block.rate is not None and lowest.rate is not None and block.rate > FASTER * lowest.rate


def _momentum(run_state: RunState) -> float:
    found = re.search(r"momentum=([0-9.]+)", run_state.fact("optimizer", "numbers") or "")
    return float(found[1]) if found else 0.0


class Swings:
    """Changes of a logarithm from step to step: the newest, and how large those before usually were."""

    def __init__(self) -> None:
        self._changes: deque[float] = deque()
        self._past: deque[float] = deque(maxlen=PAST)
        self._turns = 0
        self._step = -1
        self._last = 0.0

    def add(self, step: int, value: float) -> None:
        last, self._last = self._last, math.log(value)
        before, self._step = self._step, step
        if step != before + 1 or before < 0:
            self._changes.clear()
            self._turns = 0
            return
        changes, change = self._changes, self._last - last
        if changes and changes[-1] * change < 0:
            self._turns += 1
        changes.append(change)
        if len(changes) > RECENT:
            oldest = changes.popleft()
            self._turns -= oldest * changes[0] < 0
            # Swings do not become usual while they last.
            if self._turns < ALTERNATING * (RECENT - 1):
                self._past.append(abs(oldest))

    def ready(self, step: int) -> bool:
        return step == self._step and len(self._changes) == RECENT and len(self._past) == PAST

    def alternate(self) -> bool:
        if self._turns < ALTERNATING * (RECENT - 1):
            return False
        return self.size > max(LARGE, GROWN * self.before)

    @property
    def size(self) -> float:
        return median([abs(change) for change in self._changes])

    @property
    def before(self) -> float:
        return median(self._past)
