"""What a run was started with, and where two runs differ in it: whether they can be compared at all."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from unisono.diagnose.rules.shared.run_state import MOST_LOADERS, RunState
from unisono.records import FactsRecord
from unisono.show.analysis.checkup import count
from unisono.show.analysis.rank_differences import TOPICS
from unisono.show.analysis.scan_run import RunOverview

Settings: TypeAlias = Mapping[str, Mapping[str, str]]
"""By topic; what stands under `run` is known without the workers' own reports."""

KNOWN_WITHOUT = {"settings": ("torch", "python", "world", "job"), "model": ("parameters",)}
PROGRESS = ("number", "pass")
"""Of a loader: not a setting, but how far the run has come."""

VALUES_SHOWN = 4
NOT_SAID = "-"


@dataclass(frozen=True, slots=True)
class Setting:
    """Something in which two runs differ."""

    topic: str
    fact: str
    first: str
    second: str

    @property
    def name(self) -> str:
        return self.fact if self.topic == "run" else f"{self.topic}: {self.fact}"


def settings_of(run_state: RunState, overview: RunOverview) -> Settings:
    """Those of the newest attempt."""
    known = {"run": ({"script": overview.script} if overview.script else {}) | _attempt_facts(run_state)}
    return known | {topic: _told(facts, topic) for topic, facts in _records(run_state)}


def differing(first: Settings, second: Settings) -> tuple[Setting, ...]:
    """Only topics that both runs speak of: a run that ended early has not said everything."""
    return tuple(
        Setting(topic, fact, first[topic].get(fact, NOT_SAID), second[topic].get(fact, NOT_SAID))
        for topic in first
        if topic in second
        for fact in _settings_in(first[topic], second[topic])
        if first[topic].get(fact) != second[topic].get(fact)
    )


def cautions(first: Settings, second: Settings) -> list[str]:
    """In words, what keeps the runs from being comparable."""
    told = []
    if workers := _changed(first, second, "run", "workers"):
        told.append(f"the first run had {count(int(workers[0]), 'worker')}, the second {workers[1]}")
    if sizes := _changed(first, second, "run", "parameters"):
        words = f"{int(sizes[0]):,} parameters in the first run, {int(sizes[1]):,} in the second"
        told.append(f"the models differ: {words}")
    elif _changed(first, second, "model", "structure"):
        told.append("the models differ: as many parameters, but other names, shapes or precision")
    return told


def _attempt_facts(run_state: RunState) -> dict[str, str]:
    attempt = run_state.attempt
    if attempt is None:
        return {}
    devices = sorted({worker.device.partition(":")[0] for worker in attempt.workers if worker.device})
    known = {
        "workers": str(attempt.world),
        "parameters": str(attempt.parameters or ""),
        "torch": attempt.torch,
        "python": attempt.python,
        "devices": ", ".join(devices),
        "steering": attempt.steering,
        "guard": attempt.guard,
        # Behind the host stands a process id, which is another one in every run.
        "launched on": attempt.launcher.rpartition(":")[0],
    }
    return {fact: value for fact, value in known.items() if value}


def _records(run_state: RunState) -> Iterator[tuple[str, FactsRecord]]:
    """Each loader has its own facts; the newest ones may be those of an evaluation."""
    loaders = {f"loader {number}" if number else "loader": run_state.loader(number) for number in range(MOST_LOADERS)}
    loaders["loader"] = loaders["loader"] or run_state.facts("loader")
    for topic in TOPICS:
        for name, facts in loaders.items() if topic == "loader" else [(topic, run_state.facts(topic))]:
            if facts is not None:
                yield name, facts


def _told(facts: FactsRecord, topic: str) -> dict[str, str]:
    told = {**facts.same, **{fact: _listed(values_W) for fact, values_W in facts.differ.items()}}
    return {fact: value for fact, value in told.items() if fact not in KNOWN_WITHOUT.get(topic, ())}


def _listed(values_W: Sequence[str | None]) -> str:
    """`0, 1, 2, 3`, or `0, 1, 2 and 61 more`."""
    values = list(dict.fromkeys(NOT_SAID if value is None else value for value in values_W))
    if len(values) <= VALUES_SHOWN:
        return ", ".join(values)
    return f"{', '.join(values[: VALUES_SHOWN - 1])} and {len(values) - VALUES_SHOWN + 1:,} more"


def _settings_in(first: Mapping[str, str], second: Mapping[str, str]) -> list[str]:
    ignored = PROGRESS if first.get("pass") == second.get("pass") else (*PROGRESS, "sampler epoch")
    return [fact for fact in dict.fromkeys([*first, *second]) if fact not in ignored]


def _changed(first: Settings, second: Settings, topic: str, fact: str) -> tuple[str, str] | None:
    """Both values, where both are known and differ."""
    before, now = (settings.get(topic, {}).get(fact) for settings in (first, second))
    return None if before is None or now is None or before == now else (before, now)
