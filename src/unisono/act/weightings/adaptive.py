"""Agreement filtering without a distance to search for: the noise scale (McCandlish et al., arXiv 1812.06162) sets it.

W = workers or micro-batches, K = the kept ones.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from torch import Tensor

from unisono.act.weightings.agreement import RECOMMENDED, AgreementFilter
from unisono.act.weightings.consensus import agreeing, at_equal_length, with_others
from unisono.act.weightings.weighting import Weighting, finite_workers, like, on_host, shared

AVERAGED = 50
"""Steps over which is averaged what gradients have in common: plainly up to here, exponentially after that."""

FIRST = 10
"""Steps before that is believed."""

CLEAR = 4.0
"""Standard deviations by which a cosine must fall short before it counts against anybody."""


@dataclass
class _Memory:
    steps: int = 0
    common: float = 0.0
    """Mean cosine of two kept gradients; the noise scale in batches of one worker is its inverse less one."""

    variance: float = 0.0
    """Of cosines with the sum of the others, from those above what is expected: whoever is bad and kept is below."""


@dataclass(frozen=True)
class AdaptiveFilter(Weighting):
    """
    Leaves out a gradient that agrees with the others less than `share` of what the noise of these batches lets expect,
    and by more than chance explains. It follows the run: agree little late in training, and little is asked for.

    :param share: 0.5 is half-way between a gradient that has nothing in common with the others and one that has all.
    """

    share: float = 0.5
    _memory: _Memory = field(default_factory=_Memory, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not 0 < self.share < 1:
            raise ValueError(f"`share` should lie between 0 and 1. Found `{self.share}`. Try 0.5.")

    def __call__(self, gram_WW: Tensor) -> Tensor:
        if len(gram_WW) < 2:
            return AgreementFilter()(gram_WW)
        host_WW = on_host(gram_WW)
        heard = finite_workers(host_WW)
        kept = agreeing(host_WW, self._least)
        # Where most were left out, the limit may be what is wrong: everybody tells what to expect, and soon.
        trusted = 2 * len(kept) >= len(heard)
        told = kept if trusted else heard
        if len(told) > 1:
            self._learn(at_equal_length(host_WW)[told][:, told], trusted)
        return like(gram_WW, shared(len(gram_WW), kept))

    def _least(self, others: int) -> float:
        if self._memory.steps < FIRST:
            return 1 - RECOMMENDED
        expected = expected_cosine(self._memory.common, others)
        return min(self.share * expected, expected - CLEAR * math.sqrt(self._memory.variance))

    def _learn(self, unit_KK: Tensor, trusted: bool) -> None:
        memory, told = self._memory, len(unit_KK)
        memory.steps += 1
        rate = 1 / min(AVERAGED if trusted else FIRST, memory.steps)
        pairs = float(unit_KK.sum() - unit_KK.diagonal().sum()) / (told * (told - 1))
        memory.common += (max(0.0, pairs) - memory.common) * rate
        above_K = with_others(unit_KK) - expected_cosine(memory.common, told - 1)
        above_K = above_K[above_K > 0]
        if len(above_K):
            memory.variance += (float(above_K.square().mean()) - memory.variance) * rate


def expected_cosine(common: float, others: int) -> float:
    """Of one gradient with the sum of others, where a share `common` of each is the same and the rest is noise."""
    return common / math.sqrt(common + (1 - common) / others) if common > 0 else 0.0
