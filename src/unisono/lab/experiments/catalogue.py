"""The experiments by name. Without torch, so that the command line can list them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path


@dataclass(frozen=True)
class Experiment:
    what: str
    data: str
    """What `--data` should hold."""

    module: str
    """Has `run(order: Order) -> str`, which goes on until the minutes are over or nothing is left to do, and says how
    far it is."""

    def run(self, order: Order) -> str:
        said: str = import_module(self.module).run(order)
        return said


@dataclass(frozen=True)
class Order:
    """What the command line asks of an experiment."""

    data: Path | None
    """None for a small one, which makes its own."""

    out: Path
    minutes: float
    command: str
    """The line that asks for it, for the results."""

    @property
    def small(self) -> bool:
        return self.data is None


EXPERIMENTS: Mapping[str, Experiment] = {
    "gaf": Experiment(
        what="Gradient Agreement Filtering (arXiv 2412.18052): accuracy on CIFAR-100 under label noise",
        data="CIFAR-100: the official train.bin and test.bin, or mosaics train_*.webp and test_*.webp",
        module="unisono.lab.experiments.gaf.experiment",
    ),
    "silent-inconsistency": Experiment(
        what="Silent Inconsistency (arXiv 2602.14462): which faults three measures over workers show",
        data="alpaca/alpaca_subset.jsonl and the model stories260K/",
        module="unisono.lab.experiments.silent_inconsistency.experiment",
    ),
    "critical-batch": Experiment(
        what="the batch size at which training stops benefiting, against the noise scale",
        data="text/tinyshakespeare.txt",
        module="unisono.lab.experiments.critical_batch.experiment",
    ),
}
