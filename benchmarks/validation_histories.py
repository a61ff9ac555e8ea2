"""UN412 on invented validation histories: how often it speaks of healthy ones, and how soon of stalls.

Healthy: the validation gains what the training loss loses, bent a little, with noise of three kinds and single dips; it
may have come to rest where the loss has. Stalls: from some validation on it stays or falls while the loss goes on.

python benchmarks/validation_histories.py --json docs/evidence/validation_histories.json
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from unisono.diagnose.rules.shared.run_state import RunState
from unisono.diagnose.rules.un412_validation_stalls import ValidationStalls
from unisono.records import AttemptRecord, StepRecord, ValidationRecord, WorkerFacts

Array = NDArray[np.float64]
STEPS = 2
"""Between two validations."""

SHAPES = ("exponential", "power law", "step-decayed", "cosine", "linear", "converged", "warm-up", "two stages")
NOISES = ("normal", "heavy tails", "persistent")


@dataclass
class History:
    validation_N: Array
    loss_N: Array
    stalls_at: int | None = None
    clear: bool = False
    """A quarter of the loss's fall is still to come, and the noise is below 2 % of what the validation gains."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--healthy", type=int, default=4_000)
    parser.add_argument("--stalls", type=int, default=800)
    parser.add_argument("--seed", type=int, default=2_027)
    parser.add_argument("--short", action="store_true", help="200 healthy histories and 40 stalls")
    parser.add_argument("--json", type=Path, metavar="FILE")
    asked = parser.parse_args()
    count, stalls = (200, 40) if asked.short else (asked.healthy, asked.stalls)
    result = {"command": f"python {shlex.join(sys.argv)}", **judged(count, stalls, np.random.default_rng(asked.seed))}
    text = json.dumps(result, indent=2)
    print(text)
    if asked.json is not None:
        asked.json.write_text(text + "\n")
    return 0


def judged(count: int, stalls: int, random: Generator) -> dict[str, object]:
    alarms, validations = 0, 0
    for number in range(count):
        history = healthy(SHAPES[number % len(SHAPES)], random)
        validations += len(history.validation_N)
        alarms += found_at(history) is not None
    cases = [stalled(random) for _ in range(stalls)]
    found = [(case, at) for case in cases if (at := found_at(case)) is not None]
    delays = [at - (case.stalls_at or 0) for case, at in found]
    return {
        "healthy": count,
        "healthy_validations": validations,
        "false_alarms": alarms,
        "stalls": stalls,
        "found": len(found),
        "found_before_they_began": sum(delay < 0 for delay in delays),
        "clear_stalls": sum(case.clear for case in cases),
        "clear_found": sum(case.clear for case, _ in found),
        "median_delay": float(np.median(delays)),
        "delay_of_9_in_10": float(np.quantile(delays, 0.9)),
    }


def found_at(history: History) -> int | None:
    """The number of the validation at which the rule speaks."""
    run_state, rule = RunState(), ValidationStalls()
    attempt = AttemptRecord(1, 0.0, 2, 0, tuple(WorkerFacts(rank, "", 0, "") for rank in range(2)))
    run_state.see(attempt)
    rule.see(attempt, run_state)
    for number, (validation, loss) in enumerate(zip(history.validation_N, history.loss_N, strict=True)):
        for step in range(number * STEPS, (number + 1) * STEPS):
            record = StepRecord(1, step, float(step), loss_W=(float(loss),) * 2, loss_mean=float(loss))
            run_state.see(record)
            rule.on_step(record, run_state)
        rule.on_validation(ValidationRecord(1, step, float(step), 0, float(validation)), run_state)
        if rule.case is not None:
            return number
    return None


