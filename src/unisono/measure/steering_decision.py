"""What steering decided at a step, as the step's record keeps it.

W = workers.
"""

from __future__ import annotations

import math
from typing import Any

from unisono.listen.messages import AllRanksStep

MOST_WORKERS = 64
"""Above so many, who was left out is kept only at heard steps: it would be most of a file."""


def decided(all_ranks: AllRanksStep, heard: bool) -> dict[str, Any]:
    """The fields of the step's record; none without steering, or where the worker that tells of it was silent."""
    signal = next((signal for signal in all_ranks.signal_W if signal is not None and signal.weight_W), None)
    if signal is None:
        return {}
    weight_W, workers = signal.weight_W, len(signal.weight_W)
    kept = sum(weight != 0 for weight in weight_W)
    values: dict[str, Any] = {"kept_workers": kept}
    if workers > MOST_WORKERS and not (heard and kept < workers):
        return values
    if kept and not all(math.isclose(weight, 1 / workers, rel_tol=1e-6) for weight in weight_W):
        values["weight_W"] = weight_W
    if heard or kept < workers:
        values["distance_W"] = tuple(None if math.isnan(distance) else distance for distance in signal.distance_W)
    return values
