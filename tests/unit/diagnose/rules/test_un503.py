import pytest

from unisono.diagnose.rules.un503_slow_worker import SlowWorker
from unit.diagnose.rules.streams import Run, causes, find


@pytest.mark.parametrize("workers", [2, 4, 8])
def test_names_the_slow_worker(workers):
    run = Run(workers=workers)
    run.compute[300:, 1] *= 1.6
    finding = find(SlowWorker, run)
    assert (finding.ranks, finding.severity, finding.state) == ((1,), "warning", "open")
    assert finding.where == ("host cuda:1",)
    assert 300 - 50 <= finding.first_step <= 350
    assert causes(finding)[0] == "slow-device"


def test_a_few_milliseconds_are_a_remark():
    run = Run()
    run.compute *= 0.05
    run.compute[:, 0] *= 1.6
    finding = find(SlowWorker, run)
    assert finding.severity == "info"
    assert causes(finding)[0] == "extra-work-on-rank-0"


def test_more_samples_explain_it():
    run = Run()
    run.compute[:, 2] *= 2
    run.samples[:, 2] *= 2
    assert causes(find(SlowWorker, run))[0] == "more-work"


def test_slower_for_a_while_is_not_enough():
    run = Run()
    run.compute[300:450, 1] *= 3
    assert find(SlowWorker, run) is None


def test_a_tenth_slower_is_not_worth_a_word():
    run = Run()
    run.compute[:, 1] *= 1.1
    assert find(SlowWorker, run) is None


def test_the_slowest_changes():
    run = Run()
    for worker in range(4):
        run.compute[worker::4, worker] *= 3
    assert find(SlowWorker, run) is None


def test_resolves_when_it_is_fast_again():
    run = Run(steps=1200)
    run.compute[100:500, 1] *= 2
    assert find(SlowWorker, run).state == "resolved"
