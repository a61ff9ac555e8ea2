"""What listening and steering add to a step: blocks of steps with and without them take turns in the same processes."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch.distributed as dist

from unisono.act.weightings.agreement import AgreementFilter
from unisono.common.schedule import DEFAULT, every
from unisono.lab.bench.training import AttachOptions, TimedBlock, Trainee

PLAIN, EVERY_STEP, DEFAULT_SCHEDULE = "without unisono", "every step heard", "default schedule"


def by_turns(
    trainee: Trainee, variants: Mapping[str, AttachOptions], turns: int, steps: int, after_block: Callable[[], None]
) -> dict[str, list[TimedBlock]]:
    """For each variant a block per turn. Every second turn goes backwards, so that a steady drift cancels."""
    blocks: dict[str, list[TimedBlock]] = {name: [] for name in variants}
    for turn in range(turns):
        for name in list(variants)[:: -1 if turn % 2 else 1]:
            blocks[name].append(trainee.block(variants[name], steps))
            after_block()
    return blocks


def step_cost(trainee: Trainee, turns: int, steps: int, after_block: Callable[[], None]) -> dict[str, Any]:
    """Milliseconds and percent that listening adds, at every step and as the default schedule does after step 500."""
    trainee.block(None, steps)
    interval = _chosen_interval(trainee.block({"schedule": every(1)}, steps))
    schedules: dict[str, AttachOptions] = {
        PLAIN: None,
        EVERY_STEP: {"schedule": every(1)},
        DEFAULT_SCHEDULE: {"schedule": every(interval)},
    }
    blocks = by_turns(trainee, schedules, turns, steps, after_block)
    times = {name: [statistics.median(block.milliseconds) for block in found] for name, found in blocks.items()}
    times[DEFAULT_SCHEDULE] = [
        (one_heard + (interval - 1) * _unheard(block)) / interval
        for one_heard, block in zip(times[EVERY_STEP], blocks[DEFAULT_SCHEDULE], strict=True)
    ]
    plain = times[PLAIN]
    peaks = {name: max(block.peak_bytes for block in found) for name, found in blocks.items()}
    return {
        "turns": turns,
        "steps_a_block": steps,
        "interval": interval,
        "heard": {name: sum(sum(block.heard) for block in found) for name, found in blocks.items()},
        "reading_milliseconds": 1000 * statistics.median(_reading_seconds(blocks[EVERY_STEP])),
        "milliseconds": {name: statistics.median(found) for name, found in times.items()},
        "added_milliseconds": {name: spread_of(_differences(found, plain)) for name, found in times.items()},
        "added_percent": {name: spread_of(_percents(found, plain)) for name, found in times.items()},
        "extra_bytes": {name: peak - peaks[PLAIN] for name, peak in peaks.items()},
    }


def spread_of(values: Sequence[float]) -> dict[str, float]:
    """Over the turns."""
    return {"median": statistics.median(values), "least": min(values), "most": max(values)}


def _chosen_interval(block: TimedBlock) -> int:
    """That of the default schedule's last segment, by unisono's own rule; in `block` every step was heard."""
    # Rank 0 decides for all: its clocks are not theirs.
    found = [(statistics.median(block.milliseconds) / 1000, block.reading_seconds)]
    dist.broadcast_object_list(found)
    step_seconds, reading_seconds = found[0]
    if reading_seconds is None:
        raise RuntimeError("Steps should be heard to know what that costs. Found none that was.")
    return DEFAULT.segments[-1].interval_at(reading_seconds / step_seconds)


def _unheard(block: TimedBlock) -> float:
    """Median of the steps that were not heard; where all were, of all."""
    quiet = [one for one, heard in zip(block.milliseconds, block.heard, strict=True) if not heard]
    return statistics.median(quiet or block.milliseconds)


def _reading_seconds(blocks: Sequence[TimedBlock]) -> list[float]:
    return [block.reading_seconds for block in blocks if block.reading_seconds is not None]


def _differences(times: Sequence[float], plain: Sequence[float]) -> list[float]:
    return [one - other for one, other in zip(times, plain, strict=True)]


def _percents(times: Sequence[float], plain: Sequence[float]) -> list[float]:
    return [100 * (one / other - 1) for one, other in zip(times, plain, strict=True)]


PLAIN_DDP = "plain DDP"
ROUTES: dict[str, AttachOptions] = {
    PLAIN_DDP: None,
    "sketch, model": {"weighting": AgreementFilter(), "gram": "sketch"},
    "exact, model": {"weighting": AgreementFilter(), "gram": "exact"},
}


def route_cost(
    trainee: Trainee, routes: Mapping[str, AttachOptions], turns: int, steps: int, after_block: Callable[[], None]
) -> dict[str, Any]:
    """
    :param routes: by name, how `unisono.attach` is called; `PLAIN_DDP` is what the others are compared with.
    """
    blocks = by_turns(trainee, routes, turns, steps, after_block)
    times = {name: [statistics.median(block.milliseconds) for block in found] for name, found in blocks.items()}
    ratios = {
        name: [one / plain for one, plain in zip(found, times[PLAIN_DDP], strict=True)] for name, found in times.items()
    }
    return {
        "turns": turns,
        "steps_a_block": steps,
        "milliseconds": {name: statistics.median(found) for name, found in times.items()},
        "ratio": {name: statistics.median(found) for name, found in ratios.items()},
        "spread": {name: spread_of(found) for name, found in ratios.items()},
    }
