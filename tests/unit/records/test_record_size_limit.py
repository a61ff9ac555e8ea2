"""Records of very many workers fit into a line of the run file."""

import math

import pytest

from unisono.records import StepRecord, to_line
from unisono.records.record_size_limit import FIRST_TO_GO, shortened
from unisono.records.runfile.lines import LINE_LIMIT

ROW = ("loss_W", "compute_W", "step_W", "norm_W", "cos_W", "window_cos_W", "length_W", "padding_W")


def record(workers, **more):
    numbers = tuple(math.pi * 1e-5 * (1 + worker) for worker in range(workers))
    return StepRecord(
        1, 5, 1.5, heard=True, finite_W=(True,) * workers, loss_mean=2.0, **dict.fromkeys(ROW, numbers), **more
    )


@pytest.mark.parametrize("workers", [2, 1_024, 4_096])
def test_up_to_thousands_of_workers_nothing_is_left_out(workers):
    whole = record(workers)
    assert shortened(whole) == (whole, ())


@pytest.mark.parametrize(("workers", "left_out"), [(12_000, 2), (30_000, 6), (150_000, 8)])
def test_lists_go_until_the_rest_fits_and_the_least_useful_go_first(workers, left_out):
    short, names = shortened(record(workers))
    assert names == tuple(name for name in FIRST_TO_GO if name in ROW)[:left_out]
    assert len(to_line(short)) < LINE_LIMIT
    assert not any(getattr(short, name) for name in names)
    assert short.loss_mean == 2.0
    assert len(short.finite_W) == workers


def test_exact_evidence_goes_last():
    short, names = shortened(record(50_000, weights_W=tuple(range(50_000))))
    assert "weights_W" not in names
    assert len(short.weights_W) == 50_000
