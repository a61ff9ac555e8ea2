"""What the workers say to each other when they meet: numbers only, each of which float64 holds exactly."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

MOST_HELD = 8
"""Checkpoints that a worker tells of."""

UNKNOWN = -1.0
ENDINGS = ("", "a worker has stopped listening", "the workers' decisions differ")


@dataclass(frozen=True, slots=True)
class Word:
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
            *(float(step) for step in held),
            *[UNKNOWN] * (MOST_HELD - len(held)),
        ]


LENGTH = 8 + MOST_HELD


def word_of(numbers: Sequence[float]) -> Word:
    step, known, loss, finite, square, scaled, leaving, chain, *held = numbers
    return Word(
        step=int(step),
        loss=loss if known else None,
        finite=None if finite == UNKNOWN else bool(finite),
        share_square=None if square == UNKNOWN else square,
        scaled=bool(scaled),
        leaving=bool(leaving),
        chain=int(chain),
        held=tuple(int(step) for step in held if step != UNKNOWN),
    )


@dataclass(frozen=True, slots=True)
class Verdict:
    """The first worker's, for all."""

    step: int
    quiet: bool
    """Nothing was wrong with the step."""

    agreed: int | None = None
    """The newest healthy checkpoint that every worker holds."""

    ends: str = ""
    """Why nobody guards any longer: one of `ENDINGS`."""

    loss_limit: float = math.inf
    norm_limit: float = math.inf
    """From which on the next step is extreme."""

    decision: bytes = b""

    def numbers(self) -> list[float]:
        agreed = UNKNOWN if self.agreed is None else float(self.agreed)
        return [
            float(len(self.decision)),
            float(self.step),
            float(self.quiet),
            agreed,
            float(ENDINGS.index(self.ends)),
            self.loss_limit,
            self.norm_limit,
        ]


def verdict_of(numbers: Sequence[float], decision: bytes) -> Verdict:
    _, step, quiet, agreed, ends, loss_limit, norm_limit = numbers
    return Verdict(
        step=int(step),
        quiet=bool(quiet),
        agreed=None if agreed == UNKNOWN else int(agreed),
        ends=ENDINGS[int(ends)],
        loss_limit=loss_limit,
        norm_limit=norm_limit,
        decision=decision,
    )
