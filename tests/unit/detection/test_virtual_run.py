"""A virtual job, heard by the product's own code: a gross fault is found, and nothing else."""

from dataclasses import replace

import pytest
from benchmarks.detection.setting import USUAL
from benchmarks.detection.virtual_run import train

from unisono.common.schedule import BURST, every
from unisono.lab.faults.injections import INJECTIONS, Injection
from unisono.measure.adapt_schedule import STEPS_BETWEEN_SUSPICIONS

STEPS, START, VICTIM = 200, 100, 2


@pytest.fixture(scope="module")
def runs():
    """A healthy one and a faulty one."""
    setting = replace(USUAL["clouds"], steps=STEPS)
    return train(setting, [Injection(0, STEPS), INJECTIONS["gradient-x10"](VICTIM, START)], seed=4)


def grave(run):
    return [news for news in run.news if news.finding.at_least("warning")]


def test_a_healthy_run_is_silent(runs):
    assert grave(runs[0]) == []
    assert (runs[0].readings, runs[0].readings_before, runs[0].manuals.steps) == (STEPS, STEPS, STEPS)


def test_a_gradient_ten_times_too_long_is_found_on_the_right_rank(runs):
    found = next(news for news in grave(runs[1]) if news.finding.code == "UN501")
    assert found.finding.ranks == (VICTIM,)
    assert START <= found.step < START + 20
    assert found.readings == found.step + 1
    assert [one.finding.code for one in grave(runs[1]) if one.step < START] == []
    leading = [(one.code, one.ranks) for one in runs[1].diagnosis.findings() if one.at_least("warning")]
    assert leading == [("UN501", (VICTIM,))]


def test_what_is_known_of_the_injection(runs):
    assert runs[1].injection.fired == STEPS - START
    assert (runs[1].readings_before, runs[1].manuals.steps) == (START, START)


def test_a_suspicion_starts_a_burst_and_not_another_one_soon(runs):
    rarely = replace(USUAL["clouds"], steps=STEPS, schedule=every(10))
    (run,) = train(rarely, [INJECTIONS["wrong-labels-100"](VICTIM, START)], seed=4)
    assert STEPS // 10 + BURST // 2 < run.readings <= STEPS // 10 + BURST
    assert STEPS < STEPS_BETWEEN_SUSPICIONS
