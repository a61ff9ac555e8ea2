"""The end of a process that trained, or was about to, and of which nothing was heard: one line says so, once a job.

Processes that only import torch, as launchers and data loaders do, say nothing.
"""

from __future__ import annotations

import atexit
import os
import sys
import time
from multiprocessing import util
from pathlib import Path
from typing import Any

from unisono.common.console import Console

WHY = (
    "nothing was heard: no model was wrapped in DistributedDataParallel. FSDP, DeepSpeed and gradients averaged by "
    "hand are not heard; in a job of one process call unisono.attach(model, optimizer). See docs/listening.md"
)
CRASHED = "nothing was heard: the job failed before a model was wrapped in DistributedDataParallel"
BEGAN = "UNISONO_RUN_BEGAN"
"""How long the run file was when this job began: what stands behind that is of this job."""

LAST = -1_000
"""After everything else that ends a process."""


class ProcessEnd:
    """What is to be known of this process when it ends."""

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._is_copy = False
        """Forked by a process that had begun to train, as a data loader is: what it holds is not its own."""

        self._group: tuple[int, int] | None = None
        """Rank and number of ranks."""

        atexit.register(self._at_exit)
        # Forked processes do not come to `atexit`.
        util.register_after_fork(self, ProcessEnd._forked)

    def group_ends(self) -> None:
        """The process group is about to be destroyed."""
        self._group = _group() or self._group

    def _forked(self) -> None:
        self._is_copy = _group() is not None or _has_optimizer()
        util.Finalize(self, self._tell, exitpriority=LAST)

    def _at_exit(self) -> None:
        if os.getpid() == self._pid:
            self._tell()

    def _tell(self) -> None:
        try:
            self.group_ends()
            from unisono.monitor.exit_hooks import uncaught

            crashed = uncaught() is not None
            if not self._is_copy and self._has_trained(crashed) and self._rank() == 0 and not _has_attached():
                _tell_of_it(crashed)
        except Exception as error:
            Console().say(f"could not say whether anything was heard ({type(error).__name__}: {error})")

    def _has_trained(self, crashed: bool) -> bool:
        several = self._group is not None and self._group[1] > 1
        return several or _has_optimizer() or (crashed and "RANK" in os.environ)

    def _rank(self) -> int:
        if self._group is not None:
            return self._group[0]
        number = os.environ.get("RANK", os.environ.get("SLURM_PROCID", "0"))
        return int(number) if number.isdecimal() else 0


def _group() -> tuple[int, int] | None:
    import torch.distributed as dist

    if not dist.is_available() or not dist.is_initialized():
        return None
    return dist.get_rank(), dist.get_world_size()


def _has_attached() -> bool:
    """Whoever tried to has been told why not."""
    module: Any = sys.modules.get("unisono.monitor.attach")
    return module is not None and module.has_been_called()


def _has_optimizer() -> bool:
    """Torch marks the class of every optimizer that is built, so that nothing has to be hooked into training."""
    from torch.optim import Optimizer

    classes: list[Any] = [Optimizer]
    for cls in classes:
        classes += cls.__subclasses__()
    return any(getattr(cls.step, "hooked", False) for cls in classes)


def _tell_of_it(crashed: bool) -> None:
    from unisono.monitor.last_steps import TRIAL

    why = CRASHED if crashed else WHY
    run_dir = os.environ.get("UNISONO_RUN_DIR")
    if run_dir and not _write_down(Path(run_dir), why, "crashed" if crashed else "finished"):
        return
    # `unisono smoke` and `unisono.testing` tell it themselves.
    if TRIAL not in os.environ:
        Console().say(why)


def _write_down(run_dir: Path, why: str, ended: str) -> bool:
    """Whether nothing has been told of this job yet."""
    # Not earlier: few processes come here.
    from unisono.common.errors import RunInUse
    from unisono.records import EndRecord, NoteRecord
    from unisono.records.runfile import RunWriter, continue_or_create
    from unisono.records.runfile.lines import RUN_FILE

    began = os.environ.get(BEGAN, "0")
    file = run_dir / RUN_FILE
    try:
        if file.is_file() and file.stat().st_size > int(began if began.isdecimal() else 0):
            return False
        attempt = continue_or_create(run_dir)
        writer = RunWriter(run_dir)
    except (OSError, RunInUse):
        return True
    now = time.time()
    writer.write(NoteRecord(attempt, -1, now, why, about="nothing-heard"))
    writer.write(EndRecord(attempt, -1, now, steps=0, heard=0, lost=0, ended=ended))
    writer.close()
    return True
