"""Numbers that tell whether tensors are equal, and about how far apart they are where they are not."""

from unisono.sketch.fingerprint.exact import fingerprint, fingerprints, prepare
from unisono.sketch.fingerprint.mixing import splitmix64
from unisono.sketch.fingerprint.samples import digest, hash_of, projections, rows, sample

__all__ = ["digest", "fingerprint", "fingerprints", "hash_of", "prepare", "projections", "rows", "sample", "splitmix64"]
