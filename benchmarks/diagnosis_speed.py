"""How long it takes to read and to diagnose a long run file on one core, and by how much memory grows on the way.

python benchmarks/diagnosis_speed.py [--records 1000000] [--every 20] [--json FILE]

The run is invented: four workers, six layer groups, healthy noise. Time is CPU time of this one thread.
W = workers, G = layer groups.
"""

from __future__ import annotations

import argparse
import json
import math
import platform
import re
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

from unisono.diagnosis import Diagnosis
from unisono.records import FORMAT, AttemptRecord, Record, RunRecord, StepRecord, WorkerFacts, to_line
from unisono.runfile import scan

WORKERS, GROUPS, WINDOW, PARTS = 4, 6, 64, 6
MILLION = 1_000_000
Noise = Callable[[float, float], float]
"""A random number, given mean and standard deviation."""


def records(count: int, every: int) -> Iterator[Record]:
    facts_W = tuple(WorkerFacts(rank, "host", 1, f"cuda:{rank}") for rank in range(WORKERS))
    yield RunRecord(FORMAT, "benchmark", 0.0, "train.py", "")
    yield AttemptRecord(1, 0.0, WORKERS, 0, facts_W, tuple(f"group {g}" for g in range(GROUPS)))
    noise = Random(0).gauss
    for step in range(count - 2):
        heard = readings(step, noise) if step % every == 0 else {}
        yield StepRecord(attempt=1, step=step, time=0.2 * step, **cheap(step, noise), **heard)


def cheap(step: int, noise: Noise) -> dict[str, Any]:
    level = 0.5 + 4 / (1 + step / 50)
    loss_W = tuple(level * math.exp(noise(0, 0.05)) for _ in range(WORKERS))
    mean = sum(loss_W) / WORKERS
    return {
        "loss_W": loss_W,
        "loss_mean": mean,
        "loss_std": math.sqrt(sum((loss - mean) ** 2 for loss in loss_W) / WORKERS),
        "loss_range": max(loss_W) - min(loss_W),
        "finite_W": (True,) * WORKERS,
        "compute_W": row(noise, 0.1, 0.005),
        "step_W": row(noise, 0.2, 0.005),
        "listening_cost": 0.004,
        "lr": 1e-3,
        "samples_W": (16,) * WORKERS,
        "indexed": WORKERS,
        "compared": WORKERS,
        "fresh": True,
        "target_rows": 7,
    }


def readings(step: int, noise: Noise) -> dict[str, Any]:
    norm_W = tuple(math.exp(noise(0, 0.1)) for _ in range(WORKERS))
    mean, mean_square = sum(norm_W) / WORKERS, sum(norm**2 for norm in norm_W) / WORKERS
    deviation = math.sqrt(max(0.0, mean_square - mean**2))
    cosine = 0.05 + 0.75 * math.exp(-step / 30)
    cos_mean = min(1.0, max(0.0, noise(cosine, 0.02)))
    cos_WW = [[1.0 if one == other else noise(cosine, 0.05) for other in range(WORKERS)] for one in range(WORKERS)]
    return {
        "heard": True,
        "norm_W": norm_W,
        "grad_norm": math.sqrt(mean_square * (cos_mean * (1 - 1 / WORKERS) + 1 / WORKERS)),
        "grad_norm_std": deviation,
        "grad_norm_cv": deviation / mean,
        "nonfinite_W": (0,) * WORKERS,
        "cos_W": row(noise, 1.5 * cosine, 0.03),
        "cos_mean": cos_mean,
        "cos_min": cos_mean - 0.1,
        "cos_weighted": cos_mean,
        "cos_expected": cosine,
        "noise_scale": 1 / cosine - 1,
        "effective_workers": WORKERS / (1 + (WORKERS - 1) * cosine),
        "cos_WW": tuple(map(tuple, cos_WW)),
        "norm_G": row(noise, 0.4, 0.04, GROUPS),
        "norm_GW": tuple(row(noise, 0.4, 0.04) for _ in range(GROUPS)),
        "cos_GW": tuple(row(noise, cosine, 0.05) for _ in range(GROUPS)),
        "window_start": step // WINDOW * WINDOW,
        "window_steps": step % WINDOW + 1,
        "window_cos_W": row(noise, 0.5, 0.03),
        "audits": ("reduced", "used", "weights", "state"),
        "part": step % PARTS,
        "parts": PARTS,
    }


def row(noise: Noise, mean: float, deviation: float, length: int = WORKERS) -> tuple[float, ...]:
    return tuple(noise(mean, deviation) for _ in range(length))


def read(path: Path) -> None:
    for _ in scan(path):
        pass


def resident_megabytes() -> float:
    status = Path("/proc/self/status").read_text()
    found = re.search(r"VmRSS:\s+(\d+) kB", status)
    return int(found[1]) / 1000 if found else math.nan


def diagnose(path: Path, count: int) -> tuple[Diagnosis, float]:
    """The diagnosis, and by how many megabytes the process grew after the first tenth of the records."""
    diagnosis, early = Diagnosis(), math.nan
    for number, record in scan(path):
        if record is not None:
            diagnosis.see(record)
        if number == count // 10:
            early = resident_megabytes()
    return diagnosis, resident_megabytes() - early


def measured(count: int, every: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run.jsonl"
        with path.open("w", encoding="ascii") as file:
            file.writelines(to_line(record) + "\n" for record in records(count, every))
        begin = time.process_time()
        read(path)
        read_at = time.process_time()
        diagnosis, growth = diagnose(path, count)
        end = time.process_time()
    return {
        "records": count,
        "heard_every": every,
        "microseconds_reading": 1e6 * (read_at - begin) / count,
        "microseconds_reading_and_diagnosis": 1e6 * (end - read_at) / count,
        "seconds_for_a_million": MILLION * (end - read_at) / count,
        "megabytes_grown_after_first_tenth": growth,
        "findings": [finding.code for finding in diagnosis.findings()],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=100_000)
    parser.add_argument("--every", type=int, default=1, help="only every Nth step is heard; at 1 records are longest")
    parser.add_argument("--json", metavar="FILE", help="where the result goes")
    options = parser.parse_args()
    result = measured(options.records, options.every)
    command = " ".join(["python", *sys.argv])
    text = json.dumps({"command": command, "python": platform.python_version(), **result}, indent=1)
    print(text)
    if options.json:
        Path(options.json).write_text(text + "\n")


if __name__ == "__main__":
    main()
