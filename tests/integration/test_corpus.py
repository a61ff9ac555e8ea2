"""Training scripts that know nothing of unisono: real bugs by name, their fixed twins and healthy traps in silence.

The bugs are written after public reports, named in each script. A twin has its bug's advice followed and nothing else.
Two workers show most of them; `make soak PART=corpus` starts four of each with torchrun.
"""

import ast
import difflib
import functools
import json
import re
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from launch import launch, torchrun, under_unisono
from unisono.show.analysis.checkup import examine

CORPUS = Path(__file__).parents[1] / "corpus"
JOB = Path(__file__).parents[1] / "jobs" / "corpus.py"
FEW, MANY = 2, 4
GROUPS = {"tensor_parallel_peers": 2}
"""Workers that DDP averages over, where they are not all."""

NEED_MANY = {
    "bugs/clipping_on_one_rank",
    "bugs/learning_rate_on_one_rank",
    "bugs/skip_decided_by_rank_0",
    "healthy/one_batch_epochs",
    "healthy/tensor_parallel_peers",
}
"""Of two workers that differ nobody knows which is wrong; and an epoch of one batch, pairs of pairs."""

EVERYONE = "everyone"
SILENT_RECORDING = 1290
"""Its place in an unshuffled data set decides which worker reads it."""

way = pytest.mark.parametrize("way", ["forked", pytest.param("torchrun", marks=pytest.mark.soak("corpus"))])


@dataclass(frozen=True)
class Bug:
    name: str
    code: str
    cause: str
    ranks: list[int] | str | None = None
    """`None`: the fault is everybody's, and whether all ranks are listed or none is the rule's choice."""

    def expected(self, workers):
        """The lists of ranks that are right."""
        everyone = list(range(workers))
        if self.name == "nan_on_one_rank":
            return [[SILENT_RECORDING % workers]]
        return [[], everyone] if self.ranks is None else [everyone if self.ranks == EVERYONE else self.ranks]


BUGS = [
    Bug("sync_flag_after_forward", "UN302", "no-sync-leak"),
    Bug("no_sync_off_by_one", "UN302", "no-sync-leak"),
    Bug("forward_through_module", "UN302", "forward-through-module"),
    Bug("parameters_replaced", "UN302", "parameters-replaced"),
    Bug("iterable_not_sharded", "UN101", "iterable-not-sharded", EVERYONE),
    Bug("sampler_seeded_by_time", "UN102", "sampler-seeds-differ"),
    Bug("split_without_seed", "UN102", "dataset-differs-between-ranks"),
    Bug("forgotten_set_epoch", "UN103", "set-epoch-not-called"),
    Bug("same_dropout_everywhere", "UN201", "same-seed-in-forward", EVERYONE),
    Bug("part_outside_forward", "UN302", "parameter-outside-forward"),
    Bug("buffers_not_broadcast", "UN304", "broadcast-buffers-off"),
    Bug("parameter_not_optimised", "UN305", "missing-from-optimizer"),
    Bug("nan_on_one_rank", "UN404", "bad-sample"),
    Bug("skip_decided_by_rank_0", "UN002", "decision-on-one-rank", [0]),
    Bug("learning_rate_on_one_rank", "UN303", "learning-rate-differs", [0]),
    Bug("clipping_on_one_rank", "UN302", "clipping-on-some-ranks", [0]),
]
NAMES = [bug.name for bug in BUGS]
HEALTHY = sorted(path.stem for path in (CORPUS / "healthy").glob("*.py"))
MOST_CHANGED_LINES = 12


def source(folder, name):
    return (CORPUS / folder / f"{name}.py").read_text()


def code_lines(text):
    """Without the module's docstring."""
    return text.splitlines()[ast.parse(text).body[0].end_lineno :]


def workers_of(folder, name):
    return MANY if f"{folder}/{name}" in NEED_MANY else FEW


