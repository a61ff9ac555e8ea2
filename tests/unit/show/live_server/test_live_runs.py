"""Runs followed while real writers write them, die and come back."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from unisono.records import DepartureRecord, RunRecord
from unisono.show.live_server import live_runs as following
from unisono.show.live_server.live_runs import Follower, Followers
from unisono.show.live_server.tail import Bite, Standing
from unit.show.live_server.serving import Counting, end, lines, serving, start, step, until, write_run

SOURCE = Path(__file__).parents[4] / "src"

# The number of each step goes down the pipe only after it was written.
WRITER = """
import os, sys, time
from unisono.records import AttemptRecord, RunRecord, StepRecord
from unisono.records.runfile import RunWriter, continue_or_create

directory, number = sys.argv[1], int(sys.argv[2])
attempt = continue_or_create(directory)
writer = RunWriter(directory)
if writer.needs_header:
    writer.write(RunRecord(1, "r", time.time(), "", ""))
writer.write(AttemptRecord(attempt, time.time(), 8, number, ()))
while True:
    size = number % 41
    if writer.write(StepRecord(attempt, number, time.time(), cos_GW=((0.123456789,) * 8,) * (5 * size))):
        os.write(1, b"%d\\n" % number)
    number += 1
    time.sleep(0.002)
"""


class Job:
    """Writes steps from `first` on until it is killed."""

    def __init__(self, directory, first):
        command = [sys.executable, "-S", "-c", WRITER, str(directory), str(first)]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, env=os.environ | {"PYTHONPATH": str(SOURCE)})
        self._first = self._process.stdout.readline()

    def kill(self):
        """The last step that was acknowledged."""
        self._process.send_signal(signal.SIGKILL)
        acknowledged = self._first + self._process.communicate()[0]
        return int(acknowledged.splitlines()[-1])


def test_a_job_is_followed_over_its_death_and_its_restart(tmp_path):
    run = tmp_path / "run"
    job = Job(run, 0)
    with serving(tmp_path) as served:
        (run_id,) = served.run_ids()
        last = served.state(run_id)["last"]
        for _ in range(3):
            last = until(lambda before=last: served.state(run_id)["last"] > before and served.state(run_id)["last"])
        assert served.state(run_id)["following"]["status"] == "writing"
        written = job.kill()
        until(lambda: served.state(run_id)["last"] >= [written])
        died = served.state(run_id)
        assert died["steps"] == died["last"][0] + 1
        os.utime(run / "run.jsonl", times=(time.time() - 600,) * 2)
        until(lambda: served.state(run_id)["following"]["text"] == "nothing new for 10 minutes")
        job = Job(run, died["last"][0] + 1)
        until(lambda: served.state(run_id)["attempts"] == [1, 2])
        until(lambda: served.state(run_id)["last"] > died["last"])
        assert served.state(run_id)["following"]["status"] == "writing"
        written = job.kill()
        until(lambda: served.state(run_id)["last"] >= [written])
        state = served.state(run_id)
        assert (state["steps"], state["following"]["unreadable"]) == (state["last"][0] + 1, 0)
        assert served.complaints == []


def test_nothing_new_costs_nothing_and_news_are_told(tmp_path):
    file = write_run(tmp_path / "run")
    with serving(tmp_path) as served:
        (run_id,) = served.run_ids()
        state = until(lambda: (state := served.state(run_id))["following"]["status"] == "writing" and state)
        query = f"?have=charts&version={state['version']}"
        assert served.ask(f"/run/{run_id}/state{query}").status == 204
        with file.open("ab") as writing:
            writing.write(lines(step(3), end(3)))
        until(lambda: served.ask(f"/run/{run_id}/state{query}").status == 200)
        news = served.state(run_id, query)
        assert (news["last"], news["had"], news["following"]["status"]) == ([3], "charts", "ended")
        assert news["version"] != state["version"]


def test_a_replaced_run_begins_anew_and_old_charts_no_longer_count(tmp_path):
    file = write_run(tmp_path / "run", steps=50)
    with serving(tmp_path) as served:
        (run_id,) = served.run_ids()
        state = until(lambda: (state := served.state(run_id))["steps"] == 50 and state)
        file.unlink()
        until(lambda: served.state(run_id)["following"]["status"] == "gone")
        assert served.state(run_id)["steps"] == 50
        write_run(tmp_path / "run", steps=2, started=2.5)
        until(lambda: served.state(run_id)["steps"] == 2)
        assert served.state(run_id, f"?have=charts&version={state['version']}")["had"] == ""
        fresh = served.state(run_id)["version"]
        assert served.state(run_id, f"?have=charts&version={fresh[:-1]}")["had"] == "charts"


def test_charts_from_an_earlier_server_do_not_count(tmp_path):
    write_run(tmp_path / "run")
    with serving(tmp_path) as served:
        (run_id,) = served.run_ids()
        version = served.state(run_id)["version"]
    with serving(tmp_path) as served:
        assert served.state(run_id, f"?have=charts&version={version}")["had"] == ""


class Slow(Counting):
    def see(self, record):
        time.sleep(0.001)
        super().see(record)


def timed(action, seconds):
    began = time.monotonic()
    result = action()
    assert time.monotonic() - began < seconds
    return result


def test_a_long_file_is_answered_while_it_is_read(tmp_path, monkeypatch):
    monkeypatch.setattr(following, "REDRAWN", 0.0)
    write_run(tmp_path / "run", steps=3_500)
    with serving(tmp_path, Slow) as served:
        (run_id,) = served.run_ids()
        shares = []
        while (state := timed(lambda: served.state(run_id), 1.5))["following"]["status"] == "reading":
            timed(lambda: served.ask("/"), 1.0)
            shares.append(state["following"]["share"])
            assert state["following"]["text"] == f"reading, {int(100 * shares[-1])} %"
            time.sleep(0.05)
        assert shares == sorted(shares)
        assert len(shares) > 2
        assert (state["steps"], state["following"]["share"]) == (3_500, 1.0)


class Drawing(Slow):
    drawn = 0

    def state(self, have):
        Drawing.drawn += 1
        return super().state(have)


def test_a_file_that_is_being_read_is_not_drawn_all_the_time(tmp_path):
    follower = Follower(write_run(tmp_path, steps=2_000), Drawing, print)
    asked = 0
    while json.loads(follower.shown("", "").body)["following"]["status"] == "reading":
        asked += 1
        time.sleep(0.01)
    follower.stop()
    assert asked > 3
    assert Drawing.drawn <= 3


def test_what_was_drawn_from_an_earlier_file_is_never_shown_for_the_next(tmp_path):
    follower = Follower(write_run(tmp_path), Counting, print)
    until(lambda: json.loads(follower.shown("", "").body)["steps"] == 3)
    follower.stop()
    follower._take(Bite(Standing(there=True, position=9, size=900, more=True), anew=True))
    assert json.loads(follower.shown("", "").body)["steps"] == 0


class Broken(Counting):
    def see(self, record):
        if record.kind == "step" and record.step == 1:
            raise ZeroDivisionError("one")
        super().see(record)


def test_a_record_that_cannot_be_shown_does_not_end_the_following(tmp_path):
    write_run(tmp_path / "run", steps=3)
    with serving(tmp_path, Broken) as served:
        state = until(lambda: (state := served.state())["last"] == [2] and state)
        assert (state["steps"], state["following"]["unreadable"]) == (2, 1)
        assert served.complaints == ["a record of kind `step` cannot be shown (ZeroDivisionError: one)"]


def followers():
    return [thread for thread in threading.enumerate() if thread.name == "unisono-follower"]


def test_only_runs_that_were_asked_for_are_followed_and_the_oldest_makes_room(tmp_path):
    for number in range(following.MOST_FOLLOWED + 3):
        write_run(tmp_path / str(number))
    until(lambda: not followers())
    with serving(tmp_path) as served:
        run_ids = served.run_ids()
        assert followers() == []
        versions = {run_id: served.state(run_id)["version"] for run_id in run_ids}
        until(lambda: len(followers()) == following.MOST_FOLLOWED)
        assert served.ask(f"/run/{run_ids[-1]}/state?version={versions[run_ids[-1]]}").status == 204
        assert served.ask(f"/run/{run_ids[0]}/state?version={versions[run_ids[0]]}").status == 200
    until(lambda: not followers())


def test_a_run_that_nobody_looks_at_is_not_read(tmp_path, monkeypatch):
    monkeypatch.setattr(following, "INTEREST", 0.2)
    monkeypatch.setattr(following, "PAUSE", 0.01)
    file = write_run(tmp_path)
    kept = Followers(Counting, print)
    follower = kept.of(file)
    assert json.loads(follower.shown("", "").body)["steps"] == 3
    time.sleep(0.5)
    with file.open("ab") as writing:
        writing.write(lines(step(3)))
    time.sleep(0.2)
    assert len(follower._view.steps) == 3
    assert json.loads(follower.shown("", "").body)["steps"] == 4
    kept.close()


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (b"", "nothing written yet"),
        (lines(RunRecord(1, "r", 1.5, "", ""))[:-9], "nothing written yet"),
        (lines(RunRecord(1, "r", 1.5, "", ""), start()), "running"),
        (lines(start(), step(0), end(0)), "finished"),
        (lines(start(), step(0), end(0), start(2)), "running"),
        (lines(RunRecord(3, "r", 1.5, "", "")), "written by a newer unisono (format 3): pip install -U unisono"),
    ],
)
def test_the_browser_is_told_how_the_run_is_doing(tmp_path, content, text):
    (tmp_path / "run.jsonl").write_bytes(content)
    follower = Follower(tmp_path / "run.jsonl", Counting, print)
    assert json.loads(follower.shown("", "").body)["following"]["text"] == text
    follower.stop()


@pytest.mark.parametrize("ended", [False, True])
def test_what_a_rank_left_about_the_silent_writer_is_shown(tmp_path, monkeypatch, ended):
    class Seeing(Counting):
        def __init__(self):
            super().__init__()
            self.departed = []

        def see(self, record):
            super().see(record)
            self.departed += [record.rank] if record.kind == "departure" else []

        def state(self, have):
            return {**super().state(have), "departed": self.departed}

    def gone(attempt, rank, time=1.5):
        return DepartureRecord(attempt, 2, time, rank, "lost", told_by=1)

    file = write_run(tmp_path)
    if ended:
        with file.open("ab") as writing:
            writing.write(lines(end(2)))
    (tmp_path / "rank-1.jsonl").write_bytes(lines(gone(1, 0), gone(7, 3), gone(1, 1, time=-1e6)))
    follower = Follower(file, Seeing, print)
    assert json.loads(follower.shown("", "").body)["departed"] == []
    monkeypatch.setattr(following, "QUIET", 0.0)
    assert until(lambda: json.loads(follower.shown("", "").body)["departed"]) == [0]
    time.sleep(2 * following.PAUSE)
    assert json.loads(follower.shown("", "").body)["departed"] == [0]
    follower.stop()
