"""Which runs are wanted, and which come next."""

from dataclasses import replace

import pytest

from unisono.lab.experiments.gaf.plan import IDENTITY, SIX, RunPlan, RunTable, full_table
from unisono.lab.experiments.results import Results

FIRST = RunPlan(50, "averaging", None, 100, 2, seed=0, epochs=60)
SECOND = replace(FIRST, method="published", tau=0.97)
TABLE = RunTable((FIRST, SECOND, replace(FIRST, seed=1)), rates=(0.01, 0.03), tuning_epochs=20)


@pytest.fixture
def results(tmp_path):
    return Results(tmp_path / "runs.json", IDENTITY)


def done(results, plan, tuning_accuracy=0.5):
    results.add(plan.fields() | {"tuning_accuracy": tuning_accuracy})


def test_rates_are_tuned_before_the_row_they_are_for(results):
    missing = list(TABLE.missing(results))
    assert {plan.purpose for plan in missing} == {"tuning"}
    assert [(plan.method, plan.learning_rate) for plan in missing] == [
        ("averaging", 0.01),
        ("averaging", 0.03),
        ("published", 0.01),
        ("published", 0.03),
    ]


def test_the_rate_that_did_best_is_used_by_all_seeds_of_the_row(results):
    low, high = TABLE.trials(FIRST)
    done(results, low, 0.2)
    done(results, high, 0.3)
    rows = [plan for plan in TABLE.missing(results) if plan.purpose == "table"]
    assert [(plan.method, plan.seed, plan.learning_rate) for plan in rows] == [
        ("averaging", 0, 0.03),
        ("averaging", 1, 0.03),
    ]


def test_what_is_done_is_not_done_again(results):
    for plan in (FIRST, SECOND):
        for trial in TABLE.trials(plan):
            done(results, trial)
    while missing := list(TABLE.missing(results)):
        done(results, missing[0])
    assert sum(run["purpose"] == "table" for run in results.runs) == 3
    done(results, replace(FIRST, microbatch=7))
    assert TABLE.progress(results).startswith("3 of 3"), "another table's run does not count"


def test_other_noises_use_the_tuning_of_their_neighbours():
    assert TABLE.trials(replace(FIRST, noise=90)) == TABLE.trials(replace(FIRST, noise=80))
    assert TABLE.trials(replace(FIRST, noise=5)) != TABLE.trials(replace(FIRST, noise=80))


def test_every_row_is_tuned_with_as_many_runs():
    table = full_table()
    assert {len(set(table.trials(plan))) for plan in table.wanted} == {3}


@pytest.mark.parametrize(("noise", "seeds"), [(0, 3), (50, 3), (80, 3), (5, 1), (90, 1)])
@pytest.mark.parametrize(("method", "tau"), SIX)
def test_the_six_methods_are_wanted_at_every_noise(noise, seeds, method, tau):
    rows = [
        plan
        for plan in full_table().wanted
        if (plan.noise, plan.method, plan.tau, plan.stem) == (noise, method, tau, "imagenet")
    ]
    batch = 128 if method == "averaging-128" else 200
    assert sorted(plan.seed for plan in rows if plan.batch == batch) == list(range(seeds))
    assert all(plan.epochs >= 60 for plan in rows)


@pytest.mark.parametrize(
    ("method", "tau", "microbatch", "workers", "stem"),
    [
        ("published", 0.9, 100, 2, "imagenet"),
        ("published", 0.99, 100, 2, "imagenet"),
        ("halving", 0.97, 100, 2, "imagenet"),
        ("preconditioned", 0.97, 100, 2, "imagenet"),
        ("norm-aware", 0.97, 100, 2, "imagenet"),
        ("published", 0.97, 200, 2, "imagenet"),
        ("published", 0.97, 300, 2, "imagenet"),
        ("published", 0.97, 100, 4, "imagenet"),
        ("published", 0.97, 100, 2, "cifar"),
    ],
)
def test_the_other_rows_are_wanted_at_50_percent(method, tau, microbatch, workers, stem):
    assert RunPlan(50, method, tau, microbatch, workers, 0, 60, stem) in full_table().wanted


def test_names_of_runs_are_unique():
    table = full_table()
    plans = {*table.wanted, *(trial for plan in table.wanted for trial in table.trials(plan))}
    assert len({plan.name for plan in plans}) == len(plans)
