"""Agreement filtering on whole gradients, written down as papers and packages describe it, and problems to try it on.

W = workers, N = numbers in a gradient.
"""

import math
from dataclasses import dataclass

import numpy as np

EXACT = 1e-12
"""A distance this close to the limit is at the limit."""


@dataclass
class Outcome:
    kept: list[int]
    aggregate_N: np.ndarray
    margin: float
    """How far the nearest distance was from the limit, not counting those exactly at it."""

    cancelled: float
    """The shortest sum of gradients that was compared with another, but not zero, relative to its parts."""


def distance(one_N, other_N):
    scale = np.linalg.norm(one_N) * np.linalg.norm(other_N)
    return 1 - one_N @ other_N / scale if scale > 0 else 1.0


class Judge:
    """Decides, and remembers how narrow it was."""

    def __init__(self, max_distance):
        self.max_distance, self.margin, self.cancelled = max_distance, math.inf, math.inf

    def accepts(self, gradient_N, sum_N, parts):
        length = np.linalg.norm(sum_N) / max(sum(np.linalg.norm(part) for part in parts), 1e-300)
        if length > 0:
            self.cancelled = min(self.cancelled, length)
        off = distance(sum_N, gradient_N) - self.max_distance
        if abs(off) > EXACT:
            self.margin = min(self.margin, abs(off))
        return off <= EXACT


def finite(gradient_WN):
    return [worker for worker, gradient_N in enumerate(gradient_WN) if np.isfinite(gradient_N).all()]


def sequential(gradient_WN, max_distance, fusion):
    """`fusion`: the mean of all that were taken up, or the mean of what was there and the new one."""
    judge, kept, running_N = Judge(max_distance), [], np.zeros(gradient_WN.shape[1])
    for worker in finite(gradient_WN):
        if not kept:
            running_N = gradient_WN[worker]
        elif not judge.accepts(gradient_WN[worker], running_N, gradient_WN[kept]):
            continue
        elif fusion == "halving":
            running_N = (running_N + gradient_WN[worker]) / 2
        else:
            running_N = sum(gradient_WN[other] for other in [*kept, worker]) / (len(kept) + 1)
        kept.append(worker)
    if len(kept) < 2:
        kept, running_N = [], np.zeros_like(running_N)
    return Outcome(kept, running_N, judge.margin, judge.cancelled)


def leaving_one_by_one(gradient_WN, max_distance):
    """Whoever is furthest from the sum of the others, at equal length, leaves, and all at the same distance with it."""
    judge, kept = Judge(max_distance), finite(gradient_WN)
    length_W = np.array([np.linalg.norm(one) if worker in kept else 1 for worker, one in enumerate(gradient_WN)])
    unit_WN = gradient_WN / np.where(length_W > 0, length_W, 1)[:, None]
    while len(kept) > 1:
        others = {worker: [other for other in kept if other != worker] for worker in kept}
        accepted = [judge.accepts(unit_WN[one], unit_WN[rest].sum(0), unit_WN[rest]) for one, rest in others.items()]
        if all(accepted):
            return Outcome(kept, gradient_WN[kept].mean(0), judge.margin, judge.cancelled)
        away = {worker: distance(unit_WN[worker], unit_WN[rest].sum(0)) for worker, rest in others.items()}
        furthest = max(away.values())
        judge.margin = min([judge.margin, *(furthest - one for one in away.values() if furthest - one > EXACT)])
        kept = [worker for worker in kept if furthest - away[worker] > EXACT]
    return Outcome([], np.zeros(gradient_WN.shape[1]), judge.margin, judge.cancelled)


def problem(rng, workers, elements=24):
    """Gradients with something in common, and in most problems rows of zeros, duplicates, or not finite ones."""
    common = rng.choice([0.0, 0.3, 1.0, 3.0])
    gradient_WN = rng.normal(size=(workers, elements)) + common * rng.normal(size=elements)
    gradient_WN *= 10 ** rng.uniform(-2, 2, size=(workers, 1))
    for worker in range(workers):
        other = rng.integers(workers)
        match rng.choice(["as it is", "zero", "duplicate", "opposite", "longer", "nan", "inf"], p=SHARES):
            case "zero":
                gradient_WN[worker] = 0
            case "duplicate":
                gradient_WN[worker] = gradient_WN[other]
            case "opposite":
                gradient_WN[worker] = -gradient_WN[other]
            case "longer":
                gradient_WN[worker] = 4 * gradient_WN[other]
            case "nan":
                gradient_WN[worker, rng.integers(elements)] = np.nan
            case "inf":
                gradient_WN[worker, rng.integers(elements)] = rng.choice([np.inf, -np.inf])
    return gradient_WN


SHARES = [0.7, 0.05, 0.08, 0.05, 0.04, 0.04, 0.04]
