"""What steering adds to a step: its routes to the inner products of gradients, against plain all-reduce."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from typing import Any

from unisono.act.weightings.agreement import AgreementFilter
from unisono.lab.bench.step_cost import by_turns, spread_of
from unisono.lab.bench.training import AttachOptions, Trainee

PLAIN = "plain DDP"
ROUTES: dict[str, AttachOptions] = {
    PLAIN: None,
    "sketch, model": {"weighting": AgreementFilter(), "gram": "sketch"},
    "exact, model": {"weighting": AgreementFilter(), "gram": "exact"},
}


def route_cost(
    trainee: Trainee, routes: Mapping[str, AttachOptions], turns: int, steps: int, after_block: Callable[[], None]
) -> dict[str, Any]:
    """
    :param routes: by name, how `unisono.attach` is called; `PLAIN` is what the others are compared with.
    """
    blocks = by_turns(trainee, routes, turns, steps, after_block)
    times = {name: [statistics.median(block.milliseconds) for block in found] for name, found in blocks.items()}
    ratios = {
        name: [one / plain for one, plain in zip(found, times[PLAIN], strict=True)] for name, found in times.items()
    }
    return {
        "turns": turns,
        "steps_a_block": steps,
        "milliseconds": {name: statistics.median(found) for name, found in times.items()},
        "ratio": {name: statistics.median(found) for name, found in ratios.items()},
        "spread": {name: spread_of(found) for name, found in ratios.items()},
    }
