"""Processes of this machine: which of them have ended."""

import os
import signal
import subprocess
import sys
import time

import pytest

from unisono.exchange import processes
from unisono.exchange.processes import is_gone, is_seen, own_process


@pytest.fixture
def child():
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    yield process
    process.kill()
    process.wait()


def of(process):
    started = processes._state(process.pid)[1]
    return own_process() | {"pid": str(process.pid), "started": started}


def wait_until(is_so):
    deadline = time.monotonic() + 10
    while not is_so() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert is_so()


def test_a_killed_process_is_gone_also_before_its_parent_has_noticed(child):
    process = of(child)
    assert is_seen(process)
    os.kill(child.pid, signal.SIGKILL)
    wait_until(lambda: is_gone(process))
    child.wait()
    assert is_gone(process)
    assert not is_seen(process)


def test_a_number_that_belongs_to_another_process_now(child):
    assert is_gone(of(child) | {"started": "1"})


def test_processes_of_another_machine_or_container_are_not_seen(child):
    assert not is_seen(of(child) | {"place": "elsewhere"})
    assert not is_seen({})


def test_what_cannot_be_read_is_not_gone(child, monkeypatch):
    process = of(child)

    def refuse(pid):
        raise PermissionError(pid)

    monkeypatch.setattr(processes, "_state", refuse)
    assert not is_gone(process)
    assert own_process() == {}


def test_names_of_programs_may_hold_anything(tmp_path, monkeypatch):
    (tmp_path / "7").mkdir()
    (tmp_path / "7" / "stat").write_text("7 (a) Z (b) S " + " ".join(map(str, range(4, 30))))
    monkeypatch.setattr(processes, "PROC", tmp_path)
    assert processes._state(7) == ("S", "22")
