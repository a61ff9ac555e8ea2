"""Norms that stay small: readings in a row, and layer groups beside each other. G = layer groups."""

from __future__ import annotations

from itertools import pairwise

from unisono.records import Floats

LASTING, READINGS = 50, 10
"""Steps, and readings among them, after which something that was so at all of them is no chance."""

FAINT, TOLERANCE = 1e-6, 0.25
"""Of the layer group with the largest norm, and the share of readings at which rare samples may reach it."""

RISING, DEEP = 0.7, 6


class Stretch:
    """Readings in a row at which something was so, but for a share of them."""

    def __init__(self, tolerance: float = 0.0) -> None:
        self.readings = self.since = self._last = self._misses = 0
        self._tolerance = tolerance

    def add(self, holds: bool, step: int) -> None:
        if not holds:
            self._misses += 1
            if self._misses > self._tolerance * self.readings:
                self.readings = self._misses = 0
            return
        self.since = self.since if self.readings else step
        self.readings += 1
        self._last = step

    @property
    def lasts(self) -> bool:
        return self.readings >= READINGS and self._last - self.since >= LASTING


class FaintLayers:
    """Groups that have a gradient, far smaller than that of the others."""

    def __init__(self) -> None:
        self.was_strong: set[int] = set()
        self._faint: dict[int, Stretch] = {}
        self._norm_G: Floats = ()

    def add(self, norm_G: Floats, step: int) -> None:
        """A group without any gradient is frozen, not used, or has its turn at other steps."""
        self._norm_G = norm_G
        limit = FAINT * max((norm for norm in norm_G if norm is not None), default=0.0)
        for group, norm in enumerate(norm_G):
            faint = norm is not None and 0 < norm < limit
            if faint or group in self._faint:
                self._faint.setdefault(group, Stretch(TOLERANCE)).add(faint, step)
            if norm and not faint:
                self.was_strong.add(group)

    @property
    def fades(self) -> bool:
        """The norms grow from layer to layer: on the way back through a deep model little is left of the gradient."""
        known = [norm for norm in self._norm_G if norm]
        pairs = [later > earlier for earlier, later in pairwise(known)]
        return len(known) >= DEEP and sum(pairs) >= RISING * len(pairs)

    @property
    def any(self) -> bool:
        return any(stretch.readings for stretch in self._faint.values())

    @property
    def waiting(self) -> bool:
        """Some group is faint, and it is too early for a word."""
        return any(0 < stretch.readings < READINGS for stretch in self._faint.values())

    def found(self) -> list[int]:
        """Those with a gradient at the newest reading too: others may just have been frozen."""
        lasting = {group for group, stretch in self._faint.items() if stretch.lasts}
        return [group for group, norm in enumerate(self._norm_G) if norm and group in lasting]
