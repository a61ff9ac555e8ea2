"""The weighted sum of words of `exact.py`, for many tensors in one launch on a GPU, in Triton.

Integers modulo 2^64 may be added in any order. Suffixes give shapes: Q = tensors, N = pieces, J = tiles.
"""

import triton
import triton.language as tl


@triton.jit
def weigh(
    address_Q,
    words_Q,
    piece_N3,
    column_factors,
    row_factors,
    sum_NJ,
    COLUMNS: tl.constexpr,
    TILE: tl.constexpr,
    ALIGNED: tl.constexpr,
):
    """One program adds up one tile of the columns of a piece: some rows of one tensor."""
    # There may be more pieces than a grid has room for in any but its first dimension.
    piece, tile = tl.program_id(0), tl.program_id(1)
    tensor = tl.load(piece_N3 + 3 * piece)
    first, end = tl.load(piece_N3 + 3 * piece + 1), tl.load(piece_N3 + 3 * piece + 2)
    words = tl.load(words_Q + tensor)
    at = tl.load(address_Q + tensor).to(tl.pointer_type(tl.int32))
    if ALIGNED:
        at = tl.multiple_of(at, 16)
    quad, lane = tl.arange(0, TILE // 4)[:, None], tl.arange(0, 4)[None, :]
    column = tile * TILE + quad * 4 + lane
    total = tl.zeros([TILE // 4, 4], tl.int64)
    for row in range(first, end):
        begin = (first.to(tl.int64) + (row - first)) * COLUMNS
        left = tl.minimum(words - begin, COLUMNS).to(tl.int32)
        if ALIGNED:
            # Whole vectors only, as in the fold.
            inside = tile * TILE + quad * 4 < left
        else:
            inside = column < left
        word = tl.load(at + begin + column, mask=inside, other=0, cache_modifier=".cg")
        total += word.to(tl.int64) * tl.load(row_factors + row)
    total *= tl.load(column_factors + column)
    tl.store(sum_NJ + piece * (COLUMNS // TILE) + tile, tl.sum(total))


@triton.jit
def seal(sum_NJ, first_piece_Q, offset_Q, hash_Q, TILES: tl.constexpr, AT_ONCE: tl.constexpr):
    """The sum of each tensor, with the number for its type, shape and place, mixed as by `splitmix64`."""
    tensor = tl.program_id(0)
    column, more = tl.arange(0, TILES)[None, :], tl.arange(0, AT_ONCE)[:, None]
    end = tl.load(first_piece_Q + tensor + 1)
    total = tl.zeros([AT_ONCE, TILES], tl.int64)
    for piece in range(tl.load(first_piece_Q + tensor), end, AT_ONCE):
        total += tl.load(sum_NJ + (piece + more) * TILES + column, mask=piece + more < end, other=0)
    word = (tl.sum(total) + tl.load(offset_Q + tensor)).to(tl.uint64) + 0x9E3779B97F4A7C15
    word = (word ^ (word >> 30)) * 0xBF58476D1CE4E5B9
    word = (word ^ (word >> 27)) * 0x94D049BB133111EB
    tl.store(hash_Q + tensor, (word ^ (word >> 31)).to(tl.int64))
