"""The fold of fold.py for many gradients in one launch on a GPU, in Triton.

One program owns one tile of the sketch and walks over rows that have the same rotation modulo 16, so that it can keep
its sums in registers and still read whole vectors. It adds them to a region of memory of its own, 16 numbers longer
than the tile, where the rest of the rotation is made up for. No two programs write to the same place, and every sum has
a fixed order. `layout.py` says which program reads what.

Suffixes give shapes: P = gradients, N = rows, R = runs, S = stretches, U = units, G = layer groups, K = sketch length,
J = tiles, T = groups of 16 numbers in a tile, L = their 16 lanes.
"""

import torch
import triton
import triton.language as tl

from unisono.sketch.hashing import GOLDEN, LANES, TABLE_STARTS

NUMBERS = {torch.float32: tl.float32, torch.bfloat16: tl.bfloat16, torch.float16: tl.float16}
_GOLDEN, _LANES, _TABLE_STARTS = tl.constexpr(GOLDEN), tl.constexpr(LANES), tl.constexpr(TABLE_STARTS)


@triton.jit
def mix32(word):
    word = word ^ (word >> 16)
    word = word * 0x7FEB352D
    word = word ^ (word >> 15)
    word = word * 0x846CA68B
    return word ^ (word >> 16)


@triton.jit(do_not_specialize=["rows", "seed"])
def address_rows(
    address_P,
    elements_P,
    key_P,
    row_N2,
    record_N2,
    rows,
    seed,
    LENGTH: tl.constexpr,
    BYTES: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Of each row: where it lies in memory, and its word with its number of elements."""
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = place < rows
    parameter = tl.load(row_N2 + 2 * place, mask=inside, other=0)
    row = tl.load(row_N2 + 2 * place + 1, mask=inside, other=0)
    begin = row.to(tl.int64) * LENGTH
    elements = tl.minimum(tl.load(elements_P + parameter) - begin, LENGTH)
    key = mix32(tl.load(key_P + parameter).to(tl.uint32) ^ seed.to(tl.uint32))
    word = mix32(key + row.to(tl.uint32) * _GOLDEN)
    tl.store(record_N2 + 2 * place, tl.load(address_P + parameter) + begin * BYTES, mask=inside)
    tl.store(record_N2 + 2 * place + 1, word.to(tl.int64) | (elements << 32), mask=inside)


@triton.jit
def fetch(
    at,
    live,
    turned,
    tile,
    sign_words,
    NUMBER: tl.constexpr,
    LENGTH: tl.constexpr,
    TILE: tl.constexpr,
    ALIGNED: tl.constexpr,
    SKETCH: tl.constexpr,
):
    """The numbers of one row that fall into the tile, zeros where it has none, and the bits of their signs."""
    GROUPS: tl.constexpr = TILE // _LANES
    numbers, facts = tl.load(at).to(tl.pointer_type(NUMBER)), tl.load(at + 1)
    elements, word = tl.where(live, (facts >> 32).to(tl.int32), 0), facts.to(tl.int32)
    turn = ((word >> 20) & 0xFFF) + turned
    source_T = (tile * GROUPS + tl.arange(0, GROUPS) - turn) & (LENGTH // _LANES - 1)
    lane_L = tl.arange(0, _LANES)[None, :]
    if ALIGNED:
        numbers = tl.multiple_of(numbers, 16)
        # Whole groups only: a mask that may cut through a vector forbids to load it as one.
        inside = (source_T * _LANES < elements)[:, None]
    else:
        inside = source_T[:, None] * _LANES + lane_L < elements
    x_TL = tl.load(numbers + source_T[:, None] * _LANES + lane_L, mask=inside, other=0.0, cache_modifier=".cg")
    bits_T = source_T
    if SKETCH:
        # Looked up: to compute them here is slower by a third.
        bits_T = tl.load(sign_words + (word & (_TABLE_STARTS - 1)) + source_T)
        # The row's own sign, bit 14 of its word, flips all of them.
        bits_T = bits_T ^ -((word >> 14) & 1)
    return x_TL, bits_T


@triton.jit
def signed(x_TL, bits_T):
    flip_TL = (bits_T.to(tl.uint32)[:, None] << (31 - tl.arange(0, _LANES))[None, :].to(tl.uint32)) & 0x80000000
    return (x_TL.to(tl.uint32, bitcast=True) ^ flip_TL).to(tl.float32, bitcast=True)


@triton.jit
def fold(
    record_N2,
    run_R3,
    stretch_S4,
    unit_U2,
    rotation_16,
    sign_words,
    region,
    square_RJ,
    LENGTH: tl.constexpr,
    TILE: tl.constexpr,
    NUMBER: tl.constexpr,
    ALIGNED: tl.constexpr,
    SKETCH: tl.constexpr,
):
    GROUPS: tl.constexpr = TILE // _LANES
    tile, unit, tiles = tl.program_id(0), tl.program_id(1), LENGTH // TILE
    for stretch in range(tl.load(unit_U2 + 2 * unit), tl.load(unit_U2 + 2 * unit + 1)):
        rotation = tl.load(rotation_16 + tl.load(stretch_S4 + 4 * stretch))
        turned = rotation >> 4
        sum_TL = tl.zeros([GROUPS, _LANES], tl.float32)
        for run in range(tl.load(stretch_S4 + 4 * stretch + 1), tl.load(stretch_S4 + 4 * stretch + 2)):
            begin, end = tl.load(run_R3 + 3 * run), tl.load(run_R3 + 3 * run + 1)
            square_TL = tl.zeros([GROUPS, _LANES], tl.float32)
            for row in range(begin, end, 4):
                # Four rows at a time, so that there is enough to wait for.
                at = record_N2 + 2 * row
                x0, bits0 = fetch(at, True, turned, tile, sign_words, NUMBER, LENGTH, TILE, ALIGNED, SKETCH)
                x1, bits1 = fetch(
                    at + 2, row + 1 < end, turned, tile, sign_words, NUMBER, LENGTH, TILE, ALIGNED, SKETCH
                )
                x2, bits2 = fetch(
                    at + 4, row + 2 < end, turned, tile, sign_words, NUMBER, LENGTH, TILE, ALIGNED, SKETCH
                )
                x3, bits3 = fetch(
                    at + 6, row + 3 < end, turned, tile, sign_words, NUMBER, LENGTH, TILE, ALIGNED, SKETCH
                )
                x0, x1, x2, x3 = x0.to(tl.float32), x1.to(tl.float32), x2.to(tl.float32), x3.to(tl.float32)
                # Squares of four rows are added first: a long sum in float32 would drift.
                square_TL += tl.fma(x3, x3, tl.fma(x2, x2, tl.fma(x1, x1, x0 * x0)))
                if SKETCH:
                    sum_TL = sum_TL + signed(x0, bits0) + signed(x1, bits1) + signed(x2, bits2) + signed(x3, bits3)
            tl.store(square_RJ + tl.load(run_R3 + 3 * run + 2) * tiles + tile, tl.sum(square_TL))
        if SKETCH:
            slot = tl.load(stretch_S4 + 4 * stretch + 3)
            mine = region + (slot * tiles + tile).to(tl.int64) * (TILE + _LANES) + (rotation & 15)
            at = mine + tl.arange(0, TILE)
            tl.store(at, tl.load(at) + tl.reshape(sum_TL, [TILE]))
            # The next stretch is shifted: other threads will add to what this one has stored.
            tl.debug_barrier()


@triton.jit
def gather_sketch(region, first_slot_G, sketch_GK, LENGTH: tl.constexpr, TILE: tl.constexpr):
    """The sketch of a group: the sum of its slots, with what ran over the end of the tile before."""
    tile, group, tiles = tl.program_id(0), tl.program_id(1), LENGTH // TILE
    column = tl.arange(0, TILE)
    before = (tile + tiles - 1) % tiles
    total = tl.zeros([TILE], tl.float32)
    for slot in range(tl.load(first_slot_G + group), tl.load(first_slot_G + group + 1)):
        own = region + (slot * tiles + tile).to(tl.int64) * (TILE + _LANES) + column
        over = region + (slot * tiles + before).to(tl.int64) * (TILE + _LANES) + TILE + column
        total += tl.load(own) + tl.load(over, mask=column < _LANES, other=0.0)
    tl.store(sketch_GK + group.to(tl.int64) * LENGTH + tile * TILE + column, total)


@triton.jit
def gather_squares(square_RJ, first_run_P, square_P, TILES: tl.constexpr, AT_ONCE: tl.constexpr):
    """The squared norm of each gradient, in float64."""
    parameter = tl.program_id(0)
    column, more = tl.arange(0, TILES)[None, :], tl.arange(0, AT_ONCE)[:, None]
    end = tl.load(first_run_P + parameter + 1)
    total = tl.zeros([AT_ONCE, TILES], tl.float64)
    for run in range(tl.load(first_run_P + parameter), end, AT_ONCE):
        at = square_RJ + (run + more) * TILES + column
        total += tl.load(at, mask=run + more < end, other=0.0).to(tl.float64)
    tl.store(square_P + parameter, tl.sum(total))
