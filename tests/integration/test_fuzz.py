"""Damaged run files through every command: no traceback, no warning, nothing unexpected, no rule switched off.

`make soak PART=fuzz` takes 10,000 files, in children of 100 with 1 GB each, and 300 as processes of their own. What
goes wrong is told with its seed: `python tests/fuzz.py SEED 1`.
"""

import subprocess
import sys
from pathlib import Path

import pytest

from damaged_runs import damaged
from unisono.records.runfile import scan

fuzz = pytest.importorskip("fuzz", reason="the page needs bokeh", exc_type=ImportError)

IN_CI, FILES, EACH = 300, 10_000, 1_000
PROCESSES, TOGETHER = 300, 100


@pytest.mark.slow
def test_some_files_in_this_process(tmp_path):
    assert [words for seed in range(IN_CI) for words in fuzz.troubles(seed, tmp_path)] == []


def test_the_files_are_damaged_in_many_ways_and_still_say_something(tmp_path):
    """Else every command would only refuse them."""
    whole, unreadable, records = 0, 0, 0
    for seed in range(100):
        (tmp_path / "run.jsonl").write_bytes(damaged(seed))
        found = [record for _, record in scan(tmp_path)]
        whole += None not in found
        unreadable += found.count(None)
        records += len(found)
    assert whole > 20
    assert unreadable > 100
    assert unreadable < records / 2


def test_what_goes_wrong_is_noticed(tmp_path, monkeypatch):
    """A rule that fails, a command that raises, and one that warns."""
    from unisono.cli.commands import batches, scaling
    from unisono.diagnose.rules.un404_non_finite import NonFinite

    def raises(*_arguments):
        raise ZeroDivisionError

    monkeypatch.setattr(NonFinite, "on_step", raises)
    monkeypatch.setattr(batches, "run", raises)
    monkeypatch.setattr(scaling, "run", lambda _args: fuzz.warnings.warn("odd", RuntimeWarning, stacklevel=1) or 7)
    found = "\n".join(words for seed in range(1, 5) for words in fuzz.troubles(seed, tmp_path))
    assert "diagnose: off: failed at step" in found
    assert "batches: " in found
    assert "ZeroDivisionError" in found
    assert "scaling: RuntimeWarning: odd" in found
    assert "scaling: exit code 7" in found


@pytest.mark.slow
@pytest.mark.soak("fuzz")
@pytest.mark.parametrize("first", range(0, FILES, EACH))
def test_many_files_in_children_with_little_memory(first):
    command = [sys.executable, Path(fuzz.__file__), str(first), str(EACH)]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr
    assert result.stdout == f"{EACH} files from seed {first}: all well\n"


@pytest.mark.slow
@pytest.mark.soak("fuzz")
@pytest.mark.parametrize("first", range(0, PROCESSES, TOGETHER))
def test_files_as_processes_of_their_own(tmp_path, first):
    run = str(tmp_path / "run.jsonl")
    for seed in range(first, first + TOGETHER):
        fuzz.write(seed, tmp_path)
        lines = [*fuzz.commands(run, tmp_path, seed), ["lab", "whatif", run]]
        line = lines[seed // 4 % len(lines)]
        result = subprocess.run([sys.executable, "-m", "unisono", *line], capture_output=True, text=True)
        assert result.returncode in fuzz.EXIT_CODES, (seed, line)
        assert result.stderr.count("\n") <= 1, (seed, line, result.stderr)
        assert "unexpected" not in result.stderr, (seed, line, result.stderr)
