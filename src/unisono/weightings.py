"""Gram in, weights out: how much each worker's gradient counts, from the inner products of all of them.

A weighting is called with the (W, W) Gram matrix of W workers, or micro-batches, and returns W weights; the update is
the sum of `w_i g_i`. All zero skips the step. Any callable of this form will do; these are the ones that come along.
"""

from unisono.act.weightings.adaptive import AdaptiveFilter
from unisono.act.weightings.agreement import AgreementFilter
from unisono.act.weightings.mean import Mean
from unisono.act.weightings.norm_aware import NormAware
from unisono.act.weightings.preconditioned import Preconditioned
from unisono.act.weightings.torchjd import FromTorchJD
from unisono.act.weightings.weighting import Weighting
from unisono.act.weightings.windowed import Windowed

__all__ = [
    "AdaptiveFilter",
    "AgreementFilter",
    "FromTorchJD",
    "Mean",
    "NormAware",
    "Preconditioned",
    "Weighting",
    "Windowed",
]