def healthy(shape: str, random: Generator) -> History:
    count = int(np.exp(random.uniform(np.log(14), np.log(400))))
    done_N = progress(shape, count, random)
    noise = 10 ** random.uniform(-3.3, -1.3)
    gained_N = done_N ** random.uniform(0.6, 1.6)
    low, high = random.uniform(0, 0.1), random.uniform(0.2, 0.98)
    kind = NOISES[random.integers(len(NOISES))]
    validation_N = low + (high - low) * gained_N + noise * noise_of(kind, count, random)
    first, last = first_and_last_loss(random)
    scale = random.integers(3)
    if scale < 2:
        validation_N = (1, 100)[scale] * np.clip(validation_N, 0, 1)
    else:
        validation_N = -(first - (first - last * random.uniform(1, 1.5)) * gained_N)
        validation_N *= 1 + noise * noise_of(kind, count, random)
    if random.random() < 0.3:
        validation_N[random.integers(count)] -= 0.3 * np.ptp(validation_N)
    return History(validation_N, losses(done_N, first, last, random))


def stalled(random: Generator) -> History:
    count = int(np.exp(random.uniform(np.log(24), np.log(400))))
    done_N = progress("exponential" if random.random() < 0.6 else "linear", count, random)
    at = int(count * random.uniform(0.2, 0.5))
    gained_N, noise, high = np.minimum(done_N, done_N[at]), 10 ** random.uniform(-3.3, -1.5), random.uniform(0.2, 0.9)
    if random.random() < 0.5:
        gained_N -= np.maximum(0, done_N - done_N[at]) * random.uniform(0.1, 0.6)
    validation_N = np.clip(0.05 + high * gained_N + noise * random.standard_normal(count), 0, 1)
    left = 1 - done_N[at] / done_N[-1]
    loss_N = losses(done_N, *first_and_last_loss(random), random)
    return History(validation_N, loss_N, at, clear=bool(left >= 0.25 and noise <= 0.02 * high))


def progress(shape: str, count: int, random: Generator) -> Array:
    """How much of what can be learnt has been learnt at each validation, from 0 to about 1."""
    time_N = np.arange(count, dtype=float)
    if shape == "power law":
        return 1 - (1 + time_N / count / random.uniform(0.005, 0.1)) ** -random.uniform(0.3, 1.2)
    if shape == "step-decayed":
        drops = [
            (int(count * random.uniform(*where)), gain) for where, gain in (((0.3, 0.5), 0.17), ((0.6, 0.8), 0.06))
        ]
        late = [gain * np.where(time_N >= at, -np.expm1((at - 1 - time_N) / 2), 0) for at, gain in drops]
        return 0.75 * -np.expm1(-time_N / count / random.uniform(0.05, 0.2)) + sum(late)
    if shape == "cosine":
        return 0.6 * -np.expm1(-10 * time_N / count) + 0.4 * (time_N / count) ** random.uniform(1, 3)
    if shape == "linear":
        return time_N / count
    if shape == "warm-up":
        return np.clip((time_N - 0.1 * count) / count, 0, None) ** 0.5
    if shape == "two stages":
        second = np.clip(time_N - count * random.uniform(0.4, 0.6), 0, None)
        return -0.5 * np.expm1(-time_N / count / 0.1) - 0.5 * np.expm1(-second / count / 0.1)
    fastest, slowest = (0.02, 0.1) if shape == "converged" else (0.05, 0.6)
    return -np.expm1(-time_N / count / random.uniform(fastest, slowest))


def losses(done_N: Array, first: float, last: float, random: Generator) -> Array:
    """Means since the validation before: they lag behind by half the time between two."""
    middle_N = (done_N + np.concatenate([[0.0], done_N[:-1]])) / 2
    noise_N = 10 ** random.uniform(-3, -1.3) * random.standard_normal(len(done_N))
    return (first - (first - last) * middle_N) * (1 + noise_N)


def first_and_last_loss(random: Generator) -> tuple[float, float]:
    first = random.uniform(1, 6)
    return first, first * random.uniform(0.02, 0.5)


def noise_of(kind: str, count: int, random: Generator) -> Array:
    if kind == "heavy tails":
        return random.standard_t(3, count) / 3**0.5
    noise_N = random.standard_normal(count)
    if kind == "persistent":
        for at in range(1, count):
            noise_N[at] = 0.6 * noise_N[at - 1] + 0.8 * noise_N[at]
    return noise_N


if __name__ == "__main__":
    sys.exit(main())
