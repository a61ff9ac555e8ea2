"""Any number of steps in a bounded number of stretches: their length doubles whenever there would be too many."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Array: TypeAlias = NDArray[Any]


class Stretches:
    """Stretches of `length` steps from `origin` on, at most `most` of them."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.origin = 0
        self.length = 1
        self.count = 0
        """Stretches up to the newest step."""

    def begin(self, step: int) -> None:
        self.origin, self.length, self.count = step, 1, 0

    def reach(self, step: int) -> int:
        """Makes room for a step; how often the length doubled for it."""
        doubled = 0
        while (step - self.origin) // self.length >= self.most:
            self.length *= 2
            doubled += 1
            self.count = -(-self.count // 2)
        self.count = max(self.count, self.place(step) + 1)
        return doubled

    def cut(self, step: int) -> int:
        """Forgets all stretches that reach a step or later; how many are left. One that it cuts is forgotten whole."""
        self.count = max(0, min(self.count, (step - self.origin) // self.length))
        return self.count

    def place(self, step: int) -> int:
        return (step - self.origin) // self.length

    def places(self, step_N: Array) -> Array:
        return (step_N - self.origin) // self.length

    def centres(self) -> Array:
        """The middle step of each stretch."""
        return self.origin + (np.arange(self.count) + 0.5) * self.length - 0.5
