"""What one rank has to say about a step, and what all ranks said together.

W = workers, G = layer groups, K = sketch length.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True)
class Steered:
    """What steering decided at a step."""

    weight_W: tuple[float, ...]
    distance_W: tuple[float, ...]
    """Cosine distance of each worker's gradient to the sum of the other kept ones; NaN where that is not known."""


@dataclass(frozen=True, slots=True)
class RankStep:
    """One rank's step in plain numbers: small enough to travel at every step."""

    step: int
    time: float
    loss: float | None = None
    finite: bool = True
    skipped: bool = False
    compute: float | None = None
    seconds: float = 0.0
    cost: float = 0.0
    """Seconds of this step spent inside unisono on the training thread."""

    clip_norm: float | None = None
    due: bool = False
    """The plan says that this step is heard, whether or not this rank managed to."""

    heard: bool = False
    window: int = 0
    nonfinite: int = 0
    reduced_share: float | None = None
    """Squared norm of this rank's share of the parameters after all-reduce."""

    squared_norm_G: tuple[float, ...] = ()
    backwards: int = 1
    syncs: int = 1
    """Backward passes of this step, and how many of them ended in an all-reduce."""

    passes: int = 0
    updates: int = 0
    """Synchronised backward passes and optimizer steps since the start."""

    lr: float | None = None
    settings: int | None = None
    """Hash of all numbers in the optimizer's groups."""

    part: int = 0
    parts: int = 0
    reduced: int | None = None
    used: int | None = None
    weights: int | None = None
    state: int | None = None
    buffers: int | None = None
    start: int | None = None
    """Fingerprints of the compared part: gradients after all-reduce, as the optimizer took them, weights, ..."""

    weight_square: float | None = None
    """Squared norm of the compared weights."""

    samples: int | None = None
    length: float | None = None
    padding: float | None = None
    input_mean: float | None = None
    input_scale: float | None = None
    """Mean and standard deviation of the numbers that the model was fed with."""

    indices: int | None = None
    content: int | None = None
    targets: int | None = None
    """Hashes of the step's dataset indices, of all its inputs, of their last part."""

    target_rows: int = 0
    fresh: bool = False
    repeats: int | None = None
    """The step at which the same batch was read before."""

    weight_W: tuple[float, ...] = ()
    distance_W: tuple[float, ...] = ()
    """What steering decided for all workers, as the first of them says; empty on the others, and without steering."""

    @property
    def squared_norm(self) -> float | None:
        return sum(self.squared_norm_G) if self.heard else None


@dataclass(frozen=True, slots=True)
class AllRanksStep:
    """All ranks at one step, in rank order; `None` where a rank was silent."""

    step: int
    signal_W: tuple[RankStep | None, ...]
    sketch_WK: Tensor | None = None
    sketch_GWK: Tensor | None = None
    plain_mean: bool = True
    """All-reduce is a plain mean: no compression, no joined rank."""

    scale_W: Tensor | None = None
    scale_GW: Tensor | None = None
    """Where the sketches are still the whole numbers they travelled as: what one is worth. NaN where a rank sent none.
    """
