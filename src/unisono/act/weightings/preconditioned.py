"""Agreement in the metric of Adam's second moments, the practical form of Mahalanobis (open question of 2412.18052)."""

from __future__ import annotations

from dataclasses import dataclass

from unisono.act.weightings.weighting import Wrapped


@dataclass(frozen=True)
class Preconditioned(Wrapped):
    """
    Shows the other weighting the Gram matrix of gradients divided by the root of Adam's second moments: directions in
    which gradients are always large no longer drown the others.

    The weights are applied to the gradients themselves. Needs an optimizer that keeps `exp_avg_sq` or `square_avg`;
    until it has taken its first step, gradients are compared as they are.

    :param relative: Added to each root, as a share of the parameter's root mean square, so that numbers that hardly
        ever had a gradient do not decide.
    """

    relative: float = 0.1

    @property
    def damping(self) -> float:
        return self.relative
