"""Starts training scripts as real processes, and leaves none behind."""

import os
import signal
import subprocess
import sys
import time
import uuid
from dataclasses import dataclass
from pathlib import Path

SCRIPTS = Path(__file__).parent / "scripts"
FORKED = Path(__file__).parent / "forked.py"
MARK = "TEST_LAUNCH_ID"


@dataclass(frozen=True)
class Outcome:
    returncode: int
    stdout: bytes
    stderr: bytes

    def __str__(self):
        return f"exit code {self.returncode}\n--- stdout\n{self.stdout.decode()}\n--- stderr\n{self.stderr.decode()}"


def torchrun(workers, *target):
    """The line that starts `workers` ranks of a script (or of `-m`, module) on this machine."""
    return [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={workers}", *target]


def forked(workers, script, *arguments):
    """The same for a script alone, at a third of the cost: without a launcher, and torch is loaded once."""
    return [sys.executable, FORKED, workers, script, *arguments]


def under_unisono(command, *options):
    return [sys.executable, "-m", "unisono", "run", *options, "--", *command]


def launch(command, *, cwd=None, env=None, timeout=120):
    """Run to the end; fails when it takes too long or when a process it started lives on."""
    mark = uuid.uuid4().hex
    settings = {name: str(value) for name, value in (env or {}).items()}
    environment = {**clean_environment(), **settings, MARK: mark}
    process = subprocess.Popen(
        [str(part) for part in command],
        cwd=cwd,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    try:
        stdout, stderr = process.communicate(timeout=timeout)
        survivors = wait_for_end(mark, seconds=5)
    except subprocess.TimeoutExpired:
        end(marked(mark))
        stdout, stderr = process.communicate()
        outcome = Outcome(process.returncode, stdout, stderr)
        raise AssertionError(f"still running after {timeout} s: {command}\n{outcome}") from None
    finally:
        end(marked(mark))
    outcome = Outcome(process.returncode, stdout, stderr)
    assert not survivors, f"processes {survivors} outlived {command}\n{outcome}"
    return outcome


def clean_environment():
    """Without settings of ours or of a launcher around the tests, and with one thread a rank: two cores are enough."""
    foreign = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "PYTHONPATH")
    kept = {name: value for name, value in os.environ.items() if name not in foreign and not name.startswith("UNISONO")}
    return {**kept, "OMP_NUM_THREADS": "1"}


def marked(mark):
    """Torchrun gives each worker a session of its own, so they are found by an environment variable they inherit."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if f"{MARK}={mark}".encode() in (entry / "environ").read_bytes().split(b"\0"):
                found.append(int(entry.name))
        except OSError:
            continue
    return found


def wait_for_end(mark, seconds):
    deadline = time.monotonic() + seconds
    while (alive := marked(mark)) and time.monotonic() < deadline:
        time.sleep(0.1)
    return alive


def end(pids):
    for pid in pids:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
