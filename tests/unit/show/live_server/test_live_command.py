"""`unisono live` as a user starts and ends it."""

import argparse
import os
import re
import signal
import socket
import stat
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from urllib.request import urlopen

import pytest

from unisono.cli.commands import live
from unisono.cli.main import Parser
from unisono.common.errors import RunFileError, UserError
from unit.show.live_server.serving import Counting, shell, until, write_run

SOURCE = Path(__file__).parents[4] / "src"


@pytest.fixture
def plain_page(monkeypatch):
    """The page itself is not what is tested here, and takes a second to load."""
    page = SimpleNamespace(LiveView=Counting, shell=shell, static_files=dict)
    monkeypatch.setitem(sys.modules, "unisono.show.page.live_view", page)


class Live:
    def __init__(self, *arguments):
        command = [sys.executable, "-m", "unisono", "live", *map(str, arguments)]
        environment = os.environ | {"PYTHONPATH": str(SOURCE)}
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        self.process = subprocess.Popen(command, env=environment, start_new_session=True, **pipes)
        self.said = [self.process.stdout.readline(), self.process.stdout.readline()]
        self.port = int(re.search(r"http://127\.0\.0\.1:(\d+)/", self.said[0])[1])

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.communicate()

    def get(self, target="/"):
        with urlopen(f"http://127.0.0.1:{self.port}{target}", timeout=20) as answer:
            return answer.read().decode()

    def end(self, number):
        self.process.send_signal(number)
        out, err = self.process.communicate(timeout=20)
        return self.process.returncode, out, err


def arguments(*words):
    parser = Parser(prog="unisono")
    live.add_parser(parser.add_subparsers())
    return parser.parse_args(["live", *map(str, words)])


def contents(folder):
    return {str(path): (path.lstat().st_mtime_ns, path.lstat().st_size) for path in [folder, *folder.rglob("*")]}


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_page_is_shown_until_a_signal_and_nothing_is_written(tmp_path, number):
    pytest.importorskip("bokeh")
    write_run(tmp_path / "runs/run", steps=30)
    before = contents(tmp_path)
    with Live(tmp_path / "runs", "--port", "0") as page:
        assert re.fullmatch(
            rf"unisono: from elsewhere first: ssh -L {page.port}:127\.0\.0\.1:{page.port} \S+@\S+\n", page.said[1]
        )
        run_id = page.get().split("/run/")[1][:12]
        assert "<html" in page.get(f"/run/{run_id}/")
        assert "function" in page.get("/static/page.js")
        until(lambda: '"status":"writing"' in page.get(f"/run/{run_id}/state"))
        assert page.end(number) == (0, "", "")
    assert contents(tmp_path) == before


def test_a_run_that_may_only_be_read_is_shown_and_the_only_one_at_once(tmp_path):
    pytest.importorskip("bokeh")
    file = write_run(tmp_path / "run", steps=5)
    file.chmod(stat.S_IRUSR)
    file.parent.chmod(stat.S_IRUSR | stat.S_IXUSR)
    with Live(file, "--port", "0") as page:
        assert "/state" in page.get()
        niceness = int(Path(f"/proc/{page.process.pid}/stat").read_text().rpartition(")")[2].split()[16])
        assert niceness == min(19, os.nice(0) + live.NICENESS)
        assert page.end(signal.SIGINT)[0] == 0
    file.parent.chmod(stat.S_IRWXU)


@pytest.mark.usefixtures("plain_page")
def test_a_port_in_use_is_an_error_when_it_was_asked_for(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(UserError, match=f"Found {port} "):
            live.run(arguments(tmp_path, "--port", port))


@pytest.mark.usefixtures("plain_page")
def test_without_a_wish_the_next_free_port_is_taken(tmp_path, monkeypatch, capsys):
    with socket.create_server(("127.0.0.1", 0)) as other:
        taken = other.getsockname()[1]
        monkeypatch.setattr(live, "PORT", taken)
        monkeypatch.setattr(live.PageServer, "serve_forever", lambda _server, _seconds: None)
        monkeypatch.setattr(live.os, "nice", lambda _more: None)
        assert live.run(arguments(tmp_path)) == 0
    told = capsys.readouterr().out
    assert f":{taken}/" not in told
    assert "http://127.0.0.1:" in told


@pytest.mark.parametrize("port", ["", "-1", "65536", "999999", "1.5", "nan", "http", "8642 ", "\u0661"])
def test_a_port_is_a_number(tmp_path, port):
    with pytest.raises(UserError, match="`--port` should be a whole number"):
        live.run(argparse.Namespace(run=str(tmp_path), port=port))


@pytest.mark.parametrize("place", ["missing", "", "missing/run.jsonl", "/dev/null"])
def test_a_missing_run_is_an_error(tmp_path, monkeypatch, place):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(RunFileError):
        live.run(arguments(place))


def test_a_missing_package_is_named_with_its_extra(tmp_path, monkeypatch):
    for name in [name for name in sys.modules if name.startswith(("bokeh", "unisono.show.page"))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "bokeh", None)
    with pytest.raises(UserError, match=r'pip install "unisono\[report\]"'):
        live.run(arguments(tmp_path))


def test_the_same_trouble_is_told_once(capsys):
    complain = live._complainer()
    for _ in range(3):
        complain("a\x1b[31m\nb")
    for number in range(100):
        complain(str(number))
    told = capsys.readouterr().err.splitlines()
    assert told[0] == "unisono: a[31m b"
    assert len(told) == live.MOST_COMPLAINTS


def test_a_folder_without_runs_is_waited_for(tmp_path):
    pytest.importorskip("bokeh")
    with Live(tmp_path, "--port", "0") as page:
        assert "No run yet" in page.get()
        write_run(tmp_path / "first")
        until(lambda: ">first</a>" in page.get())
