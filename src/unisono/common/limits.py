"""From how many workers on something is done otherwise: known to all stages, so that they agree on it."""

from __future__ import annotations

ALL_PAIRS_UP_TO = 64
"""With more workers each is held against the sum of the others, and nobody looks at pairs."""

MATRIX_UP_TO, MATRIX_IN_BURSTS_UP_TO = 8, 128
"""Above so many workers, pairwise and group-by-worker values are kept only in bursts, and not at all: with more than
256 a record would be too long for the run file. Pairs are known only up to `ALL_PAIRS_UP_TO` workers."""
