"""The lines on stderr and the table of the demo, as they look."""

import math

from invented_runs import decision
from unisono.records import StepRecord
from unisono.show.analysis.series import Series, sparkline
from unisono.show.text.side_by_side import side_by_side
from unisono.show.text.summary import Summary


def records(count, **values):
    return [StepRecord(attempt=1, step=step, time=0.0, heard=True, **values) for step in range(count)]


def test_sparkline_spans_smallest_to_largest():
    assert sparkline([0, 1, 2, 3, 4, 5, 6, 7]) == "▁▂▃▄▅▆▇█"
    assert sparkline([2, 2, 2]) == "▁▁▁"
    assert sparkline([]) == ""
    assert len(sparkline(range(1000), width=32)) == 32


def test_a_series_stays_short_and_keeps_its_mean():
    series = Series(size=64)
    for number in range(10_000):
        series.add(number)
    series.add(math.nan)
    series.add(None)
    assert len(series.values) < 64
    assert abs(sum(series.values) / len(series.values) - 4999.5) < 200
    assert series.values == sorted(series.values)


def test_the_summary_says_what_was_heard():
    summary = Summary(workers=4)
    for record in records(3, loss_mean=2.0, loss_std=0.5, effective_workers=3.7, listening_cost=0.004):
        summary.add(record)
    assert summary.lines() == [
        "3 steps, 4 workers, 3 steps heard, 3.7 effective workers, listening took 0.4 % of the step time",
        "  loss                               2 → 2         ▁▁▁",
        "  loss dispersion (std)            0.5 → 0.5       ▁▁▁",
    ]


def test_an_empty_run_has_a_summary():
    assert Summary(workers=1).lines() == ["0 steps, 1 worker, 0 steps heard"]


def test_two_runs_stand_side_by_side():
    text = side_by_side({"healthy": records(4, cos_mean=0.25), "faulty": records(4, cos_mean=1.0)})
    assert text.splitlines()[0].split() == ["healthy", "faulty"]
    (row,) = (line for line in text.splitlines() if line.startswith("direction consistency"))
    assert row.split() == ["direction", "consistency", "0.25", "▁▁▁▁", "1", "▁▁▁▁"]


def steered(*left_out_T, workers=4, **fields):
    summary = Summary(workers, **fields)
    for step, left_out in enumerate(left_out_T):
        kept = workers - len(left_out)
        weight_W = tuple(0.0 if one in left_out else 1 / kept for one in range(workers)) if 0 < kept < workers else ()
        summary.add(StepRecord(1, step, 0.0, finite_W=(True,) * workers, kept_workers=kept, weight_W=weight_W))
    return summary.lines()[-1]


def test_the_summary_says_what_steering_did():
    steps = [(3,)] * 6 + [()] * 2 + [(0, 3)] * 2 + [(0, 1, 2, 3)]
    line = "  steering                   kept 3.00 of 4 workers on average, 1 step skipped, "
    assert steered(*steps) == line + "rank 3 left out of 80 % of the steps taken"
    assert steered(*steps, ranks=(4, 5, 6, 7)) == line + "rank 7 left out of 80 % of the steps taken"


def test_nobody_is_named_where_everybody_is_left_out_now_and_then():
    assert steered((0,), (1,), (2,), (3,)).endswith("kept 3.00 of 4 workers on average, 0 steps skipped")


def test_steering_that_kept_everybody_or_nobody():
    assert steered((), ()).endswith("kept all 4 workers, 0 steps skipped")
    assert steered((0, 1, 2, 3), (0, 1, 2, 3)).endswith("kept no worker, 2 steps skipped")


def test_the_summary_ends_with_what_the_guard_did():
    summary = Summary(workers=4)
    for record in (decision(5), decision(9), decision(812, "roll-back", to_step=700)):
        summary.decision_counts.add(record)
    assert summary.lines()[-1] == (
        "the guard acted 3 times: 2 steps skipped (steps 5 and 9), 1 roll-back (step 812 back to 700)"
    )
