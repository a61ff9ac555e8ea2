"""Statistical faults in four real processes: the right one is found, and no other worker is accused.

One of each kind: a gradient, data, the whole job. `make soak PART=statistical` runs them all.
"""

import json
from pathlib import Path

import pytest

from launch import forked, launch
from unisono.lab.faults.catalogue import STATISTICAL
from unisono.show.analysis.checkup import examine

JOB = Path(__file__).parents[1] / "jobs" / "lab_faults.py"
WORKERS = 4
OFTEN = ("sign-flip", "toxic-batch", "learning-rate-too-high")
NAMES = (
    "gradient-x1.3",
    "gradient-x2",
    "sign-flip",
    "zero-gradient",
    "wrong-labels-50",
    "toxic-batch",
    "learning-rate-too-high",
    "throttled",
)


def train(folder, names, seeds):
    runs = [f"{name}:{seed}" for name in names for seed in seeds]
    outcome = launch(forked(WORKERS, JOB, folder, *runs), timeout=400)
    assert outcome.returncode == 0, outcome


@pytest.mark.slow
def test_one_fault_of_each_kind_is_found(tmp_path):
    train(tmp_path, OFTEN, [1])
    wrong = {name: what for name in OFTEN if (what := verdict(name, 1, tmp_path))}
    assert not wrong, wrong


@pytest.mark.soak("statistical")
@pytest.mark.parametrize("name", NAMES)
def test_fault_is_found(name, tmp_path):
    seeds = range(2)
    train(tmp_path, [name], seeds)
    wrong = {seed: what for seed in seeds if (what := verdict(name, seed, tmp_path))}
    assert not wrong, wrong


def verdict(name, seed, folder):
    """What is wrong with the diagnosis; empty if it is right."""
    fault, facts = STATISTICAL[name], said(name, seed, folder)
    named = fault.named(facts[0]["victim"], WORKERS)
    grave = [finding for finding in examine(folder / f"{name}-{seed}").findings if finding.at_least("warning")]
    seen = [(found.code, found.severity, found.ranks) for found in grave]
    if not grave or not fault.accepts(grave[0].code) or grave[0].ranks != named:
        return f"found {seen} instead of {fault.code} on {named}"
    accused = {rank for found in grave for rank in found.ranks} - set(named)
    if accused:
        return f"ranks {accused} are accused as well: {seen}"
    begin = facts[0]["starts_at"]
    return "" if grave[0].last_step >= begin else f"found before step {begin}, at which the fault began"


def said(name, seed, folder):
    facts = [json.loads((folder / f"{name}-{seed}.{rank}.json").read_text()) for rank in range(WORKERS)]
    guilty = {facts[0]["victim"]} if STATISTICAL[name].on == "victim" else set(range(WORKERS))
    assert {rank for rank, fact in enumerate(facts) if fact["fired"]} == guilty, facts
    return facts
