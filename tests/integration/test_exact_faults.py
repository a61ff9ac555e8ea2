"""Each exact fault, some seeds, four real processes: found early, with the right code, cause and ranks, nothing else.

The victim is 1 + seed % 3: three seeds have them all, and `make soak PART=seeds` runs 20.
"""

import json
from pathlib import Path

import pytest

from launch import forked, launch
from unisono.lab.faults.catalogue import EXACT
from unisono.show.analysis.checkup import examine

JOBS = Path(__file__).parents[1] / "jobs"
WORKERS, FEW, MANY = 4, 3, 20
STEPS_PER_EPOCH = 30

seeds = pytest.mark.parametrize("seeds", [FEW, pytest.param(MANY, marks=pytest.mark.soak("seeds"))])


def train(folder, names, count):
    runs = [f"{name}:{seed}" for name in names for seed in range(count)]
    outcome = launch(forked(WORKERS, JOBS / "lab_faults.py", folder, *runs), timeout=600)
    assert outcome.returncode == 0, outcome
    return folder


@pytest.fixture(scope="module")
def all_with_few_seeds(tmp_path_factory):
    return train(tmp_path_factory.mktemp("faults"), [*EXACT, "honest"], FEW)


@pytest.fixture
def trained(request, tmp_path):
    """The folder with the runs of a fault: all faults in the same processes, or one alone with many seeds."""

    def trained(name, count):
        return train(tmp_path, [name], count) if count > FEW else request.getfixturevalue("all_with_few_seeds")

    return trained


@seeds
@pytest.mark.slow
@pytest.mark.parametrize("name", EXACT)
def test_fault_is_found(name, seeds, trained):
    folder = trained(name, seeds)
    wrong = {seed: what for seed in range(seeds) if (what := verdict(name, seed, folder))}
    assert not wrong, wrong


@seeds
@pytest.mark.slow
def test_the_honest_job_is_healthy(seeds, trained):
    folder = trained("honest", seeds)
    for seed in range(seeds):
        assert [found for found in examine(folder / f"honest-{seed}").findings if found.at_least("warning")] == []


@pytest.mark.slow
@pytest.mark.soak("seeds")
@pytest.mark.parametrize("seeds", [5])
def test_three_models_are_healthy(seeds, tmp_path):
    outcome = launch(forked(WORKERS, JOBS / "healthy.py", seeds), env={"RESULTS": tmp_path}, timeout=600)
    assert outcome.returncode == 0, outcome
    runs = sorted(path.parent for path in tmp_path.glob("*/run.jsonl"))
    assert len(runs) == 3 * seeds
    checkups = {run.name: examine(run) for run in runs}
    assert all(checkup.steps == 160 for checkup in checkups.values())
    grave = {name: [f for f in checkup.findings if f.at_least("warning")] for name, checkup in checkups.items()}
    assert not any(grave.values()), grave


def verdict(name, seed, folder):
    """What is wrong with the diagnosis; empty if it is right."""
    fault, facts = EXACT[name], said(name, seed, folder)
    grave = [finding for finding in examine(folder / f"{name}-{seed}").findings if finding.at_least("warning")]
    codes = [finding.code for finding in grave]
    if codes != [fault.code]:
        return f"found {codes} instead of {fault.code}: {[finding.evidence for finding in grave]}"
    (found,) = grave
    expected = {"code": fault.code, "cause": fault.cause, "ranks": ranks(fault.on, facts[0]["victim"])}
    seen = {"code": found.code, "cause": found.causes[0].slug, "ranks": found.ranks}
    if seen != expected:
        return f"found {seen} instead of {expected}"
    begin = begins(name, facts[0]["starts_at"])
    latest = begin + delay(name)
    return "" if begin <= found.first_step <= latest else f"first step {found.first_step} is not in {begin}..{latest}"


def said(name, seed, folder):
    facts = [json.loads((folder / f"{name}-{seed}.{rank}.json").read_text()) for rank in range(WORKERS)]
    guilty = [facts[0]["victim"]] if EXACT[name].on in ("victim", "pair") else range(WORKERS)
    assert all(facts[rank]["fired"] for rank in guilty), facts
    return facts


def ranks(on, victim):
    named = {"all": range(WORKERS), "pair": (victim - 1, victim), "victim": (victim,), "nobody": ()}
    return tuple(named[on])


def begins(name, starts_at):
    if name in ("stale-shuffle", "stale-shuffle-on-one-rank"):
        return STEPS_PER_EPOCH
    return starts_at if EXACT[name].late else 0


def delay(name):
    """Two listened steps; a single weight is compared once in as many readings as there are parameters."""
    return 6 if name == "precision-drift" else 2
