"""The benchmarks run, at the smallest size that can fail; their usual sizes are `make soak PART=benchmarks`."""

import importlib
import sys
from pathlib import Path

import pytest
import torch
from benchmarks.detection import results
from benchmarks.detection.detect import perform
from benchmarks.detection.plan_of_trials import fault_trials, healthy_trials
from benchmarks.detection.tally import Tally, fault_rows, healthy_rows

from launch import forked, launch, torchrun

FOLDER = Path(__file__).parents[2] / "benchmarks"
ALONE = {
    "sketch_speed": ["--elements", "200000", "--repeats", "1", "--threads", "1"],
    "fingerprint_speed": ["--repeats", "1"],
    "diagnosis_speed": ["--records", "3000", "--every", "20"],
    "microbatch_cost": ["--short"],
    "decision_flips": ["--short"],
    "agreement_variants": ["--short"],
    "guard_on_healthy": ["--short"],
    "validation_histories": ["--short"],
    "report_speed": ["--short"],
    "scale": ["--workers", "64"],
    "listening_cost": ["--steps", "3"],
    "gpu_cost": ["--device", "cpu", "--short", "--json", "gpu_cost.json", "--only", "reads", "equal", "waits", "step"],
}
TOGETHER = ("steering_cost", "unheard_cost")
AT_USUAL_SIZE = {
    **{name: [] for name in ALONE},
    "diagnosis_speed": ["--every", "20"],
    "scale": ["--workers", "64", "256", "1024"],
    "gpu_cost": ["--device", "cpu", "--json", "gpu_cost.json"],
}
HOURS = 4 * 3600
LONG_IN_SHORT = ("gpu_cost", "guard_on_healthy", "steering_cost")
"""Half a minute even so: they are tried in soak alone."""


@pytest.fixture
def own_modules(monkeypatch):
    """Benchmarks import each other by name; other folders have modules of the same names."""
    before = set(sys.modules)
    monkeypatch.syspath_prepend(FOLDER)
    yield
    for name in sys.modules.keys() - before:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(FOLDER)):
            del sys.modules[name]


@pytest.fixture
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def in_ci(names):
    return [pytest.param(name, marks=[pytest.mark.soak("benchmarks")] * (name in LONG_IN_SHORT)) for name in names]


@pytest.mark.slow
@pytest.mark.parametrize("name", in_ci(ALONE))
def test_a_benchmark_runs(name, tmp_path, monkeypatch, own_modules, one_thread):
    """In this process: most of a start is loading torch."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [str(FOLDER / f"{name}.py"), *ALONE[name]])
    assert not importlib.import_module(name).main()


@pytest.mark.slow
@pytest.mark.parametrize("name", in_ci(TOGETHER))
def test_a_benchmark_of_two_ranks_runs(name):
    outcome = launch(forked(2, FOLDER / f"{name}.py", "--short"))
    assert outcome.returncode == 0, outcome


@pytest.mark.slow
def test_what_detection_always_finds_is_found_and_nothing_in_healthy_runs(one_thread):
    trials = [*first_of_each(results.ALWAYS, fault_trials(1, (4,))), *list(healthy_trials(1, (4,), 300))[:2]]
    outcomes = [outcome for trial in trials for outcome in perform(trial)]
    tally = Tally("", {}, fault_rows(outcomes), healthy_rows(outcomes))
    assert len(tally.faults) == len(results.ALWAYS)
    assert tally.healthy
    assert results.shortcomings(tally) == []


def first_of_each(faults, trials):
    found = {}
    for trial in trials:
        found.setdefault(trial.fault, trial)
    return [found[fault] for fault in faults]


@pytest.mark.soak("benchmarks")
@pytest.mark.parametrize("name", AT_USUAL_SIZE)
def test_a_benchmark_at_its_usual_size(name, tmp_path):
    script = FOLDER / f"{name}.py"
    # One looks at runs of the detection benchmark, which is a package.
    env = {"PYTHONPATH": FOLDER.parent}
    outcome = launch([sys.executable, script, *AT_USUAL_SIZE[name]], cwd=tmp_path, env=env, timeout=HOURS)
    assert outcome.returncode == 0, outcome


@pytest.mark.soak("benchmarks")
@pytest.mark.parametrize("name", TOGETHER)
def test_a_benchmark_of_four_ranks_at_its_usual_size(name):
    outcome = launch(torchrun(4, FOLDER / f"{name}.py"), timeout=HOURS)
    assert outcome.returncode == 0, outcome


@pytest.mark.soak("benchmarks")
def test_the_bench_command(tmp_path):
    outcome = launch([sys.executable, "-m", "unisono", "bench"], cwd=tmp_path, timeout=HOURS)
    assert outcome.returncode == 0, outcome


@pytest.mark.parametrize(
    ("part", "options"),
    [
        pytest.param("faults", ["--short"], marks=pytest.mark.soak("statistical")),
        pytest.param("healthy", ["--short"], marks=pytest.mark.soak("healthy")),
        pytest.param("faults", [], marks=pytest.mark.soak("statistical")),
        pytest.param("healthy", [], marks=pytest.mark.soak("healthy")),
        pytest.param("real", [], marks=pytest.mark.soak("healthy")),
    ],
)
def test_the_detection_benchmark(part, options, tmp_path):
    """Without options some three million healthy steps, for hours."""
    detect = [sys.executable, "-m", "benchmarks.detection", "--only", part, "--out", tmp_path]
    outcome = launch([*detect, *options], cwd=FOLDER.parent, timeout=6 * HOURS)
    assert outcome.returncode == 0, outcome
