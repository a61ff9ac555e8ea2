"""The line at the end of a job of which nothing was heard: when it is said, when not, and what the file keeps of it."""

import atexit
import os
import sys
from multiprocessing import util
from pathlib import Path

import pytest

from unisono.cli.run_header import begin_run_file
from unisono.monitor import attach, nothing_heard
from unisono.monitor.nothing_heard import CRASHED, WHY, ProcessEnd
from unisono.records.runfile import read_run
from unisono.show.analysis.checkup import examine


@pytest.fixture(autouse=True)
def job(tmp_path, monkeypatch):
    """A rank that has built an optimizer and has never attached."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(atexit, "register", lambda function: None)
    monkeypatch.setattr(util, "register_after_fork", lambda *_: None)
    monkeypatch.setattr(nothing_heard, "_has_optimizer", lambda: True)
    monkeypatch.setattr(nothing_heard, "_group", lambda: None)
    monkeypatch.setattr(attach, "_called", False)
    for name in ("RANK", "SLURM_PROCID", "UNISONO_TRIAL", "UNISONO_RUN_DIR"):
        monkeypatch.delenv(name, raising=False)
    for name in ("last_exc", "last_value"):
        monkeypatch.delattr(sys, name, raising=False)
    return monkeypatch


def begun(job):
    """As `unisono run --out run` leaves it."""
    length = begin_run_file(Path("run"), "train")
    job.setenv("UNISONO_RUN_DIR", "run")
    job.setenv("UNISONO_RUN_BEGAN", str(length))


def said(capfd):
    ProcessEnd()._tell()
    out, err = capfd.readouterr()
    assert out == ""
    return err


def test_one_line_says_why_and_what_to_do_and_the_file_keeps_it(job, capfd):
    begun(job)
    assert said(capfd) == f"unisono: {WHY}\n"
    found = examine("run")
    assert (found.verdict, found.verdict_text) == ("unheard", f"unheard: {WHY}")
    assert (found.heard.level, found.heard.ended, found.heard.why) == ("nothing", "finished", WHY)


def test_it_is_said_once_a_job_however_often_it_restarts(job, capfd):
    begun(job)
    assert [said(capfd).count("\n") for _ in range(3)] == [1, 0, 0]
    begun(job)  # the directory is continued by another job
    assert said(capfd).count("\n") == 1
    assert [note.attempt for note in read_run("run").notes] == [1, 2]


def test_a_job_that_fails_before_it_wraps_a_model_is_broken(job, capfd):
    begun(job)
    job.setattr(nothing_heard, "_has_optimizer", lambda: False)
    job.setattr(sys, "last_value", ValueError(), raising=False)
    assert said(capfd) == ""  # a launcher, whose child has failed
    job.setenv("RANK", "0")
    assert said(capfd) == f"unisono: {CRASHED}\n"
    assert examine("run").verdict_text == "broken: the job crashed before its first step, and nothing was heard"


@pytest.mark.parametrize(
    ("group", "optimizer", "line"), [((0, 2), False, True), ((0, 1), False, False), (None, True, True)]
)
def test_who_has_several_ranks_or_an_optimizer_trains(job, capfd, group, optimizer, line):
    job.setattr(nothing_heard, "_has_optimizer", lambda: optimizer)
    job.setattr(nothing_heard, "_group", lambda: group)
    assert bool(said(capfd)) is line


def test_a_group_that_was_destroyed_is_remembered(job, capfd):
    job.setattr(nothing_heard, "_has_optimizer", lambda: False)
    job.setattr(nothing_heard, "_group", lambda: (0, 4))
    end = ProcessEnd()
    end.group_ends()
    job.setattr(nothing_heard, "_group", lambda: None)
    end._tell()
    assert WHY in capfd.readouterr().err


def test_only_rank_0_speaks(job, capfd):
    job.setattr(nothing_heard, "_group", lambda: (1, 2))
    assert said(capfd) == ""
    job.setattr(nothing_heard, "_group", lambda: None)
    job.setenv("RANK", "3")
    assert said(capfd) == ""


def test_who_has_attached_has_been_told(job, capfd):
    job.setattr(attach, "_called", True)
    assert said(capfd) == ""


def test_smoke_tells_it_itself(job, capfd):
    begun(job)
    job.setenv("UNISONO_TRIAL", "1")
    assert said(capfd) == ""
    assert examine("run").heard.why == WHY


def test_a_copy_of_a_process_that_trains_is_silent(job, capfd):
    """A data loader's, forked: it holds its parent's optimizer and group."""
    end = ProcessEnd()
    job.setattr(util, "Finalize", lambda *_, exitpriority: None)
    end._forked()
    end._tell()
    assert capfd.readouterr().err == ""
    job.setattr(os, "getpid", lambda: 1)
    end._is_copy = False
    end._at_exit()
    assert capfd.readouterr().err == ""


def test_an_optimizer_leaves_a_mark_on_its_class(job):
    job.undo()
    import torch

    torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)
    assert nothing_heard._has_optimizer()
