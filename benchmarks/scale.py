"""What a reading of very many workers costs rank 0, stage by stage, and whether the right one is named.

python benchmarks/scale.py [--workers 64 128 ...] [--readings 72] [--short] [--json FILE]

The ranks are virtual, the code is the product's: sketches are folded and encoded, messages go through a real store over
a local socket, and from the received bytes to the findings everything runs as on rank 0, on one thread. What the
network does between real hosts is not part of it. Each number of workers has a process of its own. A healthy run must
find nothing; in the other one a worker has the wrong sign from reading 36 on, and it alone must be named.

W = workers, V = virtual gradients, N = parameters, G = layer groups, K = sketch length, P = bytes of a packet.
"""

from __future__ import annotations

import argparse
import json
import math
import platform
import re
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import torch
import torch.distributed
from torch import Tensor

from unisono.exchange.gloo_channel import Payload, Payloads
from unisono.exchange.store import MessageStore
from unisono.listen.messages import RankStep
from unisono.measure.step_assembler import StepAssembler
from unisono.measure.step_record import Memory, measure
from unisono.monitor.live_diagnosis import LiveDiagnosis
from unisono.monitor.run_recorder import RunRecorder
from unisono.records import StepRecord, to_line
from unisono.records.finding import Finding
from unisono.show.sinks.feed import Feed
from unisono.sketch import Fold, window_seed, wrap
from unisono.sketch.gram import gram
from unisono.sketch.wire_format import WireFormat

dist: Any = torch.distributed  # its stores are not in its annotations
SIZES = (64, 128, 256, 512, 1_024, 2_048, 4_096)
SHORT_SIZES, READINGS = (64, 256), 72
GROUPS, PARAMETERS, VECTORS, WINDOW = 8, 65_536, 64, 32
COSINE = 0.1
"""Between the gradients of two healthy workers."""

WRONG_SIGN, FAULT_AT = 3, 36
WARM_UP = 4
STAGES = ("decode", "messages", "metrics", "record")
"""Of rank 0's work at a reading: what goal and totals are about."""


class Quiet:
    def say(self, text: str) -> None: ...
    def complain(self, text: str) -> None: ...


class Clock:
    """Seconds of this thread, or on the wall, by stage."""

    def __init__(self) -> None:
        self.seconds: dict[str, list[float]] = defaultdict(list)

    @contextmanager
    def times(self, stage: str, wall: bool = False) -> Iterator[None]:
        now = time.perf_counter if wall else time.thread_time
        begin = now()
        yield
        self.seconds[stage].append(now() - begin)

    def milliseconds(self, stage: str) -> float:
        """The median, without the first readings."""
        return 1e3 * statistics.median(self.seconds[stage][WARM_UP:] or self.seconds[stage])


