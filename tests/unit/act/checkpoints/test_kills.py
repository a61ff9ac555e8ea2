"""A process that is killed while it writes leaves its newest healthy checkpoint intact."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from unisono.act.checkpoints import files, find_healthy, load

JOB = Path(__file__).parents[3] / "jobs" / "checkpoint_writer.py"
LONGEST = 3.0
"""Checkpoints that a process can write before it is killed."""


@pytest.fixture
def nursery(tmp_path):
    process = subprocess.Popen(
        [sys.executable, JOB, tmp_path / "checkpoints"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    yield process
    process.stdin.close()
    assert process.wait(timeout=30) == 0
    process.stdout.close()


def killed_after(nursery, seconds, with_one):
    """The steps that the child had acknowledged before it was killed; one of them for sure, or perhaps none."""
    nursery.stdin.write("go\n")
    nursery.stdin.flush()
    lines = list(said(nursery, until="child"))
    child = int(lines[-1][1])
    if with_one:
        lines += said(nursery, until="step")
    time.sleep(seconds)
    os.kill(child, signal.SIGKILL)
    lines += said(nursery, until="ended")
    assert not [line for line in lines if line[0] == "failed"]
    return [int(line[1]) for line in lines if line[0] == "step"]


def said(nursery, until):
    line = [""]
    while line[0] != until:
        line = nursery.stdout.readline().split(maxsplit=1)
        yield line


def seconds_each(nursery):
    """From the few that are written before any killing."""
    times = [time.perf_counter() for _ in range(4) if next(said(nursery, until="step"))]
    return (times[-1] - times[0]) / 3


def kill_often(nursery, folder, times):
    chance, each, newest, torn = random.Random(7), seconds_each(nursery), 4, 0
    for number in range(times):
        acknowledged = killed_after(nursery, chance.uniform(0.0, LONGEST * each), with_one=number % 2 == 0)
        newest = max([newest, *acknowledged])
        healthy = find_healthy(folder, 0)
        assert healthy[-1] >= newest
        weights = load(folder, healthy[-1], 0).replica["parameters"].values()
        assert {weight.unique().item() for weight in weights} == {float(healthy[-1])}
        newest = healthy[-1]
        torn += unfinished(folder)
    return newest, torn


def unfinished(folder):
    """Whether the last one begun is not a healthy checkpoint."""
    steps = files.steps_in(folder)
    return bool(steps) and not (files.step_folder(folder, steps[-1]) / files.MARK).exists()


def test_six_kills(nursery, tmp_path):
    newest, torn = kill_often(nursery, tmp_path / "checkpoints", 6)
    assert newest >= 7
    assert torn > 0


@pytest.mark.soak("deaths")
def test_a_hundred_kills(nursery, tmp_path):
    newest, torn = kill_often(nursery, tmp_path / "checkpoints", 100)
    assert newest >= 54
    assert torn > 20
    assert len(files.steps_in(tmp_path / "checkpoints")) < 20
