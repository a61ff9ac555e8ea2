"""Agreement over many steps: directions are summed before they are compared, which brings out what noise hides."""

from __future__ import annotations

from dataclasses import dataclass

from unisono.act.weightings.weighting import Wrapped


@dataclass(frozen=True)
class Windowed(Wrapped):
    """
    Shows the other weighting the Gram matrix of each worker's directions summed over the last steps, older ones fading.

    Where two healthy gradients have hardly anything in common, one step cannot tell a worker that computes nonsense;
    many can. What differs from step to step, a bad batch, is no longer seen.

    :param steps: How many steps are in view; from one to the next, the sum is multiplied by `1 - 1 / steps`.
    """

    steps: int = 32

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.steps, int) or self.steps < 2:
            raise ValueError(f"`steps` of a window should be a whole number from 2 up. Found `{self.steps}`. Try 32.")

    @property
    def window(self) -> int:
        return self.steps
