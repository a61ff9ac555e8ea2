import pytest
import torch

from unisono.lab.bench import reading_cost
from unisono.lab.bench.models import Shape
from unisono.lab.bench.timing import Stopwatch

CPU = torch.device("cpu")
BRIEF = Stopwatch(CPU, seconds=0.0, fewest=1)


def test_a_row_for_each_size_and_type():
    rows = reading_cost.of_buffers((1_000, 70_000), (torch.float32, torch.bfloat16), BRIEF)
    named = [(row["dtype"], row["elements"]) for row in rows]
    assert named == [("float32", 1_000), ("float32", 70_000), ("bfloat16", 1_000), ("bfloat16", 70_000)]
    assert all(abs(row["error_of_ours"]) < 1e-6 for row in rows)
    # Rounded to bfloat16, or not: the errors are measured, not assumed.
    assert rows[3]["error_of_vector_norm"] != 0


def test_ratios_are_those_of_the_times():
    row = reading_cost.of_buffers((70_000,), (torch.float32,), BRIEF)[0]
    times, speed = row["milliseconds"], row["gigabytes_a_second"]
    assert speed["copy"] == pytest.approx(2 * 4 * 70_000 / times["copy"] / 1e6)
    assert speed["ours"] == pytest.approx(4 * 70_000 / times["ours"] / 1e6)
    assert row["ours_to_vector_norm"] == pytest.approx(times["ours"] / times["vector_norm"])
    assert row["ours_of_copy_speed"] == pytest.approx(speed["ours"] / speed["copy"])
    assert row["fingerprint_to_vector_norm"] == pytest.approx(times["fingerprint"] / times["vector_norm"])


def test_what_does_not_fit_is_left_out(monkeypatch):
    monkeypatch.setattr(reading_cost, "free_bytes", lambda device: 100_000)
    rows = reading_cost.of_buffers((1_000, 70_000), (torch.float32,), BRIEF)
    assert [row["elements"] for row in rows] == [1_000]


def test_the_list_of_a_model_is_read_as_a_whole():
    shape = Shape(vocabulary=64, width=64, layers=2, hidden=128, heads=1)
    row = reading_cost.of_model(shape, torch.float32, BRIEF)
    assert (row["elements"], row["tensors"]) == (shape.parameters, 21)
    assert abs(row["error_of_ours"]) < 1e-7
    assert abs(row["error_of_total_norm"]) < 1e-3


def test_each_reading_begins_anew():
    gradient = torch.ones(1_000)
    reader = reading_cost.Reader(["weight"], [gradient], CPU)
    assert reader.squared_norms().tolist() == reader.squared_norms().tolist() == [1_000.0]
