"""How long it takes to read and to diagnose a long run file, and by how much memory grows on the way.

python benchmarks/diagnosis_speed.py [--records 1000000] [--every 20] [--workers 1024] [--json FILE]

The run is invented: six layer groups, healthy noise, and matrices where a monitor would keep them. What each part takes
is CPU time of one process that does it all; `unisono diagnose` is timed as well, on the wall and by the processor. The
live share is what the listening thread of rank 0 does with a record: its line, the diagnosis, the news. W = workers,
G = layer groups.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import re
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any

from unisono.common.console import Console
from unisono.diagnose.engine import Diagnosis
from unisono.measure.step_record import MATRICES_EVERY, MATRICES_FIRST, MATRIX_UP_TO
from unisono.monitor.live_diagnosis import LiveDiagnosis
from unisono.records import FORMAT, AttemptRecord, Record, RunRecord, StepRecord, WorkerFacts, to_line
from unisono.records.runfile import scan
from unisono.show.analysis.checkup import examine
from unisono.show.analysis.lost_work import Timesheet
from unisono.show.analysis.scaling import NoiseReadings

GROUPS, WINDOW, PARTS = 6, 64, 6
TOGETHER = 160
"""Values of a kind that are read before they are diagnosed: few, as in a stream, but worth two looks at the clock."""

MILLION = 1_000_000
LIVE = 400_000
"""Workers' numbers that the live share is measured over."""

Noise = Callable[[float, float], float]
"""A random number, given mean and standard deviation."""


def records(count: int, every: int, workers: int) -> Iterator[Record]:
    facts_W = tuple(WorkerFacts(rank, "host", 1, f"cuda:{rank}") for rank in range(workers))
    yield RunRecord(FORMAT, "benchmark", 0.0, "train.py", "")
    yield AttemptRecord(1, 0.0, workers, 0, facts_W, tuple(f"group {g}" for g in range(GROUPS)))
    noise = Random(0).gauss
    for step in range(count - 2):
        heard: dict[str, Any] = {}
        if step % every == 0:
            heard = readings(step, noise, workers)
            reading = step // every
            if workers <= MATRIX_UP_TO and (reading < MATRICES_FIRST or reading % MATRICES_EVERY == 0):
                heard |= matrices(step, noise, workers)
        yield StepRecord(attempt=1, step=step, time=0.2 * step, **cheap(step, noise, workers), **heard)


def cheap(step: int, noise: Noise, workers: int) -> dict[str, Any]:
    level = 0.5 + 4 / (1 + step / 50)
    loss_W = tuple(level * math.exp(noise(0, 0.05)) for _ in range(workers))
    mean = sum(loss_W) / workers
    return {
        "loss_W": loss_W,
        "loss_mean": mean,
        "loss_std": math.sqrt(sum((loss - mean) ** 2 for loss in loss_W) / workers),
        "loss_range": max(loss_W) - min(loss_W),
        "finite_W": (True,) * workers,
        "compute_W": row(noise, 0.1, 0.005, workers),
        "step_W": row(noise, 0.2, 0.005, workers),
        "listening_cost": 0.004,
        "lr": 1e-3,
        "samples_W": (16,) * workers,
        "indexed": workers,
        "compared": workers,
        "fresh": True,
        "target_rows": 7,
    }


def readings(step: int, noise: Noise, workers: int) -> dict[str, Any]:
    norm_W = tuple(math.exp(noise(0, 0.1)) for _ in range(workers))
    mean, mean_square = sum(norm_W) / workers, sum(norm**2 for norm in norm_W) / workers
    deviation = math.sqrt(max(0.0, mean_square - mean**2))
    cosine = usual_cosine(step) * math.exp(noise(0, 0.01))
    cos_mean = min(1.0, max(0.0, noise(cosine, 0.02)))
    return {
        "heard": True,
        "norm_W": norm_W,
        "grad_norm": math.sqrt(mean_square * (cos_mean * (1 - 1 / workers) + 1 / workers)),
        "grad_norm_std": deviation,
        "grad_norm_cv": deviation / mean,
        "nonfinite_W": (0,) * workers,
        "cos_W": row(noise, 1.5 * cosine, 0.03, workers),
        "cos_mean": cos_mean,
        "cos_min": cos_mean - 0.1,
        "cos_weighted": cos_mean,
        "cos_expected": cosine,
        "noise_scale": 1 / cosine - 1,
        "effective_workers": workers / (1 + (workers - 1) * cosine),
        "norm_G": row(noise, 0.4, 0.04, GROUPS),
        "window_start": step // WINDOW * WINDOW,
        "window_steps": step % WINDOW + 1,
        "window_cos_W": row(noise, 0.5, 0.03, workers),
        "audits": ("reduced", "used", "weights", "state"),
        "part": step % PARTS,
        "parts": PARTS,
    }


