"""What a rank leaves of its last steps."""

import subprocess
import sys
from types import SimpleNamespace

import pytest

from unisono.common import whole_file
from unisono.exchange.last_word import LastWord, of_error
from unisono.monitor import exit_hooks, noted_exit
from unisono.monitor.last_steps import TRIAL, LastSteps, last_word, write_rank_file
from unisono.records import DepartureRecord
from unisono.records.runfile.departures import departures_beside

GONE = DepartureRecord(1, 30, 1.5, 1, "signal", "SIGTERM", told_by=1)


@pytest.fixture
def victim(tmp_path):
    (tmp_path / "run").mkdir()
    victim = tmp_path / "victim"
    victim.write_bytes(b"theirs")
    return victim


def test_nothing_is_written_through_a_link_where_the_temporary_file_could_be_guessed(tmp_path, victim, monkeypatch):
    monkeypatch.setattr(whole_file.secrets, "token_hex", lambda count: "guessed")
    for name in ("rank-1.tmp", "rank-1.jsonl.tmp", ".rank-1.jsonl.guessed.tmp"):
        (tmp_path / "run" / name).symlink_to(victim)
    with pytest.raises(FileExistsError):
        write_rank_file(str(tmp_path / "run"), 1, [GONE])
    assert victim.read_bytes() == b"theirs"


def test_a_link_in_the_place_of_the_file_is_replaced_and_not_followed(tmp_path, victim):
    (tmp_path / "run" / "rank-1.jsonl").symlink_to(victim)
    write_rank_file(str(tmp_path / "run"), 1, [GONE])
    assert victim.read_bytes() == b"theirs"
    assert b"SIGTERM" in (tmp_path / "run" / "rank-1.jsonl").read_bytes()


@pytest.mark.parametrize(
    ("word", "told"),
    [
        (LastWord("exit", "exit code 1"), ["exit"]),
        (LastWord("exception", "ValueError: x"), ["exception"]),
        (LastWord("exit", "exit code 0"), []),
        (LastWord("exit"), []),
        (LastWord(), []),
    ],
)
def test_the_ranks_file_tells_how_it_went_itself(tmp_path, word, told):
    exchange = SimpleNamespace(run_facts={"attempt": 1, "run_dir": str(tmp_path)}, last_word=word, newest=5)
    LastSteps(1, 10).write(exchange)
    assert [one.how for one in departures_beside(tmp_path)] == told


@pytest.mark.parametrize(
    ("code", "detail"), [(False, "exit code 0"), (True, "exit code 1"), (3, "exit code 3"), ("no data", "exit code 1")]
)
def test_exit_codes(code, detail):
    assert of_error(SystemExit(code)) == ("exit", detail)


@pytest.mark.parametrize(("caught", "how"), [("gloo: Connection reset by peer", "exception"), ("as planned", "exit")])
def test_a_connection_that_was_lost_is_the_reason_also_where_it_was_caught(monkeypatch, caught, how):
    """As `torch.multiprocessing` does with what a rank raises."""
    monkeypatch.setattr(noted_exit, "_newest", None)
    monkeypatch.setattr(sys, "exit", getattr(sys.exit, "__wrapped__", sys.exit))
    noted_exit.note_exits()

    def rank():
        try:
            raise RuntimeError(caught)
        except RuntimeError:
            sys.exit(1)

    with pytest.raises(SystemExit):
        rank()
    assert last_word(None, True, "").how == how


@pytest.fixture
def signal_at(monkeypatch):
    monkeypatch.delenv(TRIAL, raising=False)
    monkeypatch.setattr(noted_exit, "_newest", None)

    def at(moment):
        monkeypatch.setattr(exit_hooks, "_warned_at", moment)

    return at


@pytest.mark.parametrize("exits", [False, True])
@pytest.mark.parametrize("trained_until", [99.0, 105.0, 900.0])
def test_who_was_warned_and_ends_in_good_order_has_finished(signal_at, exits, trained_until):
    signal_at(100.0)
    assert last_word(None, exits, "", trained_until).ended == "finished"
    assert last_word(SystemExit(0), exits, "", trained_until).ended == "finished"


def test_who_was_warned_and_ends_with_an_exit_code_was_ended_by_the_signal_unless_it_went_on(signal_at):
    signal_at(100.0)
    assert last_word(SystemExit(143), True, "", 105.0).how == "signal"
    assert last_word(SystemExit(3), True, "", 900.0).exit_code == "exit code 3"


SCRIPT = """
import os, signal, sys, time
from unisono.monitor import exit_hooks
sys.last_value = ValueError("of a cell that failed")
exit_hooks.on_exit(lambda reason: None)
met = []
signal.signal(signal.SIGTERM, lambda *_: met.append(True))
os.kill(os.getpid(), signal.SIGTERM)
while not (met and exit_hooks.warned(time.time())):
    time.sleep(0.01)
told = [exit_hooks.uncaught(), exit_hooks.warned(time.time() + 60)]
sys.last_value, sys.ps1 = ValueError("the end"), "In: "
told.append(exit_hooks.uncaught())
del sys.ps1
print(*told, exit_hooks.uncaught())
"""


def test_a_handler_of_the_program_and_an_error_from_before(tmp_path):
    """In a process of its own, where the main thread is the program's."""
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.split("\n")[0] == "None False None the end"
