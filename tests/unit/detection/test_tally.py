"""Outcomes as rows and verdicts."""

import pytest
from benchmarks.detection.outcome import Outcome, Told
from benchmarks.detection.tally import fault_rows, healthy_rows, most_likely, verdicts

FAULT, CODE, CAUSE = "gradient-x2", "UN501", "different-computation"


def told(code=CODE, cause=CAUSE, ranks=(1,), readings=20, severity="critical"):
    return Told(code, severity, cause, ranks, 300 + readings, readings, 20 * readings)


def outcome(*findings, workers=4, fault=FAULT, **fields):
    last = {one.code: one.ranks for one in findings}
    values = {"fired": 1, "victim": 1, "final_ranks": last, "setting": "clouds", "schedule": "every step", **fields}
    return Outcome(fault=fault, workers=workers, told=findings, **values)


def row(*outcomes):
    (only,) = fault_rows(outcomes)
    return only


def test_a_fault_that_was_found():
    found = row(outcome(told()))
    assert (found.runs, found.injected, found.readings, found.steps) == (1, 1, [20], [400])
    assert (found.right_ranks, found.right_causes, found.wrong_rank, found.said) == (1, 1, 0, {CODE: 1})


def test_a_finding_of_another_code_does_not_count():
    missed = row(outcome(told("UN405", ranks=())))
    assert (missed.readings, missed.right_ranks, missed.right_causes, missed.said) == ([], 0, 0, {"UN405": 1})


def test_nothing_said_and_nothing_injected():
    silent = row(outcome(fired=0))
    assert (silent.injected, silent.readings, silent.said) == (0, [], {"-": 1})


def test_the_finding_that_names_the_fault_counts_not_the_first():
    late = row(outcome(told("UN411", readings=5, ranks=()), told()))
    assert (late.readings, late.said) == ([20], {CODE: 1})


def test_another_cause():
    assert row(outcome(told(cause="faulty-device"))).right_causes == 0


def test_somebody_who_did_nothing():
    wrong = row(outcome(told(ranks=(2,))))
    assert (wrong.right_ranks, wrong.wrong_rank) == (0, 1)


def test_ranks_count_as_they_are_named_at_the_end():
    corrected = row(outcome(told(ranks=()), final_ranks={CODE: (1,)}))
    assert (corrected.right_ranks, corrected.wrong_rank) == (1, 0)
    widened = row(outcome(told(), final_ranks={CODE: (1, 2)}))
    assert (widened.right_ranks, widened.wrong_rank) == (0, 1)


def test_of_two_workers_nobody_may_be_named():
    assert row(outcome(told(), workers=2)).wrong_rank == 1
    silent = row(outcome(told(ranks=()), workers=2))
    assert (silent.right_ranks, silent.wrong_rank) == (1, 0)


def test_of_two_workers_a_batch_that_stands_out_has_an_owner():
    toxic = outcome(told("UN104", "bad-sample"), workers=2, fault="toxic-batch")
    assert (row(toxic).right_ranks, row(toxic).wrong_rank) == (1, 0)


def test_rows_are_kept_apart():
    outcomes = [outcome(told()), outcome(told(), workers=8), outcome(told(), schedule="default")]
    outcomes += [outcome(told(), setting="texts"), outcome(told(), real=True), outcome(told(readings=7))]
    rows = fault_rows(outcomes)
    assert [one.runs for one in rows] == [2, 1, 1, 1, 1]
    assert rows[0].readings == [7, 20]


def test_a_verdict_over_all_rows_of_a_fault():
    quick = [outcome(told(readings=readings), workers=4) for readings in (10, 20, 30, 40, 50)]
    pairs = [outcome(told(readings=readings, ranks=()), workers=2) for readings in (60, 70, 80, 90)]
    (verdict,) = verdicts(fault_rows([*quick, *pairs, outcome(workers=2)]), {FAULT: 40})
    assert (verdict.runs, verdict.found, verdict.median, verdict.nine_of_ten) == (10, 9, 50, 90)
    assert (verdict.within_goal, verdict.named, verdict.right_ranks) == (4, 5, 5)
    assert verdict.said == {CODE: 9, "-": 1}


def test_a_verdict_where_too_few_were_found():
    (verdict,) = verdicts(fault_rows([outcome(told()), outcome()]), {})
    assert (verdict.median, verdict.nine_of_ten, verdict.within_goal) == (20, None, None)
    (nothing,) = verdicts(fault_rows([outcome()]), {})
    assert (nothing.found, nothing.median) == (0, None)


def test_false_alarms_are_all_of_a_healthy_run_and_the_early_ones_of_a_faulty_one():
    warning = told("UN408", severity="warning", ranks=())
    healthy = outcome(told(), warning, fault="", healthy_steps=700, manuals={"explosion": 3})
    faulty = outcome(told(), early=(warning,), healthy_steps=300, manuals={"explosion": 2})
    own, before = healthy_rows([healthy, faulty])
    assert (own.setting, own.steps, own.criticals, own.warnings) == ("clouds", 700, 1, 1)
    assert (before.setting, before.steps, before.criticals, before.warnings) == ("before a fault", 300, 0, 1)
    assert (own.manuals, before.manuals, before.said) == ({"explosion": 3}, {"explosion": 2}, {"UN408": 1})


@pytest.mark.parametrize(("events", "mean"), [(0, 2.996), (1, 4.744), (5, 10.513)])
def test_the_largest_likely_rate(events, mean):
    """The exact limits of Poisson's distribution, from tables."""
    assert most_likely(events) == pytest.approx(mean, abs=1e-3)
