"""The outlook: the truth lies in the interval, formulas agree with the records', and what cannot be known is said."""

import math
import random
from dataclasses import replace

import pytest
import torch

from unisono.measure.step_record import Memory, _noise
from unisono.records import StepRecord
from unisono.records.finding import Finding
from unisono.show.analysis.lost_work import Timesheet, lost_work, spoken_time
from unisono.show.analysis.scaling import Estimate, NoiseReadings, Outlook, common_share, mean_with_interval, outlook
from unisono.show.text.scaling_text import as_text, verdict

DIMENSIONS = 50


def records(noise_scale, workers=4, count=120, seed=0, decay=0.95):
    """Gradients with a true part of length 1 and noise of length `sqrt(noise_scale)`, both shrinking as they go."""
    draw, deviation = random.Random(seed), math.sqrt(noise_scale / DIMENSIONS)
    for step in range(count):
        rows = [[draw.gauss(1 / math.sqrt(DIMENSIONS), deviation) for _ in range(DIMENSIONS)] for _ in range(workers)]
        norms = [decay**step * math.hypot(*row) for row in rows]
        mean = decay**step * math.hypot(*(sum(column) / workers for column in zip(*rows, strict=True)))
        yield StepRecord(1, step, 1.5, True, norm_W=tuple(norms), grad_norm=mean, samples_W=(16,) * workers)


def heard(steps):
    readings = NoiseReadings()
    for record in steps:
        readings.see(record)
    return readings


def seen(share, workers=4, samples=16.0, readings=100):
    return Outlook(workers, readings, 0, readings - 1, samples, share)


@pytest.mark.parametrize(("noise_scale", "workers"), [(3, 2), (20, 4), (60, 8)])
def test_the_truth_lies_in_the_interval_nine_times_of_ten(noise_scale, workers):
    estimates = [outlook(heard(records(noise_scale, workers, 80, seed))).noise_scale for seed in range(100)]
    covered = sum(estimate.low <= noise_scale <= estimate.high for estimate in estimates)
    assert 80 <= covered <= 97


def test_an_interval_narrows_with_more_readings():
    few, many = (outlook(heard(records(20, count=count))).share for count in (80, 1280))
    assert (many.high - many.low) < 0.4 * (few.high - few.low)


def test_what_hangs_together_counts_as_less():
    draw = random.Random(1)
    alone = [draw.gauss(0, 1) for _ in range(200)]
    together = [value for value in alone[:20] for _ in range(10)]
    narrow, wide = (mean_with_interval(values) for values in (alone, together))
    assert wide.high - wide.low > 2 * (narrow.high - narrow.low)


def test_the_formulas_are_those_of_the_records():
    record = next(records(5, workers=3))
    square_W = torch.tensor(record.norm_W, dtype=torch.float64) ** 2
    values = _noise(square_W, record.grad_norm**2, Memory())
    share = common_share(record)
    found = seen(Estimate(share, share, share), workers=3)
    assert values["cos_expected"] == pytest.approx(share)
    assert values["noise_scale"] == pytest.approx(found.noise_scale.value)
    assert values["effective_workers"] == pytest.approx(found.effective_workers(3).value)


def test_what_more_workers_bring():
    found = seen(Estimate(1 / 9, 1 / 17, 1 / 5))  # noise scale 8, from 4 to 16
    assert found.noise_scale == Estimate(*map(pytest.approx, (8, 4, 16)))
    assert found.critical_batch == Estimate(*map(pytest.approx, (128, 64, 256)))
    # Steps go as 1 + noise scale / workers.
    assert found.steps(8) == Estimate(*map(pytest.approx, (2 / 3, 3 / 5, 3 / 4)))
    assert found.worker_time(8) == Estimate(*map(pytest.approx, (4 / 3, 6 / 5, 3 / 2)))
    assert found.steps(4) == Estimate(*map(pytest.approx, (1, 1, 1)))
    assert found.effective_workers(4).value == pytest.approx(9 / 3)
    assert found.efficiency(8).value == pytest.approx(9 / 16)


def test_a_share_that_may_be_zero_has_no_upper_end():
    found = seen(Estimate(0.002, -0.001, 0.005))
    assert (found.noise_scale.low, found.noise_scale.high) == (pytest.approx(199), math.inf)
    assert found.steps(8).low == 0.5
    assert found.readings_wanted == 900  # an interval of half the value
    assert "199 or more" in as_text(found)
    assert "about 900 readings, not 100" in as_text(found, width=120)
    assert seen(Estimate(0.002, 0.001, 0.003)).readings_wanted == 0


def test_a_share_below_zero_is_none_at_all():
    found = seen(Estimate(-0.001, -0.005, 0.003))
    assert found.noise_scale.value == math.inf
    assert found.steps(8).value == 0.5
    assert found.readings_wanted == 1196
    assert "noise scale           332 or more batches" in as_text(found)


@pytest.mark.parametrize(
    ("share", "words"),
    [
        (Estimate(0.02, 0.01, 0.03), "More workers pay: twice as many would need 54 % (52 to 56) of the steps"),
        (Estimate(0.2, 0.18, 0.22), "More workers help, at a price"),
        (Estimate(0.9, 0.88, 0.92), "More workers bring little"),
        (Estimate(0.2, 0.0, 0.7), "Too noisy to say whether more workers pay"),
    ],
)
def test_the_verdict(share, words):
    assert verdict(seen(share)).replace("\N{NO-BREAK SPACE}", " ").startswith(words)


