"""Numbers that tell whether tensors are equal, and about how far apart they are where they are not."""

from unisono.fingerprints._exact import fingerprint, prepare
from unisono.fingerprints._samples import digest, projections, rows, sample

__all__ = ["digest", "fingerprint", "prepare", "projections", "rows", "sample"]