def matrices(step: int, noise: Noise, workers: int) -> dict[str, Any]:
    cosine = usual_cosine(step)
    cos_WW = [[1.0 if one == other else noise(cosine, 0.05) for other in range(workers)] for one in range(workers)]
    return {
        "cos_WW": tuple(map(tuple, cos_WW)),
        "norm_GW": tuple(row(noise, 0.4, 0.04, workers) for _ in range(GROUPS)),
        "cos_GW": tuple(row(noise, cosine, 0.05, workers) for _ in range(GROUPS)),
    }


def usual_cosine(step: int) -> float:
    return 0.05 + 0.75 * math.exp(-step / 30)


def row(noise: Noise, mean: float, deviation: float, length: int) -> tuple[float, ...]:
    return tuple(noise(mean, deviation) for _ in range(length))


class Reader:
    """Reads, diagnoses and counts as a report does, and keeps the seconds of each apart."""

    def __init__(self, workers: int) -> None:
        self._together = max(1, TOGETHER // workers)
        self.diagnosis = Diagnosis()
        self.readings, self.times = NoiseReadings(), Timesheet()
        self.parsing = self.diagnosing = self.counting = 0.0

    def go_through(self, path: Path, count: int) -> float:
        """By how many megabytes the process grew after the first tenth of the records."""
        lines, seen, early = scan(path), 0, math.nan
        begin = time.process_time()
        while batch := [record for _, record in islice(lines, self._together) if record is not None]:
            parsed = time.process_time()
            for record in batch:
                self.diagnosis.see(record)
            diagnosed = time.process_time()
            self._count(batch)
            if seen < count // 10 <= seen + len(batch):
                early = resident_megabytes()
            seen += len(batch)
            counted = time.process_time()
            self.parsing += parsed - begin
            self.diagnosing += diagnosed - parsed
            self.counting += counted - diagnosed
            begin = counted
        return resident_megabytes() - early

    def _count(self, batch: list[Record]) -> None:
        for record in batch:
            if isinstance(record, StepRecord):
                self.readings.see(record)
                self.times.see(record)

    @property
    def seconds(self) -> float:
        return self.parsing + self.diagnosing + self.counting


def resident_megabytes() -> float:
    status = Path("/proc/self/status").read_text()
    found = re.search(r"VmRSS:\s+(\d+) kB", status)
    return int(found[1]) / 1000 if found else math.nan


def live_milliseconds(count: int, every: int, workers: int) -> dict[str, float]:
    """A record's line and the rest, on the mean over records; what is learnt first takes less, and is left out."""
    seen = list(islice(records(count, every, workers), max(200, LIVE // workers)))
    diagnosis, writing, diagnosing, counted = LiveDiagnosis(Console(), (), None), 0.0, 0.0, 0
    for number, record in enumerate(seen):
        begin = time.process_time()
        line = to_line(record)
        written = time.process_time()
        diagnosis.see(record, line)
        diagnosis.tell()
        if number >= len(seen) // 2:
            writing += written - begin
            diagnosing += time.process_time() - written
            counted += 1
    writing, diagnosing = 1e3 * writing / counted, 1e3 * diagnosing / counted
    return {"milliseconds_live_line": writing, "milliseconds_live_diagnosis": diagnosing}


def diagnosed(path: Path) -> dict[str, float]:
    """As by `unisono diagnose`."""
    began, used = time.perf_counter(), sum(os.times()[:4])
    examine(path)
    seconds, used = time.perf_counter() - began, sum(os.times()[:4]) - used
    return {"seconds_of_diagnose": seconds, "processor_seconds_of_diagnose": used}


def measured(count: int, every: int, workers: int) -> dict[str, Any]:
    reader = Reader(workers)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run.jsonl"
        with path.open("w", encoding="ascii") as file:
            file.writelines(to_line(record) + "\n" for record in records(count, every, workers))
        size = path.stat().st_size
        growth = reader.go_through(path, count)
        whole = diagnosed(path)
    return {
        "records": count,
        "heard_every": every,
        "workers": workers,
        "megabytes": size / 1e6,
        "microseconds_parsing": 1e6 * reader.parsing / count,
        "microseconds_diagnosis": 1e6 * reader.diagnosing / count,
        "microseconds_readings_and_times": 1e6 * reader.counting / count,
        "microseconds_in_all": 1e6 * reader.seconds / count,
        "process_seconds": reader.seconds,
        "seconds_for_a_million": MILLION * reader.seconds / count,
        "megabytes_grown_after_first_tenth": growth,
        **whole,
        **live_milliseconds(count, every, workers),
        "findings": [finding.code for finding in reader.diagnosis.findings()],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=100_000)
    parser.add_argument("--every", type=int, default=1, help="only every Nth step is heard; at 1 records are longest")
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--json", metavar="FILE", help="where the result goes")
    options = parser.parse_args()
    result = measured(options.records, options.every, options.workers)
    command = " ".join(["python", *sys.argv])
    text = json.dumps({"command": command, "python": platform.python_version(), **result}, indent=1)
    print(text)
    if options.json:
        Path(options.json).write_text(text + "\n")


if __name__ == "__main__":
    main()
