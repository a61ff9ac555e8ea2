"""How long one look at a gradient takes in C and in torch, as ratios to torch's own norm of the same numbers.

    python benchmarks/sketch_speed.py [--elements 10000000] [--threads 1 2] [--repeats 15] [--json FILE]

All of them take turns, so that whatever else the machine does meets each alike. Fails if a norm is off by more than
1e-6 or if the sketches of C and torch differ.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import Tensor

from unisono.sketch import Fold, squared_norm, wrap
from unisono.sketch.native import available
from unisono.sketch.norm import torch_squared_norm

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
LENGTHS = (65_536, 16_384, 4_096)
LARGEST_NORM_ERROR, LARGEST_SKETCH_ERROR = 1e-6, 1e-5
Row = dict[str, object]


def ratios(works: dict[str, Callable[[], object]], base: Callable[[], object], repeats: int) -> dict[str, Row]:
    """Best and middle time of each, in units of those of `base`."""
    times: dict[str, list[float]] = {name: [] for name in ("base", *works)}
    for _ in range(repeats):
        for name, work in {"base": base, **works}.items():
            begin = time.perf_counter()
            work()
            times[name].append(time.perf_counter() - begin)
    return {
        name: {
            "best": round(min(times[name]) / min(times["base"]), 3),
            "median": round(statistics.median(times[name]) / statistics.median(times["base"]), 3),
        }
        for name in works
    }


def exact_square(gradient: Tensor) -> float:
    return sum(part.double().square().sum().item() for part in gradient.split(1 << 20))


def measure(gradient: Tensor, length: int, repeats: int) -> Row:
    accumulator, one = torch.zeros(2 * length), torch.zeros(1, dtype=gradient.dtype)
    compiled, plain = (Fold(["weight"], [gradient.numel()], length, "cpu", 1, native) for native in (True, False))
    works = {
        "fold": lambda: compiled.add(0, gradient, accumulator),
        "fold in torch": lambda: plain.add(0, gradient, accumulator),
        "norm": lambda: squared_norm(gradient),
        "norm in torch": lambda: torch_squared_norm(gradient),
        "new seed": lambda: (compiled.reseed(1), compiled.add(0, one, accumulator)),
    }
    return {**ratios(works, lambda: torch.linalg.vector_norm(gradient), repeats), **errors(gradient, compiled, plain)}


def errors(gradient: Tensor, compiled: Fold, plain: Fold) -> Row:
    exact, sketch_K = exact_square(gradient), []
    norm_errors = []
    for fold in (compiled, plain):
        accumulator = torch.zeros(2 * fold.length)
        norm_errors.append(fold.add(0, gradient, accumulator).item() / exact - 1)
        sketch_K.append(wrap(accumulator))
    norm_errors += [norm(gradient).item() / exact - 1 for norm in (squared_norm, torch_squared_norm)]
    theirs = torch.linalg.vector_norm(gradient).double().item() ** 2 / exact - 1
    difference = (sketch_K[0] - sketch_K[1]).norm() / sketch_K[1].norm()
    return {
        "error_of_norm": max(norm_errors, key=abs),
        "error_of_vector_norm": theirs,
        "difference_of_sketches": difference.item(),
    }


def report(row: Row) -> None:
    names = ("fold", "fold in torch", "norm", "norm in torch", "new seed")
    cells = " ".join(f"{row[name]['best']:>6.2f} ({row[name]['median']:>5.2f})" for name in names)  # type: ignore[index]
    error, theirs = row["error_of_norm"], row["error_of_vector_norm"]
    print(
        f"{row['dtype']:>9} {row['length']:>7} {row['threads']:>7} {cells} {error:>+9.1e} {theirs:>+9.1e}", flush=True
    )


def wrong(rows: Sequence[Row]) -> list[str]:
    """What should not be: one line each."""
    found = []
    for row in rows:
        where = f"{row['dtype']}, length {row['length']}, {row['threads']} threads"
        if not abs(row["error_of_norm"]) <= LARGEST_NORM_ERROR:  # type: ignore[arg-type]
            found.append(f"{where}: the squared norm is off by {row['error_of_norm']:.1e}, more than 1e-6.")
        if not row["difference_of_sketches"] <= LARGEST_SKETCH_ERROR:  # type: ignore[operator]
            found.append(f"{where}: sketches in C and in torch differ by {row['difference_of_sketches']:.1e}.")
    return found


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--elements", type=int, default=10_000_000, help="numbers of the gradient")
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--dtypes", nargs="+", choices=DTYPES, default=["float32", "bfloat16"])
    parser.add_argument("--json", metavar="FILE", type=Path, help="where the result goes")
    return parser.parse_args()


def main() -> str | None:
    chosen = arguments()
    print(f"{chosen.elements:,} numbers, best (median) of {chosen.repeats}; time / time of vector_norm on them.")
    print("fold: norm and sketch. new seed: once a window. The last two columns: how far squared norms are off.")
    if not available():
        print("The native fold was not built: everything is torch.")
    print("    dtype  length threads  fold           fold in torch  norm           norm in torch  new seed")
    rows = []
    for dtype in chosen.dtypes:
        gradient = torch.randn(chosen.elements).to(DTYPES[dtype])
        for threads in chosen.threads:
            torch.set_num_threads(threads)
            for length in LENGTHS:
                row = {"dtype": dtype, "length": length, "threads": threads}
                rows.append(row | measure(gradient, length, chosen.repeats))
                report(rows[-1])
    if chosen.json:
        about = {"command": " ".join(["python", *sys.argv]), "torch": str(torch.__version__)}
        about |= {"elements": chosen.elements, "repeats": chosen.repeats, "compiled": available()}
        chosen.json.write_text(json.dumps(about | {"results": rows}, indent=1) + "\n")
    return "\n".join(wrong(rows)) or None


if __name__ == "__main__":
    sys.exit(main())
