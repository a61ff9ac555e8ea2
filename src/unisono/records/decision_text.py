"""What the guard has done, in words: one decision at a time, and all of a run together."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any

from unisono.records import DecisionRecord

DONE = {
    "skip": "skipped on all workers",
    "clip": "clipped the gradient",
    "reset-momentum": "reset the momentum",
    "resync": "made the replicas equal again",
    "roll-back": "rolled back",
    "halt": "stopped the job",
    "reseed": "re-seeded the random streams",
    "callback": "called the policy's own function",
}
"""Also after `would have`."""

NOUNS = {
    "skip": ("step skipped", "steps skipped"),
    "clip": ("gradient clipped", "gradients clipped"),
    "reset-momentum": ("reset of the momentum", "resets of the momentum"),
    "resync": ("resync", "resyncs"),
    "roll-back": ("roll-back", "roll-backs"),
    "halt": ("halt", "halts"),
    "reseed": ("re-seeding", "re-seedings"),
    "callback": ("call of the policy's own function", "calls of the policy's own function"),
}
STEPS_NAMED = 6
KEPT = 200
"""Decisions that are listed one by one; older ones are counted."""


def decision_line(record: DecisionRecord) -> str:
    """`step 812: skipped on all workers: rank 2's loss is not finite (guard, 1-812-3)`."""
    outcome = f"; {record.outcome}" if record.outcome else ""
    return f"step {record.step:,}: {done_in_words(record)}: {record.reason}{outcome} (guard, {record.id})"


def done_in_words(record: DecisionRecord) -> str:
    """`rolled back to step 700 and skipped on all workers`; `would have ...` where nothing was done."""
    told = [DONE.get(action, f"did {action}") + _to(action, record) for action in actions_of(record)]
    return "would have " * record.dry + _listed(told)


def actions_of(record: DecisionRecord) -> list[str]:
    return record.action.split(", ")


def is_skip(record: DecisionRecord) -> bool:
    """Whether the step was really left out."""
    return not record.dry and "skip" in actions_of(record)


def is_halt(record: DecisionRecord) -> bool:
    """Whether the job was really stopped."""
    return not record.dry and "halt" in actions_of(record)


def ranks_of(record: DecisionRecord) -> list[int]:
    return [rank for rank in record.ranks if rank is not None]


def action_as_dict(record: DecisionRecord) -> dict[str, Any]:
    """As `unisono diagnose --json` prints it."""
    return {**asdict(record), "ranks": ranks_of(record)}


class DecisionCounts:
    """Counts the decisions of a run, in bounded memory."""

    def __init__(self) -> None:
        self.newest: deque[DecisionRecord] = deque(maxlen=KEPT)
        self._done, self._would = _Tally(), _Tally()
        self.stopped_at: int | None = None
        """The step at which the guard stopped the job, if that is how its newest attempt ended."""

    def add(self, record: DecisionRecord) -> None:
        self.newest.append(record)
        (self._would if record.dry else self._done).add(record)
        self.stopped_at = record.step if is_halt(record) else None

    def attempt_begins(self) -> None:
        self.stopped_at = None

    @property
    def decided(self) -> int:
        """Decisions, dry ones too."""
        return self._done.decisions + self._would.decisions

    def counts(self) -> dict[str, int]:
        """For the evidence: acts, those that were only decided, and each action by its name."""
        parts = [(self._done, ""), (self._would, "would have ")]
        by_action = {f"{prefix}{name}": one.number for tally, prefix in parts for name, one in tally.places.items()}
        dry = {"would have acted": self._would.decisions} if self._would.decisions else {}
        return {"acts": self._done.decisions, **dry, **by_action}

    def words(self) -> str:
        """`acted 3 times: 2 steps skipped (steps 5 and 9), 1 roll-back (step 812 back to 700)`."""
        told = [(self._done, "acted"), (self._would, "would have acted")]
        return "; ".join(f"{verb} {tally.words()}" for tally, verb in told if tally.decisions)


class _Places:
    """Where one action was taken: the first few steps by their numbers."""

    def __init__(self) -> None:
        self.number = 0
        self._first: list[str] = []

    def add(self, place: str) -> None:
        self.number += 1
        if len(self._first) < STEPS_NAMED:
            self._first.append(place)

    def words(self, action: str) -> str:
        more = [f"{self.number - STEPS_NAMED:,} more"] if self.number > STEPS_NAMED else []
        one, several = NOUNS.get(action, (action, action))
        steps = f"step{'s' * (self.number > 1)} {_listed([*self._first, *more])}"
        return f"{self.number:,} {one if self.number == 1 else several} ({steps})"


class _Tally:
    def __init__(self) -> None:
        self.decisions = 0
        self.places: dict[str, _Places] = {}

    def add(self, record: DecisionRecord) -> None:
        self.decisions += 1
        for action in actions_of(record):
            back = f" back to {record.to_step:,}" if action == "roll-back" and record.to_step is not None else ""
            self.places.setdefault(action, _Places()).add(f"{record.step:,}{back}")

    def words(self) -> str:
        times = "once" if self.decisions == 1 else f"{self.decisions:,} times"
        return f"{times}: {', '.join(self._ordered())}"

    def _ordered(self) -> Iterable[str]:
        names = sorted(self.places, key=lambda name: list(NOUNS).index(name) if name in NOUNS else len(NOUNS))
        return (self.places[name].words(name) for name in names)


def _to(action: str, record: DecisionRecord) -> str:
    return f" to step {record.to_step:,}" if action == "roll-back" and record.to_step is not None else ""


def _listed(parts: Sequence[str]) -> str:
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"
