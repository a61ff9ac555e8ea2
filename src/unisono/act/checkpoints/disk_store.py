"""Checkpoints in a folder of the run, one file for each worker and one for each host."""

from __future__ import annotations

import atexit
import contextlib
import os
import re
import threading
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import torch

from unisono.act.checkpoints import checksummed, files, plain_files
from unisono.act.checkpoints.ledger import Ledger
from unisono.act.checkpoints.plain_files import CheckpointError
from unisono.act.checkpoints.restart import check_finite, load_parts, origin_of, own_name
from unisono.act.checkpoints.snapshot import Snapshot
from unisono.act.checkpoints.store import not_held
from unisono.act.checkpoints.writer import Writer

PATIENCE = 30.0
"""Seconds that the end of a run waits for what is being written."""

_OURS = re.compile(r"\.?(healthy|rank-[0-9]+|replica-[^/]+)\.(pt|json)(\.[0-9a-f]+\.tmp)?")


class DiskStore:
    """
    `replica_writer` is the first worker of a host: it also writes what is equal on all workers, the marks of healthy
    checkpoints, and removes those that are too old.
    """

    captures = True

    def __init__(
        self,
        folder: str | os.PathLike[str],
        rank: int,
        replica_writer: bool,
        replica_name: str,
        keep: int,
        quiet: int,
        world: int,
        attempt: int,
        complain: Callable[[str], None] = lambda text: None,
    ) -> None:
        if not re.fullmatch(r"replica-[\w.-]+\.pt", replica_name):
            raise ValueError(f"A replica's file should be named `replica-<name>.pt`. Found `{replica_name}`.")
        if torch.__version__ < "2.10":
            complain(
                "Checkpoints should be read by torch 2.10 or newer, which mended a flaw in reading (CVE-2026-24747)."
            )
        self.dropped = 0
        """Snapshots that came while an older one was still being written, and were overtaken by a newer one."""

        self.error: Exception | None = None
        """The first thing that went wrong while writing; `failures` counts all of them."""

        self.failures = 0
        self._folder = Path(folder)
        self._rank = rank
        self._replica_writer = replica_writer
        self._replica_name = replica_name
        self._keep = keep
        self._complain = complain
        # Held for the ledger and all below it: two threads look things up and change them.
        self._lock = threading.Lock()
        self._ledger = Ledger(keep, quiet)
        self._verified: set[int] = set()
        self._origin = partial(files.Origin, attempt=attempt, world=world)
        self._adopted: dict[int, files.Origin] = {}
        self._newest: int | None = None
        self._pid = os.getpid()
        self._writer = Writer(self._failed)
        atexit.register(self.close)

    def has_room(self) -> bool:
        with self._lock:
            return self._ledger.has_room()

    def keep(self, snapshot: Snapshot) -> None:
        """Returns at once; the snapshot must not be changed afterwards."""
        if not self.has_room():
            return
        with self._lock:
            self._verified.discard(snapshot.step)
            self._ledger.add(snapshot.step)
        if self._writer.newest(partial(self._write, snapshot)) and self._newest is not None:
            self.dropped += 1
            with self._lock:
                self._ledger.remove(self._newest)
        self._newest = snapshot.step

    def quiet(self, step: int) -> None:
        with self._lock:
            self._ledger.quiet(step)

    def trouble(self, first_step: int) -> None:
        with self._lock:
            dropped = self._ledger.trouble(first_step)
        for step in dropped:
            self._writer.soon(partial(self._remove_mine, step))

    def held(self) -> tuple[int, ...]:
        """Other workers' parts are verified by them: the whole is intact where all workers hold a step."""
        with self._lock:
            return tuple(step for step in self._ledger.healthy() if step in self._verified)

    def fetch(self, step: int) -> Snapshot:
        if step not in self.held():
            raise not_held(step, self.held())
        origin = self._adopted.get(step) or self._origin(step)
        return load_parts(self._folder, origin, self._rank, [self._replica_name])

    def agreed(self, step: int) -> None:
        if step not in self.held():
            raise not_held(step, self.held())
        with self._lock:
            if self._ledger.is_agreed(step):
                return
            self._ledger.agreed(step)
            needed = self._ledger.healthy()
        if self._replica_writer:
            self._writer.soon(partial(self._mark, step, needed))

    def adopt(self, step: int) -> None:
        """One that an earlier attempt has left, and that all workers have just loaded, counts as agreed."""
        self._adopted[step] = origin_of(self._folder, step)
        with self._lock:
            self._ledger.add_agreed(step)
            self._verified.add(step)

    def wait(self, seconds: float) -> bool:
        """Until all that was asked for lies on the disk; False if that takes longer."""
        return self._writer.wait(seconds)

    def close(self, patience: float = PATIENCE) -> None:
        atexit.unregister(self.close)
        # A forked child has no such thread.
        if os.getpid() == self._pid:
            self._writer.close(patience)

    def _write(self, snapshot: Snapshot) -> None:
        step = snapshot.step
        place = files.step_folder(self._folder, step)
        if not self._is_wanted(step):
            return
        try:
            check_finite(snapshot)
            plain_files.make_folder(self._folder)
            plain_files.make_folder(place)
            self._write_part(place / own_name(self._rank), snapshot.own, step)
            if self._replica_writer:
                self._write_part(place / self._replica_name, snapshot.replica, step)
        except Exception:
            with self._lock:
                self._ledger.remove(step)
            self._remove_mine(step)
            raise
        with self._lock:
            self._verified.add(step)

    def _is_wanted(self, step: int) -> bool:
        """Trouble may have come between capturing and writing."""
        with self._lock:
            return self._ledger.knows(step)

    def _write_part(self, path: Path, content: dict[str, Any], step: int) -> None:
        files.write(path, content, self._origin(step), lambda: self._writer.stopped)
        files.load(path, self._origin(step), from_disk=True)

    def _mark(self, step: int, needed: tuple[int, ...]) -> None:
        checksummed.write(files.step_folder(self._folder, step) / files.MARK, asdict(self._origin(step)))
        marked = [kept for kept in files.steps_in(self._folder) if kept <= step and self._is_marked(kept)]
        for old in files.steps_in(self._folder):
            if old < step and old not in needed and old not in marked[-self._keep :]:
                self._remove(old, _OURS)

    def _is_marked(self, step: int) -> bool:
        return (files.step_folder(self._folder, step) / files.MARK).is_file()

    def _remove_mine(self, step: int) -> None:
        names = [own_name(self._rank), *([self._replica_name, "healthy.pt"] if self._replica_writer else [])]
        stems = "|".join(re.escape(Path(name).stem) for name in names)
        self._remove(step, re.compile(rf"\.?({stems})\.(pt|json)(\.[0-9a-f]+\.tmp)?"))

    def _remove(self, step: int, names: re.Pattern[str]) -> None:
        """The mark first: a process that is killed here leaves nothing that seems healthy."""
        place = files.step_folder(self._folder, step)
        with contextlib.suppress(OSError, CheckpointError):
            plain_files.check_folder(place)
            present = [path for path in place.iterdir() if names.fullmatch(path.name)]
            for path in sorted(present, key=lambda path: path.name != files.MARK):
                path.unlink(missing_ok=True)
            # Refused while other workers' files are in it; the last of them removes it.
            place.rmdir()

    def _failed(self, error: Exception) -> None:
        self.failures += 1
        if self.error is None:
            self.error = error
            self._complain(f"A checkpoint could not be written ({error}). Training goes on without it.")
