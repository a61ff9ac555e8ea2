"""The guard's policy over healthy virtual runs of the detection benchmark: what came nearest to an action, and how many
there were. There should be none.

Every run is judged afresh from three quarters of its steps on, as after a restart, when the guard knows no past.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch
from benchmarks.detection.setting import Setting, healthy
from benchmarks.detection.virtual_workers import Fleet

from unisono.act.guard.options import EXPLOSION, NORM_SPIKE, Guard
from unisono.act.guard.policy_conditions import WITH_LOSSES, score_of_most, stands_out
from unisono.act.guard.step_state import Situation, Watch
from unisono.lab.faults.injections import Injection
from unisono.listen.messages import AllRanksStep

GUARD = Guard(rollback=True, reset_momentum=True, budget=False)
NEVER = 10**9


@dataclass
class Result:
    setting: str
    workers: int
    steps: int = 0
    norm_ratio: float = 0.0
    norm_ratio_with_losses: float = 0.0
    """While the losses of most workers had risen together: then the limit is four times as high."""

    loss_score: float = 0.0
    """Of losses that stood out among the workers of the same step."""

    loss_score_of_most: float = 0.0
    """While the norm was beyond the limit that holds where losses do not rise."""

    actions: int = 0

    def see(self, now: Situation, acted: bool) -> None:
        self.steps += 1
        self.actions += acted
        ratio = now.norm_ratio or 0.0
        if now.risen:
            self.norm_ratio_with_losses = max(self.norm_ratio_with_losses, ratio)
        else:
            self.norm_ratio = max(self.norm_ratio, ratio)
        if ratio > NORM_SPIKE:
            self.loss_score_of_most = max(self.loss_score_of_most, score_of_most(now))
        scores = [score or 0.0 for worker, score in enumerate(now.loss_score_W) if stands_out(now, worker)]
        self.loss_score = max([self.loss_score, *scores])


class Judged:
    """One run as the guard sees it."""

    def __init__(self, setting: Setting) -> None:
        self._setting = setting
        self._restart()

    def _restart(self) -> None:
        self._watch, self._policy = Watch(self._setting.workers), GUARD.policy()

    def see(self, all_ranks: AllRanksStep, result: Result) -> None:
        if all_ranks.step == (self._setting.resume_at or 3 * self._setting.steps // 4):
            self._restart()
        said = [signal for signal in all_ranks.signal_W if signal is not None]
        norm = math.sqrt(sum(signal.reduced_share or 0.0 for signal in said))
        now = self._watch.situation(
            all_ranks.step,
            [signal.loss for signal in said],
            [signal.finite for signal in said],
            norm,
            scaled=self._setting.skip_every > 0,
            restorable=(-1,),
        )
        result.see(now, self._policy.decide(now) is not None)
        self._watch.learn(now, GUARD.spike(now))


def judged(name: str, setting: Setting, runs: int, seed: int) -> Result:
    fleet = Fleet(setting, [Injection(0, NEVER)] * runs, seed)
    watched, result = [Judged(setting) for _ in range(runs)], Result(name, setting.workers)
    for step in range(setting.steps):
        for one, all_ranks in zip(watched, fleet.step(step, [False] * runs), strict=True):
            one.see(all_ranks, result)
    return result


def table(results: Sequence[Result]) -> str:
    lines = ["| setting | workers | steps | norm ratio | while losses rise | loss score | actions |"]
    lines.append("|---|---|---|---|---|---|---|")
    for one in results:
        ratios = f"{one.norm_ratio:.1f} | {one.norm_ratio_with_losses:.1f} | {one.loss_score:.1f}"
        lines.append(f"| {one.setting} | {one.workers} | {one.steps:,} | {ratios} | {one.actions} |")
    return "\n".join(lines)


def summary(results: Sequence[Result]) -> dict[str, float | int]:
    return {
        "settings": len({one.setting for one in results}),
        "steps": sum(one.steps for one in results),
        "norm_ratio": round(max(one.norm_ratio for one in results), 1),
        "norm_ratio_limit": NORM_SPIKE,
        "norm_ratio_with_losses": round(max(one.norm_ratio_with_losses for one in results), 1),
        "norm_ratio_with_losses_limit": WITH_LOSSES * NORM_SPIKE,
        "rollback_limit": EXPLOSION,
        "loss_score": round(max(one.loss_score for one in results), 1),
        "loss_score_of_most": round(max(one.loss_score_of_most for one in results), 1),
        "loss_score_limit": float(GUARD.loss_spike),
        "actions": sum(one.actions for one in results),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--short", action="store_true", help="one run of 400 steps each, two and four workers")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there, too")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    runs, steps, numbers = (1, 400, (2, 4)) if arguments.short else (4, 2000, (2, 4, 8))
    results = []
    for workers in numbers:
        for number, (name, setting) in enumerate(healthy(steps).items()):
            results.append(judged(name, replace(setting, workers=workers), runs, 3000 + 100 * workers + number))
            sys.stderr.write(".")
            sys.stderr.flush()
    found = summary(results)
    print(f"\n{table(results)}\n\n" + "\n".join(f"{name:<30}{value:>10,}" for name, value in found.items()))
    if arguments.json:
        rows = [
            {key: round(value, 2) if isinstance(value, float) else value for key, value in asdict(one).items()}
            for one in results
        ]
        content = {
            "command": "python -m benchmarks.guard_on_healthy",
            "torch": torch.__version__,
            **found,
            "rows": rows,
        }
        arguments.json.write_text(json.dumps(content, indent=1) + "\n")
    return int(found["actions"] > 0)


if __name__ == "__main__":
    sys.exit(main())
