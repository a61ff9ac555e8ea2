"""Which runs the table of the experiment needs, and which of them come next."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from unisono.lab.experiments.results import Results

IDENTITY = ("purpose", "noise", "method", "tau", "microbatch", "workers", "stem", "seed", "learning_rate", "epochs")
CHOSEN_LATER = 0.0
"""The learning rate of a run in the table before tuning has found it."""


@dataclass(frozen=True)
class RunPlan:
    noise: int
    """Per cent of the training labels that are wrong."""

    method: str
    tau: float | None
    microbatch: int
    workers: int
    seed: int
    epochs: int
    stem: str = "imagenet"
    learning_rate: float = CHOSEN_LATER
    purpose: str = "table"
    """Or `tuning`: short, and only to choose the learning rate."""

    @property
    def batch(self) -> int:
        return self.microbatch * self.workers

    @property
    def name(self) -> str:
        tau = "" if self.tau is None else f"-{self.tau:g}"
        size = f"{self.workers}x{self.microbatch}{'-cifar-stem' * (self.stem == 'cifar')}"
        tuning = f"-tuning-{self.learning_rate:g}" if self.purpose == "tuning" else ""
        return f"{self.method}{tau}-{size}-noise-{self.noise}-seed-{self.seed}{tuning}"

    def fields(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class RunTable:
    """The wanted runs, and how their learning rates are found."""

    wanted: tuple[RunPlan, ...]
    """Those that matter most first."""

    rates: tuple[float, ...]
    tuning_epochs: int

    def missing(self, results: Results) -> Iterator[RunPlan]:
        """What can be run now, what the table lacks most first. Tuning of a row comes before the row."""
        offered = set[RunPlan]()
        for wanted in self.wanted:
            trials = self.trials(wanted)
            untried = [trial for trial in trials if not results.has(trial.fields())]
            plans = untried or [self.tuned(wanted, results.runs)]
            for plan in plans:
                if plan not in offered and not results.has(plan.fields()):
                    offered.add(plan)
                    yield plan

    def trials(self, plan: RunPlan) -> list[RunPlan]:
        """The same number for every row: one run with each rate, at the nearest noise that is tuned."""
        trial = replace(plan, purpose="tuning", seed=0, epochs=self.tuning_epochs, noise=TUNED_AT[plan.noise])
        return [replace(trial, learning_rate=rate) for rate in self.rates]

    def tuned(self, plan: RunPlan, runs: Sequence[Mapping[str, Any]]) -> RunPlan:
        """With the rate that came out best on the images kept for tuning; the lower one where two are equal."""
        keys = [tuple(trial.fields()[name] for name in IDENTITY) for trial in self.trials(plan)]
        tried = [run for run in runs if tuple(run.get(name) for name in IDENTITY) in keys]
        best = max(tried, key=lambda run: (run["tuning_accuracy"], -run["learning_rate"]))
        return replace(plan, learning_rate=best["learning_rate"])

    def progress(self, results: Results) -> str:
        names = [name for name in IDENTITY if name != "learning_rate"]
        wanted = {tuple(plan.fields()[name] for name in names) for plan in self.wanted}
        done = sum(tuple(run[name] for name in names) in wanted for run in results.runs)
        return f"{done} of {len(self.wanted)} runs of the table are in {results.path}."


TUNED_AT = {0: 0, 5: 0, 50: 50, 80: 80, 90: 80}
"""Rates for a noise are tuned at this one."""

SIX: tuple[tuple[str, float | None], ...] = (
    ("averaging-128", None),
    ("averaging", None),
    ("published", 0.97),
    ("published", 0.95),
    ("order-independent", 0.97),
    ("adaptive", None),
)
OTHERS_AT_50: tuple[tuple[str, float | None, int, int, str], ...] = (
    ("published", 0.9, 100, 2, "imagenet"),
    ("published", 0.99, 100, 2, "imagenet"),
    ("halving", 0.97, 100, 2, "imagenet"),
    ("preconditioned", 0.97, 100, 2, "imagenet"),
    ("norm-aware", 0.97, 100, 2, "imagenet"),
    ("averaging", None, 200, 2, "imagenet"),
    ("published", 0.97, 200, 2, "imagenet"),
    ("averaging", None, 300, 2, "imagenet"),
    ("published", 0.97, 300, 2, "imagenet"),
    ("averaging", None, 100, 4, "imagenet"),
    ("published", 0.97, 100, 4, "imagenet"),
    ("halving", 0.97, 100, 4, "imagenet"),
    ("order-independent", 0.97, 100, 4, "imagenet"),
    ("averaging", None, 100, 2, "cifar"),
    ("published", 0.97, 100, 2, "cifar"),
)


def full_table() -> RunTable:
    epochs = 60
    main = [
        [_base(method, tau, noise, seed, epochs) for noise in (50, 0, 80) for method, tau in SIX] for seed in range(3)
    ]
    edges = [_base(method, tau, noise, 0, epochs) for noise in (5, 90) for method, tau in SIX]
    others = [
        RunPlan(50, method, tau, microbatch, workers, 0, epochs, stem)
        for method, tau, microbatch, workers, stem in OTHERS_AT_50
    ]
    return RunTable((*main[0], *others, *edges, *main[1], *main[2]), rates=(0.003, 0.01, 0.03), tuning_epochs=20)


def small_table(classes: int) -> RunTable:
    """Two methods, seconds each."""
    wanted = tuple(
        RunPlan(50, method, tau, 4 * classes, 2, seed=0, epochs=8)
        for method, tau in (("averaging", None), ("published", 0.97))
    )
    return RunTable(wanted, rates=(0.01, 0.03), tuning_epochs=4)


def _base(method: str, tau: float | None, noise: int, seed: int, epochs: int) -> RunPlan:
    microbatch, workers = (128, 1) if method == "averaging-128" else (100, 2)
    return RunPlan(noise, method, tau, microbatch, workers, seed, epochs)
