"""One rank that trains in blocks of steps, each block with unisono in another way, or without."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import unisono
from unisono.listen.clock import clock_for
from unisono.listen.listening_plan import WHOLE_AUDITS
from unisono.records.runfile import read_run

WARM_UP = WHOLE_AUDITS + 2
"""Steps at least before a block is timed: DDP arranges its buckets, and unisono compares the whole model."""

WARM_UP_ON_GPU = 12
"""In a wrapper's first ten steps DDP takes its own times, for which it waits for the GPU."""

AttachOptions = dict[str, Any] | None
"""How `unisono.attach` is called in a block; None: not at all."""


@dataclass(frozen=True)
class TimedBlock:
    """The timed steps of one block."""

    milliseconds: list[float]
    """Of the slowest rank, step by step."""

    heard: list[bool]
    peak_bytes: int
    """Most memory of the GPU that was taken at a time."""

    reading_seconds: float | None = None
    """What unisono took of the training thread per heard step, by its own account, and of a processor beside it."""


class Trainee:
    """
    :param make_loss: from the wrapped model, the loss of a fresh batch.
    :param settles: seconds after which a block is timed at the earliest; unisono's thread sets itself up meanwhile.
    :param wrapping: options of DistributedDataParallel.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        make_loss: Callable[[nn.Module], Tensor],
        home: Path,
        settles: float = 1.0,
        **wrapping: Any,
    ) -> None:
        self.model, self.optimizer, self.make_loss, self.home = model, optimizer, make_loss, home
        self.device = next(model.parameters()).device
        self.warm_up = WARM_UP if self.device.type == "cpu" else WARM_UP_ON_GPU
        self.settles, self.wrapping = settles, wrapping
        self._clock = clock_for(self.device)
        self._blocks = 0

    def block(self, options: AttachOptions, steps: int) -> TimedBlock:
        run_dir = self.home / f"block-{self._blocks}"
        self._blocks += 1
        model = self.wrapped()
        with self._listened_to(model, options, run_dir):
            first = self._warm_up(model)
            if self.device.type == "cuda":
                torch.cuda.reset_peak_memory_stats(self.device)
            before = processor_seconds()
            milliseconds = slowest(self.train(model, steps), self.device)
            beside = (processor_seconds() - before) / steps
            peak = torch.cuda.max_memory_allocated(self.device) if self.device.type == "cuda" else 0
        heard, reading = ([False] * steps, None) if options is None else _account(run_dir, first, steps)
        return TimedBlock(milliseconds, heard, peak, None if reading is None else reading + beside)

    def wrapped(self) -> DistributedDataParallel:
        """Afresh for each block: a hook of steering stays in its wrapper for good."""
        self.optimizer.zero_grad()
        # The last block's wrapper goes first, or its buckets would be counted as memory of this one.
        gc.collect()
        return DistributedDataParallel(self.model, **self.wrapping)

    @contextmanager
    def _listened_to(self, model: nn.Module, options: AttachOptions, run_dir: Path) -> Iterator[None]:
        if options is None:
            yield
            return
        monitor = unisono.attach(model, self.optimizer, run_dir=run_dir, **options)
        yield
        monitor.close()
        # Its run is read by every rank, and rank 0 writes it.
        dist.barrier()

    def _warm_up(self, model: nn.Module) -> int:
        """How many steps it took."""
        taken, passed = 0, 0.0
        while not taken or passed < 1000 * self.settles:
            # The slowest rank's, so that all of them stop at the same step.
            passed += sum(slowest(self.train(model, self.warm_up), self.device))
            taken += self.warm_up
        return taken

    def step(self, model: nn.Module) -> None:
        self.optimizer.zero_grad()
        self.make_loss(model).backward()
        self.optimizer.step()

    def train(self, model: nn.Module, steps: int) -> list[float]:
        """Milliseconds of each step on this rank."""
        marks = [self._clock.mark()]
        for _ in range(steps):
            self.step(model)
            marks.append(self._clock.mark())
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return [1000 * self._clock.seconds(begin, end) for begin, end in pairwise(marks)]


def slowest(milliseconds: Sequence[float], device: torch.device) -> list[float]:
    """Of all ranks, step by step."""
    times = torch.tensor(milliseconds, dtype=torch.float64, device=device)
    dist.all_reduce(times, dist.ReduceOp.MAX)
    found: list[float] = times.tolist()
    return found


def processor_seconds() -> float:
    """Processor time that unisono's own threads of this process have used; 0 where the system does not tell."""
    if not hasattr(time, "pthread_getcpuclockid"):
        return 0.0
    threads = [thread.ident for thread in threading.enumerate() if thread.name == "unisono"]
    return sum(time.clock_gettime(time.pthread_getcpuclockid(ident)) for ident in threads if ident is not None)


def _account(run_dir: Path, first: int, steps: int) -> tuple[list[bool], float | None]:
    """Which of `steps` steps from `first` on were heard, and seconds of the training thread that a heard one took."""
    records = read_run(run_dir).timeline()
    trained, spent = 0.0, {-1: 0.0}
    for record in records:
        trained += max(seconds or 0.0 for seconds in record.step_W)
        spent[record.step] = trained * (record.listening_cost or 0.0)
    all_heard = {record.step for record in records if record.heard}
    heard = [first + step in all_heard for step in range(steps)]
    return heard, (spent[max(spent)] - spent[max(step for step in spent if step < first)]) / sum(heard) if any(
        heard
    ) else None
