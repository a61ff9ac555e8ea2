"""How long the fold takes in C and in torch, as ratios to torch's norm of the same buffer in the same run, one thread.

python benchmarks/sketch_speed.py
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import torch

from unisono.sketch import Fold, squared_norm
from unisono.sketch.native import available
from unisono.sketch.norm import torch_squared_norm


def seconds(work: Callable[[], object], repeats: int) -> float:
    times = []
    for _ in range(repeats):
        begin = time.perf_counter()
        work()
        times.append(time.perf_counter() - begin)
    return min(times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--elements", type=int, default=10_000_000)
    parser.add_argument("--repeats", type=int, default=15)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    print(f"{arguments.elements:,} elements, one thread, best of {arguments.repeats}; time / time of vector_norm\n")
    if not available():
        print("The native fold was not built: both columns are torch.")
    print("                      norm and sketch       norm alone      first of a window      error of norm^2")
    print("     dtype  length    native    torch    native    torch    native    torch     native  vector_norm")
    for dtype in (torch.float32, torch.bfloat16):
        for length in (65_536, 16_384, 4_096):
            report(torch.randn(arguments.elements).to(dtype), length, arguments.repeats)


def report(gradient: torch.Tensor, length: int, repeats: int) -> None:
    accumulator, one = torch.zeros(2 * length), torch.zeros(1, dtype=gradient.dtype)
    folds = [Fold(["weight"], [gradient.numel()], length, "cpu", 1, native) for native in (True, False)]
    base = seconds(lambda: torch.linalg.vector_norm(gradient), repeats)
    folded = [seconds(lambda f=fold: f.add(0, gradient, accumulator), repeats) for fold in folds]
    squared = [seconds(lambda f=norm: f(gradient), repeats) for norm in (squared_norm, torch_squared_norm)]
    first = [seconds(lambda f=fold: (f.reseed(1), f.add(0, one, accumulator)), repeats) for fold in folds]
    exact = gradient.double().square().sum()
    ours = folds[0].add(0, gradient, accumulator) / exact - 1
    theirs = torch.linalg.vector_norm(gradient).double() ** 2 / exact - 1
    ratios = "  ".join(f"{time / base:>7.2f}x" for time in (*folded, *squared, *first))
    name = str(gradient.dtype).removeprefix("torch.")
    print(f"{name:>10} {length:>7}  {ratios}  {ours:>+9.1e}  {theirs:>+11.1e}")


if __name__ == "__main__":
    main()
