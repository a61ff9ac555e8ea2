"""How long a fingerprint takes in C and in torch, in GB/s and as ratios to torch's norm of the same tensor, one thread.

python benchmarks/fingerprint_speed.py [--device cuda]
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from unittest import mock

import torch

from unisono.sketch import native
from unisono.sketch.fingerprint import fingerprint


def seconds(work: Callable[[], object], repeats: int, device: str) -> float:
    times = []
    for _ in range(repeats):
        begin = time.perf_counter()
        work()
        if device == "cuda":
            torch.cuda.synchronize()
        times.append(time.perf_counter() - begin)
    return min(times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--repeats", type=int, default=15)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if native.FINGERPRINT is None or arguments.device == "cuda":
        print("Without native code: both columns are torch.")
    print(f"best of {arguments.repeats}; ratio = time / time of vector_norm\n")
    print("     dtype    elements        native               torch")
    for dtype in (torch.float32, torch.bfloat16):
        for elements in (1_000, 65_536, 10_000_000):
            tensor = torch.randn(elements, device=arguments.device).to(dtype)
            report(tensor, arguments.repeats, arguments.device)
    several(arguments.repeats, arguments.device)


def report(tensor: torch.Tensor, repeats: int, device: str) -> None:
    base = seconds(lambda: torch.linalg.vector_norm(tensor), repeats, device)
    ours = seconds(lambda: fingerprint([tensor]), repeats, device)
    with mock.patch.object(native, "FINGERPRINT", None):
        theirs = seconds(lambda: fingerprint([tensor]), repeats, device)
    size = tensor.numel() * tensor.element_size() / 1e9
    columns = "  ".join(f"{size / time:>7.2f} GB/s {time / base:>6.1f}x" for time in (ours, theirs))
    print(f"{str(tensor.dtype).removeprefix('torch.'):>10}  {tensor.numel():>10,}  {columns}")


def several(repeats: int, device: str) -> None:
    tensors = [torch.randn(1_000, device=device) for _ in range(200)]
    each = seconds(lambda: fingerprint(tensors), repeats, device) / len(tensors)
    print(f"\na list of 200 tensors of 1,000 elements: {1e6 * each:.1f} us for each")


if __name__ == "__main__":
    main()
