"""How long the eager fold takes, as a ratio to torch's norm of the same buffer in the same run, on one thread.

PYTHONPATH=src python benchmarks/sketch_speed.py
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import torch

from unisono.sketch import Fold


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
    print("     dtype  length  norm and sketch   reseed  error of norm^2  of vector_norm^2")
    for dtype in (torch.float32, torch.bfloat16):
        for length in (65_536, 16_384, 4_096):
            report(torch.randn(arguments.elements).to(dtype), length, arguments.repeats)


def report(gradient: torch.Tensor, length: int, repeats: int) -> None:
    fold = Fold(["weight"], [gradient.numel()], length, "cpu", seed=1)
    accumulator = torch.zeros(2 * length)
    base = seconds(lambda: torch.linalg.vector_norm(gradient), repeats)
    folded = seconds(lambda: fold.add(0, gradient, accumulator), repeats)
    reseeded = seconds(lambda: fold.reseed(1), repeats)
    exact = gradient.double().square().sum()
    ours = fold.add(0, gradient, accumulator) / exact - 1
    theirs = torch.linalg.vector_norm(gradient).double() ** 2 / exact - 1
    name = str(gradient.dtype).removeprefix("torch.")
    print(f"{name:>10} {length:>7} {folded / base:>15.2f}x {reseeded / base:>7.2f}x {ours:>+16.1e} {theirs:>+17.1e}")


if __name__ == "__main__":
    main()
