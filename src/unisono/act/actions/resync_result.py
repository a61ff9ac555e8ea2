"""What a resync has changed, the same on every worker, in numbers and in words."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

MOST_SAID = 4


@dataclass(frozen=True, slots=True)
class Overwritten:
    """What one worker took from another."""

    worker: int
    by: int
    parameters: int = 0
    buffers: int = 0
    states: int = 0
    """Parameters of which the optimizer's memory was replaced, and optimizers of which the settings were."""

    largest: float = 0.0
    """The largest absolute difference in parameters; infinite where a value was not finite on one of the two."""

    largest_in_buffers: float = 0.0
    """Apart: some of them count, and differ by whole numbers."""

    names: tuple[str, ...] = ()
    """The first of what differed."""


@dataclass(frozen=True, slots=True)
class ResyncResult:
    """Workers are numbered as in the group."""

    source: int
    parameters: int
    """As many as were compared."""

    buffers: int
    overwritten: tuple[Overwritten, ...] = ()
    left_alone: tuple[str, ...] = ()
    """Reasons why something was not compared."""

    def sentence(self, ranks: Sequence[int]) -> str:
        """
        :param ranks: The launcher's numbers of the workers.
        """
        said = [self._about(each, ranks) for each in self.overwritten[:MOST_SAID]]
        more = len({each.worker for each in self.overwritten} - {each.worker for each in self.overwritten[:MOST_SAID]})
        said += [f"{more} more overwritten"] if more else []
        return ". ".join([*(said or ["all replicas are equal"]), *self.left_alone])

    def _about(self, each: Overwritten, ranks: Sequence[int]) -> str:
        parts = (
            _tensors(each.parameters, self.parameters, "parameters", each.largest),
            _tensors(each.buffers, self.buffers, "buffers", each.largest_in_buffers),
            "optimizer state" if each.states else "",
        )
        return f"rank {ranks[each.worker]} was overwritten by rank {ranks[each.by]}: {'; '.join(filter(None, parts))}"


def _tensors(count: int, total: int, kind: str, largest: float) -> str:
    apart = f"largest difference {largest:.1e}" if math.isfinite(largest) else "some values were not finite"
    return f"{count} of {total} {kind}, {apart}" if count else ""
