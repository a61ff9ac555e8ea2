"""The first steps of a job: started, followed through its run file, stopped, and nothing left behind."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from unisono.cli.run_header import BEGAN, begin_run_file, script_name
from unisono.common.errors import UserError
from unisono.diagnose.manuals import ManualThresholds, asked_for
from unisono.records.runfile import scan
from unisono.records.runfile.lines import RUN_FILE
from unisono.show.analysis.checkup import Checkup, examine, further_models

MARK = "UNISONO_TRIAL"
POLL_SECONDS = 0.2
PATIENCE_SECONDS = 15.0
AFTER_KILL_SECONDS = 5.0
QUIET_SECONDS = 60.0
STEP_START = b'{"type":"step"'
STDERR = 2


@dataclass(frozen=True, slots=True)
class Trial:
    returncode: int | None
    """`None` when the job was stopped after its steps."""

    steps: int
    checkups: tuple[Checkup, ...]
    """One for each model that was heard, or one that says that nothing was."""

    @property
    def failure(self) -> str:
        """How the command failed; empty where it did not."""
        if not self.returncode:
            return ""
        return f"the command failed by itself with {spoken_exit(self.returncode)} after {self.steps:,} steps"

    @property
    def exit_code(self) -> int:
        """1 if there is a warning or worse, else 3 if a model was not heard enough or the job failed, else 0."""
        codes = {checkup.exit_code("warning") for checkup in self.checkups}
        return 1 if 1 in codes else 3 if 3 in codes or self.returncode else 0


def try_out(command: Sequence[str], environment: Mapping[str, str], run_dir: Path, steps: int) -> Trial:
    """Runs the command until it has recorded so many steps, or ends. Its stdout goes to stderr."""
    length = begin_run_file(run_dir, script_name(command))
    attempts = {file: _attempts(file) for file in _run_files(run_dir)}
    tail = StepCounter(run_dir / RUN_FILE)
    mark = uuid.uuid4().hex
    with _ending_by_signal():
        process = _start(command, {**environment, BEGAN: str(length), MARK: mark})
        try:
            returncode = _follow(process, tail, steps)
        finally:
            _stop(process, mark)
    tail.read()
    ignored = tuple(filter(None, environment.get("UNISONO_IGNORE", "").split(",")))
    # What was stopped here, or ended with exit code 0, has not failed, whatever its processes had to say of it.
    ended = "finished" if not returncode else "crashed" if returncode > 0 else "killed"
    checkups = [
        examine(file, ignored, attempts.get(file, 0), ended, ManualThresholds() if asked_for(environment) else None)
        for file in _run_files(run_dir)
    ]
    return Trial(returncode, tail.steps, tuple(one for one in checkups if one.steps) or tuple(checkups[:1]))


class StepCounter:
    """Counts the steps that a file gains."""

    def __init__(self, path: Path) -> None:
        self.steps = 0
        self._path = path
        self._offset = path.stat().st_size if path.exists() else 0

    def read(self) -> None:
        with contextlib.suppress(FileNotFoundError), self._path.open("rb") as file:
            file.seek(self._offset)
            gained = file.read()
            whole = gained[: gained.rfind(b"\n") + 1]
            self._offset += len(whole)
            self.steps += sum(line.startswith(STEP_START) for line in whole.split(b"\n"))


def marked(mark: str) -> list[int]:
    """Processes that inherited the mark: torchrun gives each worker a session of its own, out of a group's reach."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if f"{MARK}={mark}".encode() in (entry / "environ").read_bytes().split(b"\0"):
                found.append(int(entry.name))
    return found


def spoken_exit(returncode: int) -> str:
    if returncode > 0:
        return f"exit code {returncode}"
    return (
        f"signal {signal.Signals(-returncode).name}" if -returncode in set(signal.Signals) else f"signal {-returncode}"
    )


def _run_files(run_dir: Path) -> list[Path]:
    folders = (run_dir, *(run_dir / name for name in further_models(run_dir)))
    return [file for folder in folders if (file := folder / RUN_FILE).is_file()]


def _attempts(file: Path) -> int:
    """The newest attempt in a run that is continued."""
    return max((getattr(record, "attempt", 0) for _, record in scan(file) if record is not None), default=0)


def _start(command: Sequence[str], environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
    sys.stdout.flush()
    try:
        return subprocess.Popen(
            list(command), env=dict(environment), stdin=subprocess.DEVNULL, stdout=STDERR, start_new_session=True
        )
    except OSError as error:
        raise UserError(
            f"the command should be a program that can be started. Found `{command[0]}` ({error.strerror}). "
            "Check that it runs without unisono."
        ) from error


def _follow(process: subprocess.Popen[bytes], tail: StepCounter, steps: int) -> int | None:
    """The exit code of a job that has ended by itself."""
    started, told = time.monotonic(), False
    while tail.steps < steps:
        with contextlib.suppress(subprocess.TimeoutExpired):
            return process.wait(POLL_SECONDS)
        tail.read()
        if not tail.steps and not told and time.monotonic() - started > QUIET_SECONDS:
            told = True
            sys.stderr.write(
                f"unisono: no step recorded in {QUIET_SECONDS:.0f} s, still waiting; Ctrl-C stops the job\n"
            )
    return process.poll()


def _stop(process: subprocess.Popen[bytes], mark: str) -> None:
    """Politely first: launchers pass the signal on, and a worker leaves its last steps behind."""
    if process.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
    else:
        _signal(marked(mark), signal.SIGTERM)
    try:
        _wait_for_end(process, mark, PATIENCE_SECONDS)
    finally:
        _signal([*marked(mark), *([process.pid] if process.poll() is None else [])], signal.SIGKILL)
        _wait_for_end(process, mark, AFTER_KILL_SECONDS)


def _wait_for_end(process: subprocess.Popen[bytes], mark: str, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while (process.poll() is None or marked(mark)) and time.monotonic() < deadline:
        time.sleep(POLL_SECONDS)


def _signal(pids: Iterable[int], number: signal.Signals) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


@contextlib.contextmanager
def _ending_by_signal() -> Iterator[None]:
    """The job is in a session of its own, so whatever ends us has to end it too."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    numbers = [number for number in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(number) == signal.SIG_DFL]
    try:
        for number in numbers:
            signal.signal(number, _leave)
        yield
    finally:
        for number in numbers:
            signal.signal(number, signal.SIG_DFL)


def _leave(number: int, _frame: FrameType | None) -> None:
    raise SystemExit(128 + number)
