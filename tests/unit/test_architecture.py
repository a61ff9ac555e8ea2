"""ARCHITECTURE.md against the source, and its walks against runs whose calls were recorded."""

import re
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import pytest

import invented_runs
from call_trace import SOURCE, Call, Recorder, functions, loaded
from launch import forked, launch

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "ARCHITECTURE.md").read_text()
JOB = ROOT / "tests" / "jobs" / "walks.py"
GRADIENT, DECISION = "One gradient, from the hook to stderr", "One decision of the guard"
REPORT = "`unisono report RUN`"
COUNTED = {GRADIENT: "one gradient", DECISION: "one decision of the guard", REPORT: REPORT}


@dataclass(frozen=True)
class Hop:
    file: str
    name: str
    remark: str = ""
    """Where none of the functions before it calls it, or in another call: who does."""

    @property
    def function(self):
        return f"{self.file}: {self.name}"

    @property
    def rank(self):
        """If the remark names one."""
        named = re.search(r"rank (\d)", self.remark)
        return int(named[1]) if named else None


def section(title):
    return PAGE.partition(f"\n## {title}\n")[2].partition("\n## ")[0]


def stays(title):
    """The lines of a walk, each as its hops."""
    unwrapped = section(title).replace("\n   ", " ")
    lines = re.findall(r"^\d+\. `(.+?)`: (.+)$", unwrapped, re.MULTILINE)
    return [
        [Hop(file, name, remark) for name, remark in re.findall(r"`(.+?)`(?: \((.+?)\))?", names)]
        for file, names in lines
    ]


def walk(title):
    return [hop for stay in stays(title) for hop in stay]


def followed(hops, calls):
    """Calls that go the walk, as far as they do: each later than the one before and, but for remarks, made by one."""
    candidates = {hop: [call for call in calls if call.function == hop.function] for hop in set(hops)}
    furthest, tried = [], 0

    def go_on(chosen):
        nonlocal furthest, tried
        tried += 1
        furthest = max(furthest, chosen, key=len)
        if len(chosen) == len(hops) or tried > MOST_TRIED:
            return
        hop, numbers = hops[len(chosen)], {(call.rank, call.number) for call in chosen}
        for call in candidates[hop]:
            later = not chosen or call.time > chosen[-1].time
            fits = hop.rank in (None, call.rank) if hop.remark else (call.rank, call.caller) in numbers
            if later and fits and len(furthest) < len(hops):
                go_on([*chosen, call])

    go_on([])
    return furthest


MOST_TRIED = 100_000


def assert_followed(title, calls):
    hops = walk(title)
    gone = len(followed(hops, sorted(calls, key=lambda call: call.time)))
    assert gone == len(hops), f"{title}: after {hops[gone - 1].function} no call of {hops[gone].function} fits"


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    """The calls of two ranks, from a step on whose gradient is not finite."""
    folder = tmp_path_factory.mktemp("walks")
    outcome = launch(forked(2, JOB), env={"RESULTS": folder, "PYTHONPATH": f"{ROOT}/tests:{ROOT}/src"})
    assert outcome.returncode == 0, outcome
    return [call for rank in (0, 1) for call in loaded(folder / f"calls.{rank}.json", rank)]


@pytest.mark.parametrize("title", COUNTED)
def test_every_function_is_where_the_page_says(title):
    assert walk(title)
    assert [hop.function for hop in walk(title) if hop.name not in functions(hop.file).values()] == []


@pytest.mark.parametrize("title", COUNTED)
def test_hops_are_counted(title):
    files = [stay[0].file for stay in stays(title)]
    assert all(one != other for one, other in pairwise(files)), "one line for each stay in a file"
    row = f"| {COUNTED[title]} | {len(walk(title))} | {len(set(files))} | {len(files) - 1} |"
    assert row in PAGE


@pytest.mark.parametrize("title", [GRADIENT, DECISION])
def test_a_job_goes_these_ways(title, job):
    assert_followed(title, job)


def test_the_report_goes_this_way(tmp_path):
    pytest.importorskip("bokeh")
    from unisono.cli.main import main

    run = invented_runs.run(tmp_path / "run", count=64, opposed=1)
    recorder = Recorder()
    with recorder.recording():
        assert main(["report", str(run)]) == 0
    assert_followed(REPORT, recorder.calls())


def test_the_rooms_are_the_folders():
    rooms = re.findall(r"^\| `(\w+)` \|", section("Rooms"), re.MULTILINE)
    folders = [path.name for path in SOURCE.iterdir() if path.is_dir() and path.name != "__pycache__"]
    assert sorted(rooms) == sorted(folders)


def test_the_root_files_are_named():
    named = re.findall(r"`([\w.]+\.(?:py|typed))`", section("Rooms"))
    assert sorted(named) == sorted(path.name for path in SOURCE.iterdir() if path.is_file())


WALK = [Hop("a.py", "hook", "torch calls it"), Hop("a.py", "read"), Hop("b.py", "send"), Hop("c.py", "turn", "rank 0")]
CALLS = [
    Call(1, 1, 0, 10, "a.py: hook"),
    Call(1, 2, 1, 11, "a.py: read"),
    Call(1, 3, 1, 12, "b.py: send"),
    Call(0, 1, 0, 13, "c.py: turn"),
]


def test_a_walk_is_followed():
    assert followed(WALK, CALLS) == CALLS


@pytest.mark.parametrize(
    ("hops", "gone"),
    [
        ([WALK[1], WALK[0], *WALK[2:]], 0),
        ([WALK[0], WALK[2], WALK[1], WALK[3]], 2),
        ([*WALK[:3], Hop("c.py", "turned", "rank 0")], 3),
        ([*WALK[:3], Hop("c.py", "turn", "rank 1")], 3),
        ([*WALK[:3], Hop("c.py", "turn")], 3),
    ],
    ids=["caller-after", "siblings-swapped", "renamed", "other-rank", "nobody-calls"],
)
def test_another_way_is_not(hops, gone):
    assert len(followed(hops, CALLS)) == gone
