"""Which runs there are, and which comes next: learning rates first, then seed by seed, so that tables fill evenly."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any

from unisono.lab.experiments.critical_batch.task import Way
from unisono.lab.experiments.results import Run

TUNED_WITH = 0
"""The seed with which learning rates are chosen; the results are those of others."""

FEWEST_STEPS = 1_000
"""A first try may take so many, however large its batches are."""

PATIENCE = 3
"""A run with a chosen learning rate may take so many times the steps of the one that it was chosen by."""

FILTER_PATIENCE = 5
"""A filtered run may take so many times the steps of plain averaging."""

AROUND = (1.0, 0.5, 2.0, 0.25, 4.0, 0.125)
"""Learning rates that are tried with the filter, relative to the best one of plain averaging."""


@dataclass(frozen=True)
class Extent:
    """How much is trained."""

    name: str
    target: float
    batches: tuple[int, ...]
    rates: tuple[float, ...]
    seeds: tuple[int, ...]
    most_samples: int
    """After which a first try is given up."""

    workers: int
    noise_batch: int
    """Of all workers together, in the run in which the noise scale is measured."""

    micros: tuple[int, ...]
    in_a_step: int
    """Micro-batches."""

    distances: tuple[float, ...]


REAL = Extent(
    name="tinyshakespeare",
    target=2.2,
    batches=tuple(2**power for power in range(2, 14)),
    rates=tuple(2.0**power for power in range(-7, 3)),
    seeds=(1, 2, 3),
    most_samples=3_000_000,
    workers=4,
    noise_batch=128,
    micros=(16, 64, 256),
    in_a_step=4,
    distances=(0.97,),
)
SMALL = Extent(
    name="generated",
    target=1.3,
    batches=(8, 32, 128),
    rates=(0.25, 1.0),
    seeds=(1,),
    most_samples=40_000,
    workers=2,
    noise_batch=32,
    micros=(32,),
    in_a_step=4,
    distances=(0.97,),
)


@dataclass(frozen=True)
class Task:
    """One run to do: `way` alone, or with several ranks that are listened to."""

    kind: str
    """`averaged`, `filtered` or `listened`."""

    way: Way
    most_steps: int

    def identity(self, extent: Extent) -> Run:
        way = self.way
        return {
            "kind": self.kind,
            "text": extent.name,
            "batch": way.batch,
            "micro": way.micro,
            "max_distance": way.max_distance,
            "rate": way.rate,
            "seed": way.seed,
        }


IDENTITY = ("kind", "text", "batch", "micro", "max_distance", "rate", "seed")


class Plan:
    """Looked at anew after each run: what comes next depends on what was found."""

    def __init__(self, extent: Extent, runs: Sequence[Run]) -> None:
        self.extent = extent
        self._runs = [run for run in runs if run["text"] == extent.name]

    def tasks(self) -> Iterator[Task]:
        """In order, done or not, as far as can be told yet."""
        yield from self._tuning()
        for seed in self.extent.seeds:
            yield from self._averaged(seed)
            yield from self._listened(seed)
            if seed == self.extent.seeds[0]:
                yield from self._tuning_of_filters()
            yield from self._filtered(seed)

    def _tuning(self) -> Iterator[Task]:
        for number in range(len(self.extent.rates)):
            for batch in self.extent.batches:
                way = Way(batch, self._likely_first(batch)[number], TUNED_WITH)
                most = max(FEWEST_STEPS, self.extent.most_samples // batch)
                yield Task("averaged", way, self._fewest("averaged", way) or most)

    def _likely_first(self, batch: int) -> list[float]:
        """A guess that is near spares the others: they need not go on once they take longer."""
        guess = 0.025 * math.sqrt(batch)
        return sorted(self.extent.rates, key=lambda rate: abs(math.log(rate / guess)))

    def _averaged(self, seed: int) -> Iterator[Task]:
        for batch in self.extent.batches:
            best = self.best("averaged", Way(batch, 0.0, TUNED_WITH))
            if best is not None:
                yield Task("averaged", Way(batch, best["rate"], seed), PATIENCE * best["steps"])

    def _listened(self, seed: int) -> Iterator[Task]:
        best = self.best("averaged", Way(self.extent.noise_batch, 0.0, TUNED_WITH))
        if best is not None:
            yield Task("listened", Way(self.extent.noise_batch, best["rate"], seed), best["steps"])

    def _tuning_of_filters(self) -> Iterator[Task]:
        for factor in AROUND:
            for way in self._filters():
                best = self.best("averaged", Way(way.batch, 0.0, TUNED_WITH))
                if best is not None:
                    most = self._fewest("filtered", way) or FILTER_PATIENCE * best["steps"]
                    yield Task("filtered", replace(way, rate=best["rate"] * factor), most)

    def _filtered(self, seed: int) -> Iterator[Task]:
        for way in self._filters():
            best = self.best("filtered", way)
            if best is not None:
                yield Task("filtered", replace(way, rate=best["rate"], seed=seed), PATIENCE * best["steps"])

    def _filters(self) -> list[Way]:
        extent = self.extent
        return [
            Way(micro * extent.in_a_step, 0.0, TUNED_WITH, micro, distance)
            for distance in extent.distances
            for micro in extent.micros
        ]

    def _fewest(self, kind: str, way: Way) -> int | None:
        best = self.best(kind, way)
        return None if best is None else int(best["steps"])

    def best(self, kind: str, way: Way) -> Run | None:
        """The quickest run with any learning rate, of those that it is chosen by."""
        reached = [run for run in self._like(kind, way) if run["seed"] == TUNED_WITH and run["reached"]]
        return min(reached, key=lambda run: run["steps"], default=None)

    def results(self, kind: str, way: Way) -> list[Run]:
        """Of the other seeds, with the chosen learning rate."""
        best = self.best(kind, way)
        seeds = self.extent.seeds
        return [run for run in self._like(kind, way) if best and run["rate"] == best["rate"] and run["seed"] in seeds]

    def steps(self) -> dict[int, float]:
        """For each batch size the geometric mean over its seeds, where all reached the target."""
        found = {batch: self.results("averaged", Way(batch, 0.0, TUNED_WITH)) for batch in self.extent.batches}
        return {
            batch: math.exp(fmean(math.log(run["steps"]) for run in runs))
            for batch, runs in found.items()
            if runs and all(run["reached"] for run in runs)
        }

    def _like(self, kind: str, way: Way) -> list[dict[str, Any]]:
        wanted = (kind, way.batch, way.micro, way.max_distance)
        return [run for run in self._runs if (run["kind"], run["batch"], run["micro"], run["max_distance"]) == wanted]
