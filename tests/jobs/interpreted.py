"""The GPU kernels in Triton's interpreter, against the reference in torch. Prints the largest differences."""

import json

import torch

from unisono.sketch import Fold, total_square, wrap
from unisono.sketch.fingerprint import device as _device
from unisono.sketch.fingerprint import exact as _exact
from unisono.sketch.fingerprint.mixing import signed, splitmix64
from unisono.sketch.gpu import launching
from unisono.sketch.model_sketch import ModelSketch

CPU = torch.device("cpu")
launching.KINDS.add("cpu")
SIZES = [2048 * 5, 2048 * 20 + 16, 1007, 17, 1, 64]
GROUPS = [0, 1, 1, 2, 2, 0]


def gradients(dtypes, shift):
    """`shift`: so many numbers off any alignment."""
    generator = torch.Generator().manual_seed(0)
    return [
        torch.randn(size + shift, generator=generator).to(dtypes[place % len(dtypes)])[shift:]
        for place, size in enumerate(SIZES)
    ]


def difference(dtypes, shift, length, seed, parts):
    names, read = [f"layers.{number}.weight" for number in range(len(SIZES))], gradients(dtypes, shift)
    reading = ModelSketch(names, SIZES, GROUPS, 3, length, CPU)
    reading.reseed(seed)
    reading.begin()
    for index, gradient in enumerate(read):
        assert reading.add(index, gradient), "the kernels should read all of them"
        if index % parts == parts - 1:
            reading.flush()
    sketch_GK, square_P = reading.end()
    fold, accumulator_G2K = Fold(names, SIZES, length, CPU, seed, native=False), torch.zeros(3, 2 * length)
    squares = [fold.add(index, gradient, accumulator_G2K[GROUPS[index]], 0) for index, gradient in enumerate(read)]
    expected_P, expected_GK = torch.stack(squares), wrap(accumulator_G2K)
    return {
        "sketch": float((sketch_GK - expected_GK).abs().max() / expected_GK.abs().max()),
        "squares": float((square_P / expected_P - 1).abs().max()),
        "total": float(abs(total_square(read, CPU) / expected_P.sum() - 1)),
    }


def fingerprints_equal(dtype, shift):
    flats = [flat for flat in gradients([dtype], shift)[1:4] if _device.readable(flat)]
    flats += [torch.arange(70_000, dtype=torch.int32)]
    columns, rows = _exact._odd(_exact._COLUMN_SEED, _exact.COLUMNS, CPU), _exact._row_factors(2, CPU)
    equal = []
    for aligned in (True, False):
        together = [flat for flat in flats if _device.is_aligned(flat) == aligned]
        offsets = [5, -7, 1 << 62, 0][: len(together)]
        sums = [int(_exact._weighted(flat)) for flat in together]
        expected = [signed(splitmix64(sum + offset)) for sum, offset in zip(sums, offsets, strict=True)]
        equal.append(not together or _device.hashes(together, offsets, columns, rows).tolist() == expected)
    return all(equal)


def main():
    half, brain, single = torch.float16, torch.bfloat16, torch.float32
    cases = {
        "float32": difference([single], 0, 1024, 7, 10),
        "bfloat16": difference([brain], 0, 2048, 0xDEADBEEF, 10),
        "float16 and others, anywhere, in parts": difference([half, single, brain], 1, 2048, 0xFFFFFFFF, 2),
    }
    equal = {str(dtype): fingerprints_equal(dtype, 0) for dtype in (single, brain)}
    print(json.dumps({"differences": cases, "equal": equal | {"anywhere": fingerprints_equal(single, 1)}}))


if __name__ == "__main__":
    main()