class Gradients:
    """A window's virtual gradients as packets, with their exact squares and inner products."""

    def __init__(self, layout: WireFormat, window: int, clock: Clock) -> None:
        generator = torch.Generator().manual_seed(window)
        signal_N = torch.randn(PARAMETERS, generator=generator)
        noise_VN = torch.randn(VECTORS, PARAMETERS, generator=generator)
        gradient_VN = math.sqrt(COSINE) * signal_N + math.sqrt(1 - COSINE) * noise_VN
        self.square_VG = gradient_VN.double().unflatten(1, (GROUPS, -1)).square().sum(2).tolist()
        self.gram_VV = gram(gradient_VN)
        names, elements = [f"layer.{group}.weight" for group in range(GROUPS)], [PARAMETERS // GROUPS] * GROUPS
        fold = Fold(names, elements, layout.model_length, "cpu", window_seed(window))
        packets = []
        for gradient_N in gradient_VN:
            sketch_GK = folded(fold, gradient_N, layout)
            with clock.times("encode"):
                body = layout.encode(sketch_GK, window)
            packets.append(Payload(0, window, body).to_bytes(layout.size))
        self.packet_VP = torch.stack(packets)


def folded(fold: Fold, gradient_N: Tensor, layout: WireFormat) -> Tensor:
    accumulator_G2K = torch.zeros(GROUPS, 2 * layout.model_length)
    for group, part in enumerate(gradient_N.chunk(GROUPS)):
        fold.add(group, part, accumulator_G2K[group])
    return wrap(accumulator_G2K)


class Job:
    """A job of virtual workers, and rank 0's side of it."""

    def __init__(self, workers: int, folder: str, faulty: bool, clock: Clock) -> None:
        self.workers, self._faulty, self._clock = workers, faulty, clock
        self._layout = WireFormat(PARAMETERS, GROUPS, workers)
        self._random = Random(workers)
        server = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        self._stores = [server, server.clone(), server.clone()]
        self._boxes = [MessageStore(lambda: self._stores[1], rank, workers) for rank in range(workers)]
        self._root = MessageStore(lambda: self._stores[2], 0, workers)
        self._book, self._memory = StepAssembler(workers), Memory()
        quiet: Any = Quiet()
        feed = Feed((), quiet)
        self.log = RunRecorder(folder, list(range(workers)), 0, quiet, LiveDiagnosis(quiet, (), None, feed), feed)
        self._register()

    def _register(self) -> None:
        facts = dict.fromkeys(("host", "device", "torch", "python", "steering", "guard"), "")
        groups = [f"layer.{group}" for group in range(GROUPS)]
        numbers = {"pid": 1, "groups": groups, "parameters": PARAMETERS, "sketch_length": PARAMETERS}
        for box in self._boxes:
            box.register({"rank": box.rank, "settings": {}, "model": {}, **facts, **numbers})
        with self._clock.times("registrations", wall=True):
            registrations = self._root.registrations()
        for rank in registrations:
            self._book.register(rank)
        self.log.met(registrations)

    def read(self, step: int) -> StepRecord:
        if step % WINDOW == 0:
            self._gradients = Gradients(self._layout, step, self._clock)
        # Each gradient as often as any other: a worker with more copies of its own would agree more with the rest.
        dealt_W = [place % VECTORS for place in range(max(self.workers, VECTORS))]
        self._random.shuffle(dealt_W)
        dealt_W = dealt_W[: self.workers]
        packets_WP = self._gradients.packet_VP[torch.tensor(dealt_W)]
        turned = self._faulty and step >= FAULT_AT
        if turned:
            head = packets_WP.shape[1] - self._layout.size
            whole_K = packets_WP[WRONG_SIGN, head : head + self._layout.length].view(torch.int8)
            whole_K.copy_(-whole_K)
        self._send(step, dealt_W, self._squared_mean(dealt_W, turned))
        return self._receive(step, packets_WP)

    def _squared_mean(self, dealt_W: list[int], turned: bool) -> float:
        times_V = torch.zeros(VECTORS, dtype=torch.float64)
        for worker, vector in enumerate(dealt_W):
            times_V[vector] += -1 if turned and worker == WRONG_SIGN else 1
        return float(times_V @ self._gradients.gram_VV @ times_V) / self.workers**2

    def _send(self, step: int, dealt_W: list[int], squared_mean: float) -> None:
        gauss = self._random.gauss
        signals = [
            RankStep(
                step=step, time=float(step), loss=2 * math.exp(gauss(0, 0.05)), compute=0.1 * math.exp(gauss(0, 0.02)),
                seconds=0.2, cost=1e-4, heard=True, window=step // WINDOW * WINDOW,
                reduced_share=squared_mean / self.workers, squared_norm_G=tuple(self._gradients.square_VG[vector]),
                lr=1e-3, settings=1, part=step % 6, parts=6, reduced=step, used=step, weights=step, state=step,
                samples=16, content=step * self.workers + worker, targets=step * self.workers + worker, target_rows=9,
                fresh=True,
            )
            for worker, vector in enumerate(dealt_W)
        ]  # fmt: skip
        with self._clock.times("a rank's message", wall=True):
            for box, signal in zip(self._boxes, signals, strict=True):
                box.send([signal])
            # Sending does not wait for the store; an answer on the same connection says that it has taken everything.
            self._stores[1].check(["came"])

    def _receive(self, step: int, packets_WP: Tensor) -> StepRecord:
        clock = self._clock
        with clock.times("decode"):
            payloads = Payloads.from_packets(packets_WP)
            if payloads is None:
                raise RuntimeError("The packets of one step should agree. Found that they do not.")
            self._book.await_directions(step)
            self._book.add_directions(step, self._layout.decode(payloads.body_WB, payloads.sent_W))
        with clock.times("store", wall=True), clock.times("messages"):
            rank_messages, _ = self._root.collect(sorted(self._book.expected))
            for rank, rank_message in rank_messages.items():
                for signal in rank_message.signals:
                    self._book.add_signal(rank, signal)
        (all_ranks,) = self._book.complete(plain_mean=True)
        with clock.times("metrics"):
            record = measure(all_ranks, self._memory, 1)
        with clock.times("record"):
            self.log.write(record)
            self.log.diagnosis.tell()
        return record

    def findings(self) -> list[Finding]:
        self.log.diagnosis.tell(last=True)
        return self.log.diagnosis.findings


@dataclass(frozen=True)
class Outcome:
    findings: list[Finding]
    told_at: int | None
    """The reading at which the first finding was told."""

    record: StepRecord


def run(workers: int, readings: int, faulty: bool, clock: Clock) -> Outcome:
    told_at = None
    with tempfile.TemporaryDirectory() as folder:
        job = Job(workers, folder, faulty, clock)
        for step in range(readings):
            record = job.read(step)
            if told_at is None and job.log.diagnosis.findings:
                told_at = step
        findings = job.findings()
        job.log.close(0)
    return Outcome(findings, told_at, record)


def check(workers: int, healthy: list[Finding], faulty: list[Finding]) -> None:
    if healthy:
        raise SystemExit(f"{workers} healthy workers: nothing should be found. Found {told(healthy)}.")
    if [finding.ranks for finding in faulty] != [(WRONG_SIGN,)] or faulty[0].code != "UN501":
        raise SystemExit(
            f"{workers} workers: UN501 should name rank {WRONG_SIGN} alone. Found {told(faulty) or 'none'}."
        )


def told(findings: list[Finding]) -> str:
    return "; ".join(f"{finding.code} ranks {list(finding.ranks)[:8]}: {finding.why}" for finding in findings)


def measured(workers: int, readings: int) -> dict[str, Any]:
    """In a process of its own."""
    torch.set_num_threads(1)
    clock, before = Clock(), resident_megabytes()
    healthy = run(workers, readings, False, clock)
    peak = resident_megabytes() - before
    faulty = run(workers, readings, True, Clock())
    check(workers, healthy.findings, faulty.findings)
    layout = WireFormat(PARAMETERS, GROUPS, workers)
    largest = WireFormat(PARAMETERS, 64, workers)
    return {
        "workers": workers,
        "sketch_length": layout.length,
        "bytes_per_rank": largest.size,
        "megabytes_at_rank_0": largest.size * workers / 1e6,
        "milliseconds": {stage: clock.milliseconds(stage) for stage in ("encode", *STAGES, "store")}
        | {
            "registrations": clock.milliseconds("registrations"),
            "message": clock.milliseconds("a rank's message") / workers,
        },
        "milliseconds_at_rank_0": sum(clock.milliseconds(stage) for stage in STAGES),
        "kilobytes_of_record": len(to_line(healthy.record)) / 1e3,
        "megabytes_grown": peak,
        "named_after_readings": None if faulty.told_at is None else faulty.told_at + 1 - FAULT_AT,
    }


def resident_megabytes() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3


def processor() -> str:
    found = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())
    return found[1] if found else platform.processor()


