"""Writers that are killed, disks that lie, and files full of noise."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from unisono.records import AttemptRecord, EndRecord, NoteRecord, RunRecord, StepRecord, WorkerFacts, to_line
from unisono.records.runfile import RunFileError, RunWriter, read_run

SOURCE = Path(__file__).parents[3] / "src"
KILLS = 25
MUTATIONS = 4_000

# Records of very different lengths; the number of each goes down the pipe only after it was written.
WRITER = """
import os, sys
from unisono.records import AttemptRecord, RunRecord, StepRecord
from unisono.records.runfile import RunWriter, continue_or_create

directory, number = sys.argv[1], int(sys.argv[2])
attempt = continue_or_create(directory)
writer = RunWriter(directory)
if writer.needs_header:
    writer.write(RunRecord(1, "r", 1.5, "", ""))
writer.write(AttemptRecord(attempt, 1.5, 8, number, ()))
while True:
    size = number % 41
    if writer.write(StepRecord(attempt, number, 1.5, cos_GW=((0.123456789,) * 8,) * (5 * size))):
        os.write(1, b"%d\\n" % number)
    number += 1
"""


def write_until_killed(directory, first, delay):
    """The number of the last acknowledged record."""
    command = [sys.executable, "-S", "-c", WRITER, directory, str(first)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=os.environ | {"PYTHONPATH": str(SOURCE)}) as process:
        acknowledged = process.stdout.readline()
        time.sleep(delay)
        process.send_signal(signal.SIGKILL)
        acknowledged += process.stdout.read()
    assert process.returncode == -signal.SIGKILL
    return int(acknowledged.splitlines()[-1])


def test_no_acknowledged_record_is_lost_to_a_kill(tmp_path):
    chance = random.Random(20)
    last = -1
    for kill in range(KILLS):
        directory = tmp_path / str(kill // 5)
        first = 0 if kill % 5 == 0 else last + 1
        last = write_until_killed(directory, first, delay=chance.uniform(0, 0.01))
        run = read_run(directory)
        steps = [record.step for record in run.steps]
        assert run.bad_count <= 1
        assert len(run.attempts) == kill % 5 + 1
        assert set(range(first, last + 1)) <= set(steps)
    for directory in tmp_path.iterdir():
        RunWriter(directory).close()
        run = read_run(directory)
        assert run.bad_count == 0
        assert [record.step for record in run.timeline()] == list(range(run.timeline()[-1].step + 1))


@pytest.fixture(scope="module")
def small_run():
    workers = tuple(WorkerFacts(rank, "host", 7, "cpu") for rank in range(2))
    steps = (StepRecord(1, n, 1.5, heard=True, loss_W=(0.5, n * 0.1), cos_WW=((1.0, 0.5),) * 2) for n in range(2))
    records = [RunRecord(1, "r", 1.5, "train.py", "0.1.0"), AttemptRecord(1, 1.5, 2, 0, workers), *steps]
    records += [NoteRecord(1, 1, 1.5, "late"), EndRecord(1, 1, 1.5, 2, 2, 0)]
    return "".join(to_line(record) + "\n" for record in records).encode()


def overwrite(path, content):
    """Shrinks or grows the file; emptying it first would make some file systems wait for the disk each time."""
    path.touch()
    with path.open("r+b") as file:
        file.write(content)
        file.truncate()


def flip(content, place, chance):
    return content[:place] + bytes([content[place] ^ 1 << chance.randrange(8)]) + content[place + 1 :]


def cut(content, place, chance):
    return content[:place] + content[place + chance.randrange(1, 40) :]


def repeat(content, place, chance):
    return content[:place] + content[place : place + 30] * chance.randrange(2, 5) + content[place + 30 :]


def truncate(content, place, _chance):
    return content[:place]


def put(content, place, chance):
    return content[:place] + chance.choice(NOISE) + content[place:]


def swap(content, place, chance):
    other = chance.randrange(len(content))
    return content[:place] + content[other : other + 20] + content[place + 20 :]


NOISE = [
    b"\0" * 512, b"\n", b"\r\n", b"\xff", b"\xef\xbb\xbf", b'"', b"\\", b"\\ud800", b"{", b"}", b"[" * 2000, b"]",
    b"null", b"NaN", b"-Infinity", b"1e999", b"-", b"9" * 5000, b"9" * 30, b"true", b',"step":5', b"\x1b[31m",
]  # fmt: skip
MUTATORS = [flip, cut, repeat, truncate, put, swap]


def test_the_reader_survives_noise(tmp_path, small_run):
    chance = random.Random(21)
    path = tmp_path / "run.jsonl"
    opened = 0
    for _ in range(MUTATIONS):
        content = small_run
        for _ in range(chance.randrange(1, 4)):
            content = chance.choice(MUTATORS)(content, chance.randrange(len(content)), chance) or b"\n"
        overwrite(path, content)
        try:
            run = read_run(path)
        except RunFileError:
            continue
        opened += 1
        steps = [record.step for record in run.timeline()]
        assert steps == sorted(set(steps))
    assert opened > MUTATIONS // 2


def test_a_file_cut_or_zeroed_anywhere_can_be_read_and_continued(tmp_path, small_run):
    path = tmp_path / "run.jsonl"
    extra = StepRecord(2, 9, 1.5)
    for place in range(0, len(small_run), 16):
        for tail in (b"", b"\0" * (len(small_run) - place), b"\0" * 4096):
            overwrite(path, small_run[:place] + tail)
            writer = RunWriter(path)
            assert writer.write(extra)
            writer.close()
            assert (read_run(path).steps[-1], read_run(path).bad_count) == (extra, 0)
