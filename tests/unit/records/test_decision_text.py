"""Decisions of the guard as they are told."""

import pytest

from invented_runs import decision
from unisono.records.decision_text import KEPT, DecisionCounts, decision_line


@pytest.mark.parametrize(
    ("record", "line"),
    [
        (
            decision(812, "skip", "rank 2's loss is not finite", 3),
            "step 812: skipped on all workers: rank 2's loss is not finite (guard, 1-812-3)",
        ),
        (
            decision(812, "roll-back", "the norm is huge", to_step=700, dry=True),
            "step 812: would have rolled back to step 700: the norm is huge (guard, 1-812-1)",
        ),
        (
            decision(2_000, "roll-back, reset-momentum, skip", "spikes", to_step=1_700),
            "step 2,000: rolled back to step 1,700, reset the momentum and skipped on all workers: spikes "
            "(guard, 1-2000-1)",
        ),
        (
            decision(5, "resync", "replicas differ", outcome="rank 1 was overwritten by rank 0"),
            "step 5: made the replicas equal again: replicas differ; rank 1 was overwritten by rank 0 (guard, 1-5-1)",
        ),
        (decision(5, "levitate", "why not"), "step 5: did levitate: why not (guard, 1-5-1)"),
    ],
)
def test_a_decision_is_one_line(record, line):
    assert decision_line(record) == line


def told(*records):
    decision_counts = DecisionCounts()
    for record in records:
        decision_counts.add(record)
    return decision_counts


def test_several_of_a_kind_are_counted_with_the_first_steps():
    decision_counts = told(*(decision(step) for step in range(10, 19)), decision(30, "levitate"))
    assert decision_counts.words() == (
        "acted 10 times: 9 steps skipped (steps 10, 11, 12, 13, 14, 15 and 3 more), 1 levitate (step 30)"
    )


def test_the_newest_are_kept_and_all_are_counted():
    decision_counts = told(*(decision(step, "clip") for step in range(KEPT + 50)))
    assert (decision_counts.decided, len(decision_counts.newest), decision_counts.newest[-1].step) == (
        KEPT + 50,
        KEPT,
        KEPT + 49,
    )


def test_what_was_not_decided_is_not_told():
    assert (told().words(), told().decided) == ("", 0)


def test_the_guard_stopped_only_the_attempt_that_it_ended():
    counts = DecisionCounts()
    counts.add(decision(40, "halt", "asked for"))
    assert counts.stopped_at == 40
    counts.attempt_begins()
    assert counts.stopped_at is None
    counts.add(decision(50, "halt", "asked for", dry=True))
    assert counts.stopped_at is None
