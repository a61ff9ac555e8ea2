"""What every command says of damaged run files.

`python tests/fuzz.py FIRST COUNT` takes files through all of them, each hundred in a child with 1 GB of address space.
"""

import contextlib
import io
import json
import os
import re
import resource
import sys
import tempfile
import traceback
import warnings
from pathlib import Path

TESTS = Path(__file__).resolve().parent
if str(TESTS) not in sys.path:
    sys.path.insert(0, str(TESTS))

from damaged_runs import GOLDEN, damaged  # noqa: E402 (found by the line above)
from unisono.cli.main import main as unisono  # noqa: E402
from unisono.common.errors import UserError  # noqa: E402
from unisono.show.live_server.run_index import RunHeaders  # noqa: E402
from unisono.show.live_server.tail import Tail  # noqa: E402
from unisono.show.page.drawing import charts_of, extent, look  # noqa: E402
from unisono.show.page.html_slots import frames, words  # noqa: E402
from unisono.show.page.live_view import LiveView  # noqa: E402
from unisono.show.page.page_model import PageModel  # noqa: E402

MEMORY = 10**9
"""Bytes of address space in which a child has to do."""

EXIT_CODES = {0, 1, 2, 3}
DRAWN_EVERY = 100
"""Of so many files one has its pages drawn by Bokeh, which takes ten times as long as all else; all have their columns
and words made."""

CHILD = 100
"""Files that go through one child."""


DIAGNOSED = (
    *(("--json",), ("--json", "--fail-on", "info"), ("--markdown", "--fail-on", "critical", "--fail-on-resolved")),
    *((), ("--checks", "--thresholds", "manuals"), ("--json", "--thresholds", "manuals")),
)


def commands(run, folder, turn, drawn=True):
    """Every command that reads a run; where one has several forms, they take turns."""
    other, page = str(folder / "other.jsonl"), str(folder / "page.html")
    pair = [run, other] if turn % 4 < 2 else [other, run]
    lines = [
        ["diagnose", run, *DIAGNOSED[turn % len(DIAGNOSED)]],
        ["compare", *pair, *(["--json"] if turn % 2 else [])],
        ["scaling", run, *(["--json"] if turn % 2 else [])],
        ["calibrate", run, *(["--json"] if turn % 2 else ["--write", str(folder / "guard.toml")])],
        ["batches", run, *([] if turn % 2 else ["--json"])],
        ["export", run, "--to", "csv", str(folder / "table.csv")],
    ]
    return lines + ([["report", run, "-o", page], ["compare", *pair, "-o", page]] if drawn else [])


def write(seed, folder):
    """The damaged run, beside a small one to compare it with."""
    run = Path(folder) / "run.jsonl"
    run.write_bytes(damaged(seed))
    run.with_name("other.jsonl").write_text("".join(GOLDEN.read_text().splitlines(keepends=True)[:12]))
    return run


def troubles(seed, folder):
    """What goes wrong with one file, in words; empty where nothing does."""
    run, drawn = write(seed, folder), seed % DRAWN_EVERY == 0
    found = [words for line in commands(str(run), Path(folder), seed, drawn) for words in said(line)]
    return [f"seed {seed}: {words}" for words in [*found, *tried("live", lambda: followed(run, drawn))]]


def said(line):
    """Runs one command in this process; what goes wrong with it."""
    out, err, codes = io.StringIO(), io.StringIO(), []
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        yield from tried(line[0], lambda: codes.append(unisono(["--debug", *line])))
    if codes and codes[0] not in EXIT_CODES:
        yield f"{line[0]}: exit code {codes[0]}"
    if "Traceback" in err.getvalue():
        yield f"{line[0]}: {err.getvalue()}"
    if "off: failed" in out.getvalue():
        yield f"{line[0]}: {re.search('off: failed.*', out.getvalue())[0]}"


def tried(what, work):
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        try:
            work()
        except Exception as error:
            if not is_told(error):
                yield f"{what}: {''.join(traceback.format_exception(error)[-4:])}"
    for one in heard:
        yield f"{what}: {one.category.__name__}: {one.message} ({one.filename}:{one.lineno})"


def is_told(error):
    return isinstance(error, UserError) and "\n" not in str(error)


def followed(run, drawn):
    """The page that follows a run, as `unisono live` makes it."""
    RunHeaders().of(run)
    view, tail, more = LiveView() if drawn else PageModel(), Tail(run), True
    while more:
        bite = tail.bite()
        more = bite.standing.more
        for record in bite.records:
            view.see(record)
    if drawn:
        json.dumps(view.state(""), allow_nan=False)
        return
    json.dumps([words(view), frames(view), look(view), extent(view)], allow_nan=False)
    for chart in charts_of(view):
        chart.data(view)


def main(first, count):
    """The exit code: 1 where anything went wrong."""
    wrong = sum(in_child(begin, min(CHILD, first + count - begin)) for begin in range(first, first + count, CHILD))
    print(f"{count} files from seed {first}: {'all' if not wrong else 'not all'} well")
    return int(wrong > 0)


def in_child(first, count):
    """Whether anything went wrong in a process of its own, which is forked: what takes long to import is there."""
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
        with tempfile.TemporaryDirectory() as folder:
            found = [words for seed in range(first, first + count) for words in troubles(seed, folder)]
        print("".join(f"{words}\n" for words in found), end="", flush=True)
        os._exit(len(found) > 0)
    return os.waitpid(child, 0)[1] != 0


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:3])))
