"""What is known of a run so far, for all rules."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from unisono.diagnose.rules.shared.comparable_steps import ComparableSteps
from unisono.diagnose.rules.shared.known_batches import new_batches
from unisono.diagnose.rules.shared.scaled_losses import ScaledLosses
from unisono.records import AttemptRecord, FactsRecord
from unisono.records.decision_text import DecisionCounts

MOST_LOADERS = 32


class RunState:
    def __init__(self) -> None:
        self.attempt: AttemptRecord | None = None
        self.step = -1
        """The newest step."""

        self.steps = 0
        self.comparable = ComparableSteps()
        self.scaled = ScaledLosses()
        self.local_training = False
        """The job says, by torch's own tools for it, that its workers train on their own and then average weights."""

        self.decision_counts = DecisionCounts()
        """What the guard has done."""

        self._grave: set[str] = set()
        self._facts: dict[str, FactsRecord] = {}
        self._loaders: dict[str | None, FactsRecord] = {}
        self._places: dict[int, str] = {}

    def see(self, record: Any) -> None:
        if record.kind == "step":
            self.step = max(self.step, record.step)
            self.steps += 1
            self.comparable.follow(record)
            if self.comparable.broken:
                self.scaled = ScaledLosses()
            if record.norm_W and self.comparable.usable and new_batches(record):
                self.scaled.follow(record, self.comparable.log_loss_W)
        elif record.kind == "attempt":
            self._begin(record)
        elif record.kind == "decision":
            self.decision_counts.add(record)
        elif record.kind == "facts":
            self._facts[record.topic] = record
            if record.topic == "model":
                self.local_training = _declares_local_training(record)
            elif record.topic == "loader":
                self._loaders = dict([*self._loaders.items(), (record.same.get("number"), record)][-MOST_LOADERS:])

    def _begin(self, attempt: AttemptRecord) -> None:
        self.attempt = attempt
        self.comparable, self.scaled = ComparableSteps(), ScaledLosses()
        self.local_training = False
        self.decision_counts.attempt_begins()
        self._grave.clear()
        self._facts.clear()
        self._loaders.clear()
        known = [worker for worker in attempt.workers if worker.host]
        self._places |= {worker.rank: f"{worker.host} {worker.device}" for worker in known}

    def hold(self, code: str) -> None:
        """A rule has found something above a remark."""
        self._grave.add(code)

    def is_held(self, code: str) -> bool:
        """Whether a rule has found something above a remark in this attempt."""
        return code in self._grave

    @property
    def world(self) -> int:
        return self.attempt.world if self.attempt is not None else 0

    def facts(self, topic: str) -> FactsRecord | None:
        """The newest facts about a topic in this attempt."""
        return self._facts.get(topic)

    def fact(self, topic: str, name: str) -> str | None:
        """A fact that all workers agree on."""
        facts = self._facts.get(topic)
        return None if facts is None else facts.same.get(name)

    @property
    def joins(self) -> bool:
        """Some worker's data may end before the others' do, and the script has provided for that."""
        return self._somewhere("model", "data", "uneven, inside Join")

    @property
    def replaced(self) -> bool:
        """Parameters have been moved, cast or replaced since the model was wrapped, on some worker at least."""
        return self._somewhere("model", "replaced", "yes")

    @property
    def wrapped_again(self) -> bool:
        """The script has wrapped the model anew, which makes all weights equal to those of the first worker."""
        return self._somewhere("model", "wrapped", "again")

    def _somewhere(self, topic: str, name: str, value: str) -> bool:
        facts = self._facts.get(topic)
        return facts is not None and value in (facts.same.get(name), *facts.differ.get(name, ()))

    def loader(self, number: int) -> FactsRecord | None:
        """The newest facts about one of several loaders."""
        return self._loaders.get(str(number))

    def ranks(self, workers: Sequence[int]) -> tuple[int, ...]:
        """The launcher's numbers of workers."""
        known = self.attempt.workers if self.attempt is not None else ()
        return tuple(known[worker].rank if worker < len(known) else worker for worker in workers)

    def where(self, ranks: Sequence[int]) -> tuple[str, ...]:
        return tuple(self._places[rank] for rank in ranks if rank in self._places)


def _declares_local_training(facts: FactsRecord) -> bool:
    hook = facts.same.get("comm hook") or ""
    return facts.same.get("averager") == "yes" or "localsgd" in hook.lower().replace("_", "")


def each(facts: FactsRecord, name: str, world: int) -> tuple[str | None, ...]:
    """What each worker says; empty where nobody says anything."""
    if name in facts.same:
        return (facts.same[name],) * max(1, world)
    return facts.differ.get(name, ())


LONGEST_NUMBER = 18


def number(text: str | None) -> int | None:
    """A fact as a number; `None` where it is not one, or one that nothing has so many of."""
    return int(text) if text is not None and text.isdecimal() and len(text) <= LONGEST_NUMBER else None


def numbers(texts_W: Sequence[str | None]) -> list[int | None]:
    return [number(text) for text in texts_W]


def disagree(values_W: Sequence[Any]) -> bool:
    return bool(values_W) and len({value for value in values_W if value is not None}) > 1


def minority(values_W: Sequence[Any]) -> list[int]:
    """The workers that differ from what more than half of them hold; empty where there is no such majority.

    `None` is no value. With two workers nobody is in the minority.
    """
    known = [value for value in values_W if value is not None]
    if not known:
        return []
    most, count = Counter(known).most_common(1)[0]
    if 2 * count <= len(known):
        return []
    return [worker for worker, value in enumerate(values_W) if value is not None and value != most]


def sharing(twins_W: Sequence[int | None]) -> list[int]:
    """The workers that share with another one."""
    if not twins_W:
        return []
    count = Counter(first for first in twins_W if first is not None)
    return [worker for worker, first in enumerate(twins_W) if first is not None and count[first] > 1]


def camps(values_W: Sequence[Any]) -> dict[Any, list[int]]:
    """Who holds what, the largest camp first."""
    found: dict[Any, list[int]] = {}
    for worker, value in enumerate(values_W):
        if value is not None:
            found.setdefault(value, []).append(worker)
    return dict(sorted(found.items(), key=lambda camp: -len(camp[1])))


def opposed(twins_W: Sequence[int | None], run_state: RunState) -> str:
    """`rank 2 against ranks 0, 1 and 3`, or that no two agree."""
    found = list(camps(twins_W).values())
    if len(found) > 2 and len(found) == sum(map(len, found)):
        return "no two workers agree"
    if len(found) > 4:
        return f"{len(found)} different versions"
    return " against ".join(spoken(run_state.ranks(workers)) for workers in reversed(found))


def told(values_W: Sequence[Any], run_state: RunState) -> str:
    """`0.1 on rank 2, 0.01 on ranks 0, 1 and 3`."""
    found = camps(values_W)
    parts = [f"{value} on {spoken(run_state.ranks(workers))}" for value, workers in reversed(found.items())]
    return ", ".join(parts if len(parts) <= 6 else [*parts[:5], f"{len(parts) - 5} other values elsewhere"])


def spoken(ranks: Sequence[int]) -> str:
    """`rank 1`, `ranks 0 and 2`, `ranks 0, 1 and 2`, `ranks 0, 1, 2 and 37 more`; nobody may be named."""
    names = [str(rank) for rank in ranks]
    if not names:
        return "some rank"
    if len(names) > 8:
        names = [*names[:6], f"{len(names) - 6} more"]
    if len(names) == 1:
        return f"rank {names[0]}"
    return f"ranks {', '.join(names[:-1])} and {names[-1]}"
