"""What workers report to the guard, and what it answers: numbers only, each of which float64 holds exactly."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

MOST_HELD = 8
"""Checkpoints that a worker tells of."""

UNKNOWN = -1.0
ENDINGS = ("", "a worker has stopped listening", "the workers' decisions differ")


@dataclass(frozen=True, slots=True)
class RankReport:
    """One worker's."""

    step: int
    loss: float | None
    finite: bool | None
    """Its own loss and gradients before all-reduce, as far as it knows."""

    share_square: float | None
    """Squared norm of its share of the averaged gradient, the loss scaler's factor taken out."""

    scaled: bool
    leaving: bool
    chain: int
    """Hash of all decisions it has carried out."""

    may_be_late: bool
    """It could do without an answer at this step."""

    held: tuple[int, ...]
    """Steps of the healthy checkpoints it holds, oldest first."""

    def numbers(self) -> list[float]:
        held = self.held[-MOST_HELD:]
        return [
            float(self.step),
            float(self.loss is not None),
            0.0 if self.loss is None else self.loss,
            UNKNOWN if self.finite is None else float(self.finite),
            UNKNOWN if self.share_square is None else self.share_square,
            float(self.scaled),
            float(self.leaving),
            float(self.chain),
            float(self.may_be_late),
            *(float(step) for step in held),
            *[UNKNOWN] * (MOST_HELD - len(held)),
        ]


LENGTH = 9 + MOST_HELD
LOSS_KNOWN, LOSS, FINITE, SQUARE, SCALED = 1, 2, 3, 4, 5
"""Places of some numbers."""


def rank_report(numbers: Sequence[float]) -> RankReport:
    step, known, loss, finite, square, scaled, leaving, chain, late, *held = numbers
    return RankReport(
        step=int(step),
        loss=loss if known else None,
        finite=None if finite == UNKNOWN else bool(finite),
        share_square=None if square == UNKNOWN else square,
        scaled=bool(scaled),
        leaving=bool(leaving),
        chain=int(chain),
        may_be_late=bool(late),
        held=tuple(int(step) for step in held if step != UNKNOWN),
    )


@dataclass(frozen=True, slots=True)
class RoundResult:
    """The first worker's, for all."""

    step: int
    quiet: bool
    """Nothing was wrong with the step."""

    agreed: int | None = None
    """The newest healthy checkpoint that every worker holds."""

    ends: str = ""
    """Why nobody guards any longer: one of `ENDINGS`."""

    late: bool = False
    """From the next step on the workers no longer wait for each other's reports."""

    norm_limit: float = math.inf
    """From which on a step is then left out."""

    decision: bytes = b""

    def numbers(self) -> list[float]:
        agreed = UNKNOWN if self.agreed is None else float(self.agreed)
        return [
            float(len(self.decision)),
            float(self.step),
            float(self.quiet),
            agreed,
            float(ENDINGS.index(self.ends)),
            float(self.late),
            self.norm_limit,
        ]


def round_result(numbers: Sequence[float], decision: bytes) -> RoundResult:
    _, step, quiet, agreed, ends, late, norm_limit = numbers
    return RoundResult(
        step=int(step),
        quiet=bool(quiet),
        agreed=None if agreed == UNKNOWN else int(agreed),
        ends=ENDINGS[int(ends)],
        late=bool(late),
        norm_limit=norm_limit,
        decision=decision,
    )