def in_own_process(workers: int, readings: int) -> dict[str, Any]:
    arguments = ["--one", str(workers), "--readings", str(readings)]
    done = subprocess.run([sys.executable, __file__, *arguments], stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.returncode)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def line(found: dict[str, Any]) -> str:
    parts = ", ".join(f"{stage} {found['milliseconds'][stage]:.1f}" for stage in STAGES)
    return (
        f"{found['workers']:>6,} workers: {found['milliseconds_at_rank_0']:6.1f} ms a reading at rank 0 ({parts}), "
        f"{found['bytes_per_rank']:,} bytes a rank, record {found['kilobytes_of_record']:.0f} kB"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, nargs="+", default=SIZES)
    parser.add_argument("--readings", type=int, default=READINGS)
    parser.add_argument("--short", action="store_true", help="64 and 256 workers, half a minute")
    parser.add_argument("--json", metavar="FILE", help="where the result goes")
    parser.add_argument("--one", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(measured(options.one, options.readings)))
        return
    sizes, readings = SHORT_SIZES if options.short else options.workers, options.readings
    results = []
    for workers in sizes:
        results.append(in_own_process(workers, readings))
        print(line(results[-1]), flush=True)
    if options.json:
        head = {
            "command": " ".join(["python", *sys.argv]),
            "python": platform.python_version(),
            "torch": torch.__version__,
            "processor": processor(),
        }
        Path(options.json).write_text(json.dumps({**head, "readings": readings, "results": results}, indent=1) + "\n")


if __name__ == "__main__":
    main()
