"""UN503: one worker needs longer than the others for its part of the step."""

from __future__ import annotations

import math
from collections import Counter, deque

from unisono.diagnose.rules.shared.run_state import RunState, spoken
from unisono.diagnose.rules.shared.statistical_rule import Statistical
from unisono.diagnose.statistics import median, median_of_others
from unisono.records import StepRecord

SLOW = 1.3
STEPS = 200
MOST = 0.9
"""Share of those steps at which the same worker has to be the slowest."""

EVERY = 50
WORTH_A_WARNING = 0.010
"""Seconds per step. Below this it may be the worker that writes the log."""

Slowest = tuple[int, float, float]
"""Worker, time as a multiple of the others' median, seconds above it."""


class SlowWorker(Statistical):
    """One worker is slower than the others"""

    code, slug, severity = "UN503", "slow-worker", "warning"
    pattern = "thermal throttling"
    source = "direction consistency manual, section 4"
    meaning = (
        "All workers wait for the slowest one before they can average their gradients. In at least 180 of 200 steps, "
        "the worker named needed more than 1.3 times the median of the others from the end of one step to the end of "
        "its own backward pass: loading data, forward and backward, without waiting for others."
    )
    correction = "The manual expects throttling to lower the similarity of gradients. It changes times, not numbers."
    needs = "two or more workers and 200 steps with their times"
    causes = {
        "more-work": "the worker's batches are larger or longer than the others'",
        "extra-work-on-rank-0": "rank 0 does more in the training loop: logging, checkpoints, evaluation",
        "slow-device": "its device is throttled (heat, power), shared with another job, or of a slower kind",
        "slow-loading": "its data come slower: disk, network, too few DataLoader workers, a busy host",
    }
    remedies = {
        "more-work": ("give every worker the same amount: equal batch sizes, similar total length per batch",),
        "extra-work-on-rank-0": ("do such work less often, or spread it over the workers",),
        "slow-device": ("look at clocks, temperature and other processes there (nvidia-smi -q -d CLOCK,PERFORMANCE)",),
        "slow-loading": ("raise num_workers of the DataLoader on that host, and look at its disk and CPU load",),
    }
    forgets_at_jumps = False

    def forget(self) -> None:
        self._slowest: deque[Slowest | None] = deque(maxlen=STEPS)
        self._steps = 0

    def hear(self, record: StepRecord, run_state: RunState) -> None:
        time_W = record.compute_W
        if len(time_W) < 2 or None in time_W:
            return
        self._slowest.append(_slowest(time_W))  # type: ignore[arg-type]
        self._steps += 1
        if self._steps < STEPS or self._steps % EVERY:
            return
        count = Counter(slowest[0] for slowest in self._slowest if slowest is not None)
        worker, times = count.most_common(1)[0] if count else (0, 0)
        if times >= MOST * STEPS:
            self._accuse(record, run_state, worker)
        else:
            self.passed(record.step)

    def _accuse(self, record: StepRecord, run_state: RunState, worker: int) -> None:
        entries = [entry for entry in self._slowest if entry is not None and entry[0] == worker]
        ratio, seconds = median([entry[1] for entry in entries]), median([entry[2] for entry in entries])
        rank = run_state.ranks((worker,))[0]
        self.report(
            record.step,
            run_state,
            why=(
                f"{spoken((rank,))} needed {ratio:.3g} times as long as the others ({1000 * seconds:.3g} ms more a "
                f"step) in {len(entries)} of the last {STEPS} steps"
            ),
            causes=_causes(record, worker, rank),
            workers=(worker,),
            severity="warning" if seconds >= WORTH_A_WARNING else "info",
            evidence={"compute_to_others": round(ratio, 3), "seconds_lost_per_step": round(seconds, 6)},
            since=max(0, record.step - STEPS + 1),
        )


def _slowest(time_W: tuple[float, ...]) -> Slowest | None:
    # Nobody is far above the others' median who is not far above the fastest.
    if max(time_W) <= SLOW * min(time_W):
        return None
    worker = time_W.index(max(time_W))
    others = median_of_others(time_W, worker)
    if not 0 < others < time_W[worker] < math.inf:
        return None
    return (worker, time_W[worker] / others, time_W[worker] - others) if time_W[worker] > SLOW * others else None


def _causes(record: StepRecord, worker: int, rank: int) -> dict[str, float]:
    causes = {"slow-device": 0.5, "slow-loading": 0.4}
    for amount_W in (record.samples_W, record.length_W):
        known = [float(amount) for amount in amount_W if amount is not None]
        if len(known) == len(amount_W) > 1 and known[worker] > SLOW * median_of_others(known, worker):
            causes["more-work"] = 0.8
    return causes | ({"extra-work-on-rank-0": 0.6} if rank == 0 else {})
