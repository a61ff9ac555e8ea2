"""Unchanged training scripts of many shapes: under `unisono run` they print, end and learn exactly as without it."""

import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from launch import SCRIPTS, forked, launch, torchrun, under_unisono
from unisono.monitor.nothing_heard import WHY
from unisono.records.runfile import read_run
from unisono.show.analysis.checkup import examine

WORKERS = 2
SOAK = pytest.mark.soak("steering")


@dataclass(frozen=True)
class Shape:
    """How a script is started and what it should leave behind."""

    name: str
    target: tuple[str, ...]
    steps: int = 40
    exit_code: int = 0
    quick: bool = False
    long: bool = False
    own_launcher: bool = False

    def __str__(self):
        return self.name

    def command(self):
        return [sys.executable, *self.target] if self.own_launcher else torchrun(WORKERS, *self.target)

    def plain_command(self):
        """Without a launcher where it makes no difference."""
        alone = self.own_launcher or self.exit_code or self.target[0] == "-m"
        return self.command() if alone else forked(WORKERS, *self.target)


def script(name):
    return str(SCRIPTS / f"{name}.py")


SHAPES = [
    Shape("closure", (script("closure"),), quick=True),
    Shape("functions in other files", ("-m", "spread.train"), long=True),
    Shape("argparse", (script("arguments"), "--lr", "0.05", "--every", "20", "--out=x", "a", "-", "--", "b c")),
    Shape("own processes", (script("guarded"),), own_launcher=True),
    Shape("gradient accumulation", (script("accumulation"),), long=True),
    Shape("two models, two optimizers", (script("adversaries"),)),
    Shape("mixed precision", (script("mixed"),), long=True),
    Shape("compiled, then wrapped", (script("compiled"), "inside"), long=True),
    Shape("wrapped, then compiled", (script("compiled"), "outside")),
    Shape("dictionary", (script("dictionary"),), long=True),
    Shape("loader with workers, evaluation and dropout", (script("workers"),), long=True),
    Shape("failing", (script("failing"),), steps=5, exit_code=1, quick=True),
]


def as_parameter(shape):
    slow = [pytest.mark.slow, *[pytest.mark.soak("scripts")] * shape.long]
    return pytest.param(shape, id=shape.name, marks=() if shape.quick else slow)


def run(command, directory):
    """The outcome, and the hash of every rank's weights."""
    directory.mkdir()
    outcome = launch(command, cwd=directory, env={"WEIGHTS_OUT": directory / "weights", "PYTHONPATH": str(SCRIPTS)})
    return outcome, {path.suffix: path.read_text() for path in sorted(directory.glob("weights.*"))}


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """What a script does without unisono, run once for all that is compared with it."""
    done = {}

    def plain(shape):
        if shape not in done:
            done[shape] = run(shape.plain_command(), tmp_path_factory.mktemp("plain") / "run")
        return done[shape]

    return plain


def assert_same(plain, watched):
    (before, weights_before), (after, weights_after) = plain, watched
    assert after.returncode == before.returncode, after
    assert after.stdout == before.stdout, after
    assert weights_after == weights_before, after


def assert_recorded(run_dir, shape):
    recorded = read_run(run_dir)
    assert recorded.bad_count == 0
    assert [attempt.world for attempt in recorded.attempts] == [WORKERS]
    assert len(recorded.timeline()) == shape.steps
    grave = [(finding.code, finding.ranks) for finding in examine(run_dir).findings if finding.at_least("warning")]
    assert grave == ([("UN502", (1,))] if shape.exit_code else [])


@pytest.mark.parametrize("shape", [as_parameter(shape) for shape in SHAPES])
def test_a_watched_script_is_the_same_script(shape, plain, tmp_path):
    outcome, weights = plain(shape)
    watched = run(under_unisono(shape.command(), "--out", tmp_path / "run"), tmp_path / "watched")
    assert outcome.returncode == shape.exit_code, outcome
    assert len(weights) == (0 if shape.exit_code else WORKERS)
    assert_same(plain(shape), watched)
    assert_recorded(tmp_path / "run", shape)


@pytest.mark.slow
@pytest.mark.parametrize("shape", [SHAPES[0], pytest.param(SHAPES[1], marks=SOAK), SHAPES[2]], ids=str)
def test_from_inside_the_launcher(shape, plain, tmp_path):
    inside = torchrun(WORKERS, "-m", "unisono", "run", "--out", tmp_path / "run", *shape.target)
    assert_same(plain(shape), run(inside, tmp_path / "watched"))
    assert_recorded(tmp_path / "run", shape)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        "gradient accumulation",
        "wrapped, then compiled",
        pytest.param("two models, two optimizers", marks=SOAK),
    ],
)
def test_a_steered_script_learns_the_same_when_everybody_is_kept(name, plain, tmp_path):
    (shape,) = [shape for shape in SHAPES if shape.name == name]
    options = ["--weighting", "agreement:max_distance=2", "--out", tmp_path / "run"]
    outcome, weights = run(under_unisono(shape.command(), *options), tmp_path / "steered")
    assert outcome.returncode == 0, outcome
    assert b"steering by AgreementFilter(max_distance=2" in outcome.stderr
    assert weights
    assert weights == plain(shape)[1]


@pytest.mark.slow
def test_without_out_there_is_one_run_and_latest_points_at_it(tmp_path):
    shape = SHAPES[0]
    run(under_unisono(shape.command()), tmp_path / "watched")
    runs = tmp_path / "watched" / "unisono-runs"
    (made,) = [path for path in runs.iterdir() if path.is_dir() and not path.is_symlink()]
    assert made.name.endswith("-closure")
    assert Path(runs / "latest").resolve() == made
    assert_recorded(made, shape)


@pytest.mark.slow
def test_a_restart_by_the_launcher_continues_the_run(tmp_path):
    command = torchrun(WORKERS, "--max-restarts=1", script("restarting"), "rendezvous")
    plain, watched = run(command, tmp_path / "plain"), run(under_unisono(command), tmp_path / "watched")
    assert plain[0].returncode == 0, plain[0]
    assert_same(plain, watched)
    recorded = read_run(tmp_path / "watched" / "unisono-runs" / "latest")
    assert [attempt.attempt for attempt in recorded.attempts] == [1, 2]
    assert [step.attempt for step in recorded.steps] == [1] * 5 + [2] * 20


@pytest.mark.slow
def test_of_a_job_that_cannot_be_heard_one_line_says_so(tmp_path):
    outcome, _ = run(under_unisono(torchrun(WORKERS, script("averaged_by_hand"))), tmp_path / "watched")
    assert (outcome.returncode, outcome.stdout.split()) == (0, [b"trained"] * WORKERS)
    lines = [line for line in outcome.stderr.decode().splitlines() if line.startswith("unisono: ")]
    assert lines == [f"unisono: {WHY}"]
    checkup = examine(tmp_path / "watched" / "unisono-runs" / "latest")
    assert (checkup.verdict, checkup.heard.level, checkup.heard.why) == ("unheard", "nothing", WHY)
