"""Which way of agreeing without an order: variants on invented gradients, healthy and with workers gone wrong.

    python benchmarks/agreement_variants.py --json docs/evidence/agreement_variants.json

W = workers, N = numbers in a gradient, K = those kept. Each gradient is a signal of all, `common` of its square,
and noise of its own. Every variant looks at the same gradients, in an order drawn anew, with the limit the paper
recommends.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Generator, Tensor

from unisono.act.weightings.agreement import RECOMMENDED
from unisono.act.weightings.consensus import at_equal_length, with_others
from unisono.weightings import AdaptiveFilter, AgreementFilter, Weighting

ELEMENTS = 3000
LEAST = 1 - RECOMMENDED
LEARNING = 50
"""Steps before counting starts: one of the variants learns."""


@dataclass(frozen=True)
class Scenario:
    workers: int
    bad: int
    fault: str
    common: float

    def gradients(self, generator: Generator) -> tuple[Tensor, Tensor]:
        """The signal, of length one, and the gradients, the bad ones first."""
        signal_N = torch.nn.functional.normalize(torch.randn(ELEMENTS, generator=generator), dim=0)
        noise_WN = torch.randn(self.workers, ELEMENTS, generator=generator) / math.sqrt(ELEMENTS)
        gradient_WN = math.sqrt(self.common) * signal_N + math.sqrt(1 - self.common) * noise_WN
        gradient_WN[: self.bad] = FAULTS[self.fault](gradient_WN, noise_WN, signal_N)[: self.bad]
        return signal_N, gradient_WN


FAULTS: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    "none": lambda gradient_WN, noise_WN, signal_N: gradient_WN,
    "flipped": lambda gradient_WN, noise_WN, signal_N: -gradient_WN,
    "random": lambda gradient_WN, noise_WN, signal_N: noise_WN,
    "huge": lambda gradient_WN, noise_WN, signal_N: 100 * noise_WN,
    "colluding": lambda gradient_WN, noise_WN, signal_N: 3 * (0.5 * noise_WN - signal_N),
}
CASES = [(4, 0, "none"), (4, 1, "flipped"), (4, 1, "random"), (4, 1, "huge")]
CASES += [(8, 0, "none"), (8, 1, "flipped"), (8, 1, "random"), (8, 1, "huge"), (8, 3, "flipped"), (8, 3, "colluding")]
COMMON = (0.01, 0.05, 0.3)


def largest_group(gram_WW: Tensor) -> list[int]:
    """All of whom agree pair by pair; of several as large, the one with the larger mean cosine."""
    cos_WW = at_equal_length(gram_WW)
    for size in range(len(cos_WW), 1, -1):
        groups = [list(group) for group in itertools.combinations(range(len(cos_WW)), size)]
        blocks = [cos_WW[group][:, group] for group in groups]
        agreed = [(float(one.sum()), group) for one, group in zip(blocks, groups, strict=True) if one.min() >= LEAST]
        if agreed:
            return max(agreed)[1]
    return []


def most_neighbours(gram_WW: Tensor) -> list[int]:
    """The worker with whom most agree, and those."""
    near_WW = at_equal_length(gram_WW) >= LEAST
    return near_WW[int(near_WW.sum(1).argmax())].nonzero()[:, 0].tolist()


def median_of_pairs(gram_WW: Tensor) -> list[int]:
    """Everybody whose median cosine with the others agrees."""
    workers = len(gram_WW)
    off_diagonal = ~torch.eye(workers, dtype=torch.bool)
    pairs_WW = at_equal_length(gram_WW)[off_diagonal].reshape(workers, workers - 1)
    return (pairs_WW.quantile(0.5, dim=1) >= LEAST).nonzero()[:, 0].tolist()


def with_the_rest_once(gram_WW: Tensor) -> list[int]:
    return (with_others(at_equal_length(gram_WW)) >= LEAST).nonzero()[:, 0].tolist()


def with_the_rest_unscaled(gram_WW: Tensor) -> list[int]:
    """As the filter does it, but long gradients count more."""
    kept = list(range(len(gram_WW)))
    while len(kept) > 1:
        cos_K = with_others(gram_WW[kept][:, kept])
        if cos_K.min() >= LEAST:
            return kept
        kept.pop(int(cos_K.argmin()))
    return []


def kept_by(weighting: Weighting) -> Callable[[Tensor], list[int]]:
    return lambda gram_WW: weighting(gram_WW).nonzero()[:, 0].tolist()


def variants() -> dict[str, Callable[[Tensor], list[int]]]:
    return {
        "sequential, as published": kept_by(AgreementFilter(order="sequential")),
        "largest mutually agreeing group": largest_group,
        "most neighbours": most_neighbours,
        "median of pairs": median_of_pairs,
        "sum of the others, once": with_the_rest_once,
        "sum of the others, one by one, unscaled": with_the_rest_unscaled,
        "sum of the others, one by one (chosen)": kept_by(AgreementFilter()),
        "the same, adaptive": kept_by(AdaptiveFilter()),
    }


@dataclass
class Tally:
    """Shares of steps, and the cosine of the update with the signal."""

    healthy_kept: float = 0.0
    bad_kept: float = 0.0
    skipped: float = 0.0
    alignment: float = 0.0

    def add(self, kept: Sequence[int], scenario: Scenario, alignment: float, share: float) -> None:
        healthy = sum(worker >= scenario.bad for worker in kept)
        self.healthy_kept += share * healthy / (scenario.workers - scenario.bad)
        self.bad_kept += share * (len(kept) - healthy) / max(1, scenario.bad)
        self.skipped += share * (not kept)
        self.alignment += share * alignment


def aligned(gradient_WN: Tensor, kept: Sequence[int], signal_N: Tensor) -> float:
    mean_N = gradient_WN[list(kept)].mean(0)
    return float(mean_N @ signal_N / mean_N.norm()) if len(kept) > 0 else 0.0


def tried(scenario: Scenario, steps: int) -> dict[str, Tally]:
    generator, deciders = Generator().manual_seed(0), variants()
    tallies = {name: Tally() for name in ("only the healthy", "plain mean", *deciders)}
    for step in range(-LEARNING, steps):
        signal_N, gradient_WN = scenario.gradients(generator)
        order = torch.randperm(scenario.workers, generator=generator)
        shuffled_WN = gradient_WN[order].double()
        gram_WW = shuffled_WN @ shuffled_WN.T
        everybody = list(range(scenario.workers))
        decided = {"only the healthy": everybody[scenario.bad :], "plain mean": everybody}
        for name, decide in deciders.items():
            kept = [int(order[place]) for place in decide(gram_WW)]
            decided[name] = kept if len(kept) > 1 else []
        for name, kept in decided.items():
            if step >= 0:
                tallies[name].add(kept, scenario, aligned(gradient_WN, kept, signal_N), 1 / steps)
    return tallies


def table(scenario: Scenario, tallies: dict[str, Tally]) -> str:
    oracle = tallies["only the healthy"].alignment
    lines = [
        f"\n{scenario.workers} workers, {scenario.bad} {scenario.fault}, common {scenario.common}\n",
        "| variant | healthy kept | bad kept | skipped | alignment / oracle's |",
        "|---|---|---|---|---|",
    ]
    for name, one in tallies.items():
        rates = f"{one.healthy_kept:.3f} | {one.bad_kept:.3f} | {one.skipped:.3f} | {one.alignment / oracle:.3f}"
        lines.append(f"| {name} | {rates} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--short", action="store_true", help="a tenth of the steps")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there, too")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    steps, results = 20 if arguments.short else 200, []
    for (workers, bad, fault), common in itertools.product(CASES, COMMON):
        scenario = Scenario(workers, bad, fault, common)
        tallies = tried(scenario, steps)
        print(table(scenario, tallies), flush=True)
        rounded = {name: {key: round(value, 4) for key, value in asdict(one).items()} for name, one in tallies.items()}
        results.append(asdict(scenario) | {"steps": steps, "variants": rounded})
    if arguments.json:
        content = {"command": "python benchmarks/agreement_variants.py", "torch": torch.__version__, "rows": results}
        arguments.json.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