@pytest.fixture(scope="module")
def forked(tmp_path_factory):
    """All scripts of a folder, unchanged, with default settings: where the runs lie, and how the ranks ended."""

    @functools.cache
    def forked(folder):
        directory = tmp_path_factory.mktemp(folder)
        lines = [f"{workers_of(folder, path.stem)}:{path}" for path in sorted((CORPUS / folder).glob("*.py"))]
        command = under_unisono([sys.executable, JOB, directory, *lines], "--out", directory / "unused")
        outcome = launch(command, cwd=directory, timeout=600)
        assert outcome.returncode == 0, outcome
        return directory, json.loads((directory / "codes.json").read_text()), outcome

    return forked


@pytest.fixture
def findings(forked, tmp_path):
    """What is found above `info`, by folder and name."""

    def found(folder, name, way):
        run, workers = tmp_path / "run", MANY if way == "torchrun" else workers_of(folder, name)
        if way == "torchrun":
            line = under_unisono(torchrun(MANY, CORPUS / folder / f"{name}.py"), "--out", run)
            outcome = launch(line, cwd=tmp_path, timeout=240)
            assert outcome.returncode == 0, outcome
        else:
            directory, codes, outcome = forked(folder)
            run = directory / folder / name
            assert set(codes[f"{folder}/{name}"]) == {0}, str(outcome)
        told = examine(run).as_dict()
        assert told["workers"] == GROUPS.get(name, workers)
        assert told["steps"] >= 40, "too short to show anything"
        return [finding for finding in told["findings"] if finding["severity"] != "info"], workers

    return found


def shown(found):
    return json.dumps(found, indent=1)


def test_every_script_has_its_test():
    assert sorted(path.stem for path in (CORPUS / "bugs").glob("*.py")) == sorted(NAMES)
    assert sorted(path.stem for path in (CORPUS / "fixed").glob("*.py")) == sorted(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_a_bug_names_its_public_report(name):
    report = re.search(r"^After [\w-]+/[\w-]+#\d+", source("bugs", name), flags=re.MULTILINE)
    assert report is not None
    assert report.group() in source("fixed", name)


@pytest.mark.parametrize("name", NAMES)
def test_a_twin_differs_by_the_fix_alone(name):
    before, after = code_lines(source("bugs", name)), code_lines(source("fixed", name))
    changed = [line for line in difflib.ndiff(before, after) if line[:2] in ("- ", "+ ")]
    assert 0 < len(changed) <= MOST_CHANGED_LINES


@pytest.mark.parametrize("path", sorted(CORPUS.glob("*/*.py")), ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_no_script_knows_of_unisono(path):
    assert "unisono" not in path.read_text()


@way
@pytest.mark.slow
@pytest.mark.parametrize("bug", BUGS, ids=NAMES)
def test_a_real_bug_is_named(bug, way, findings):
    found, workers = findings("bugs", bug.name, way)
    assert [finding["code"] for finding in found] == [bug.code], shown(found)
    assert found[0]["causes"][0]["slug"] == bug.cause, shown(found)
    assert found[0]["ranks"] in bug.expected(workers), shown(found)
    assert found[0]["remedies"], shown(found)


@way
@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_its_fixed_twin_is_silent(name, way, findings):
    found, _ = findings("fixed", name, way)
    assert found == [], shown(found)


@way
@pytest.mark.slow
@pytest.mark.parametrize("name", HEALTHY)
def test_a_healthy_script_is_left_in_peace(name, way, findings):
    found, _ = findings("healthy", name, way)
    assert found == [], shown(found)


@pytest.mark.slow
def test_warnings_of_torch_point_at_the_script(forked):
    _, _, outcome = forked("bugs")
    warned = re.findall(r"^(\S+):\d+: FutureWarning", outcome.stderr.decode(), flags=re.MULTILINE)
    assert set(warned) == {str(CORPUS / "bugs" / "buffers_not_broadcast.py")}
