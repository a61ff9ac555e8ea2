"""Where the workers say different things of themselves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from unisono.diagnose.rules.shared.run_state import RunState

TOPICS = ("settings", "model", "optimizer", "loader", "initial", "parameters")
STRETCHES_SHOWN = 6


@dataclass(frozen=True, slots=True)
class Difference:
    topic: str
    fact: str
    values: tuple[tuple[str, str], ...]
    """Each value with the ranks that hold it, the most frequent first."""


def differences(run_state: RunState) -> tuple[Difference, ...]:
    """The facts of the newest attempt that should be equal on all workers and are not."""
    found = []
    for topic in TOPICS:
        facts = run_state.facts(topic)
        for fact, values_W in (facts.differ if facts is not None else {}).items():
            if values_W and not _differs_by_design(fact, values_W):
                found.append(Difference(topic, fact, _grouped(values_W, run_state)))
    return tuple(found)


def ranges(ranks: Sequence[int]) -> str:
    """`0-2, 5, 6`; after a few stretches only how many more there are."""
    runs: list[list[int]] = []
    for rank in sorted(ranks):
        if runs and rank == runs[-1][-1] + 1:
            runs[-1].append(rank)
        else:
            runs.append([rank])
    told = [f"{run[0]}-{run[-1]}" if len(run) > 2 else ", ".join(map(str, run)) for run in runs[:STRETCHES_SHOWN]]
    more = sum(map(len, runs[STRETCHES_SHOWN:]))
    return ", ".join(told) + (f" and {more} more" if more else "")


def _differs_by_design(fact: str, values_W: Sequence[str | None]) -> bool:
    known = [value for value in values_W if value is not None]
    return fact == "sampler rank" and len(set(known)) == len(known)


def _grouped(values_W: Sequence[str | None], run_state: RunState) -> tuple[tuple[str, str], ...]:
    holders: dict[str, list[int]] = {}
    for worker, value in enumerate(values_W):
        holders.setdefault("-" if value is None else value, []).append(worker)
    ordered = sorted(holders.items(), key=lambda item: (-len(item[1]), item[1]))
    return tuple((value, ranges(run_state.ranks(workers))) for value, workers in ordered)