@pytest.mark.parametrize("share", [-0.01, 0.0, 0.001, 0.1, 0.6, 1.0])
@pytest.mark.parametrize("width", [80, 120])
def test_the_text_keeps_its_width(share, width):
    found = seen(Estimate(share, share - 0.01, share + 0.01), workers=1000, samples=4096.0)
    assert max(map(len, as_text(found, width).splitlines())) <= width


def test_the_last_half_counts_and_at_least_twenty():
    assert len(heard(records(5, count=30)).last_half()) == 20
    found = outlook(heard(records(5, count=100)))
    assert (found.readings, found.first_step, found.last_step, found.samples) == (50, 50, 99, 16)


def test_a_new_attempt_takes_the_place_of_what_it_repeats():
    again = [replace(record, attempt=2) for record in records(5, count=60, seed=1) if record.step >= 50]
    readings = heard([*records(5, count=100), *again])
    assert readings.count == 60
    assert [reading.step for reading in readings.last_half()] == list(range(30, 60))


def test_another_number_of_workers_starts_afresh():
    later = [replace(record, step=record.step + 100) for record in records(5, workers=2, count=30)]
    readings = heard([*records(5, count=100), *later[:15]])
    assert (readings.workers, readings.count, len(readings.last_half())) == (2, 15, 15)


@pytest.mark.parametrize(
    "change",
    [
        {"heard": False},
        {"grad_norm": None},
        {"grad_norm": math.nan},
        {"norm_W": (1.0, None, 1.0, 1.0)},
        {"norm_W": (0.0,) * 4},
        {"same_content_W": (0, 0, 2, 3)},
        {"same_indices_W": (0, 0, 2, 3)},
    ],
)
def test_what_cannot_be_used_is_left_out(change):
    readings = heard(replace(record, **change) for record in records(5, count=30))
    assert readings.count == 0
    assert readings.missing()


@pytest.mark.parametrize(
    ("steps", "words"),
    [
        ([], "there are 0"),
        (list(records(5, count=19)), "there are 19"),
        (list(records(5, workers=1, count=30)), "one worker alone"),
        ([replace(one, same_content_W=(0,) * 4) for one in records(5, count=30)], "equal batches in 30 readings"),
    ],
)
def test_what_is_missing_is_said(steps, words):
    assert words in heard(steps).missing()
    assert heard(records(5, count=20)).missing() == ""


def finding(code, severity="critical", state="open", ranks=(), first=50, last=99, **evidence):
    return Finding(code, "", "", severity, state, first, last, ranks, (), "", evidence, (), (), None)


def timesheet(**fields):
    times = Timesheet()
    for step in range(100):
        times.see(StepRecord(1, step, 1.5, step_W=(2.0, 2.0, 2.0, 30.0 if step == 7 else 2.0), **fields))
    return times


@pytest.mark.parametrize(
    ("found", "share", "words"),
    [
        (finding("UN101", ranks=(0, 1, 2)), 0.5, "50 % lost: 2 of 4 workers repeated another's batch"),
        (finding("UN501", ranks=(3,)), 0.25, "at least 25 % lost, that of rank 3; the rest is in doubt"),
        (finding("UN404", ranks=(1, 2)), 0.5, "at least 50 % lost, that of ranks 1 and 2; the rest is in doubt"),
        (finding("UN404"), None, "all of it in doubt"),
        (
            finding("UN503", "warning", ranks=(2,), seconds_lost_per_step=0.5),
            0.25,
            "25 % lost: all workers waited for rank 2",
        ),
        (
            finding("UN404", "warning", ranks=(1,), left_out_steps=7),
            None,
            "what share of it was lost is not known",
        ),
        (
            finding("UN601", "warning", ranks=(3,), rejected_share=0.8, steps=200),
            0.2,
            "about 20 % lost: steering left out rank 3",
        ),
        (
            finding("UN601", "warning", skipped=150, of_steps=200),
            0.75,
            "about 75 % lost: steps that steering skipped",
        ),
        (finding("UN301"), None, "all of it in doubt"),
        (finding("UN103", "warning"), None, "what share of it was lost is not known"),
    ],
)
def test_lost_work(found, share, words):
    (loss,) = lost_work([found], timesheet(same_content_W=(0, 0, 0, 3)))
    assert (loss.worker_seconds, loss.share, loss.words) == (50 * 4 * 2.0, share, words)
    assert (loss.code, loss.first_step, loss.last_step) == (found.code, 50, 99)


def test_a_resolved_finding_ends_and_an_open_one_does_not():
    over, still = finding("UN301", state="resolved", last=59), finding("UN302", last=59, first=40)
    first, second = lost_work([over, still, finding("UN405", "info")], timesheet())
    assert (first.code, first.last_step, first.worker_seconds) == ("UN302", 99, 60 * 4 * 2.0)
    assert (second.code, second.last_step, second.worker_seconds) == ("UN301", 59, 10 * 4 * 2.0)


def test_equal_labels_alone_are_no_copies():
    assert timesheet(same_targets_W=(0, 0, 2, 3)).copies == 0
    assert timesheet(same_targets_W=(0, 0, 2, 3), same_indices_W=(0, 0, 2, 3)).copies == 1
    (loss,) = lost_work([finding("UN101")], Timesheet())
    assert (loss.worker_seconds, loss.share) == (None, None)


@pytest.mark.parametrize(
    ("seconds", "words"), [(43, "43 worker-seconds"), (90, "1.5 worker-minutes"), (5400, "1.5 worker-hours")]
)
def test_spoken_time(seconds, words):
    assert spoken_time(seconds) == words
