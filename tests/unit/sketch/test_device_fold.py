"""The fold for GPUs: its layout, and its kernels in Triton's interpreter."""

import importlib.util
import json
import sys
from collections import Counter
from pathlib import Path

import pytest
import torch

from launch import launch
from unisono.sketch import ModelSketch, model_sketch
from unisono.sketch.gpu import launching
from unisono.sketch.gpu.layout import ROWS_OF_A_RUN, UNITS, lay_out, runs_of, slots_wanted

JOB = Path(__file__).parents[2] / "jobs" / "interpreted.py"
CPU = torch.device("cpu")
LENGTH = 1024
ELEMENTS = [LENGTH * 2000, 5, LENGTH * 64, LENGTH * 3 + 1, LENGTH * 176, 1, LENGTH * 40]
GROUPS = [0, 1, 1, 1, 2, 3, 3]


def runs():
    found = []
    for index, (elements, group) in enumerate(zip(ELEMENTS, GROUPS, strict=True)):
        found += runs_of(index, elements, 7 * index, group, LENGTH, len(found))
    return found


def rows_of(layout):
    return Counter(layout.row_N2[place] for begin, end, _ in layout.run_R3 for place in range(begin, end))


@pytest.mark.parametrize("subset", [range(7), [1], [0, 4], [6, 5], [2, 3, 0]])
def test_every_row_is_read_once_and_every_slot_belongs_to_one_unit(subset):
    everything = runs()
    slots = slots_wanted(everything, 4)
    chosen = [run for run in everything if run.parameter in subset]
    layout = lay_out(chosen, slots, {index: index for index in range(7)})
    expected = {(index, row) for index in subset for row in range(-(-ELEMENTS[index] // LENGTH))}
    assert rows_of(layout) == Counter(expected)
    assert sorted(place for _, _, place in layout.run_R3) == sorted(run.place for run in chosen)
    users = {}
    for unit, (first, end) in enumerate(layout.unit_U2):
        for slice_, begin, stop, slot in layout.stretch_S4[first:end]:
            assert users.setdefault(slot, unit) == unit
            for place in range(layout.run_R3[begin][0], layout.run_R3[stop - 1][1]):
                parameter, row = layout.row_N2[place]
                assert sum(slots[: GROUPS[parameter]]) <= slot < sum(slots[: GROUPS[parameter] + 1])
                assert (row + 7 * parameter) % 16 == slice_


def test_units_are_even_and_slots_few():
    everything = runs()
    slots = slots_wanted(everything, 4)
    assert sum(slots) <= 4 + UNITS - 1
    layout = lay_out(everything, slots, {index: index for index in range(7)})
    assert len(layout.unit_U2) <= UNITS
    rows = [
        sum(layout.run_R3[stop - 1][1] - layout.run_R3[begin][0] for _, begin, stop, _ in layout.stretch_S4[first:end])
        for first, end in layout.unit_U2
    ]
    assert max(rows) <= sum(rows) / UNITS + ROWS_OF_A_RUN


def test_kernels_that_do_not_run_leave_the_work_to_torch(monkeypatch):
    def fail(*_):
        raise RuntimeError("no C compiler")

    monkeypatch.setattr(launching, "KINDS", {"cpu"})
    monkeypatch.setattr(launching, "_out_of_order", set())
    monkeypatch.setattr(model_sketch, "_read_some", fail)
    assert launching.available(CPU)
    assert "no C compiler" in model_sketch.compile_kernels([torch.float32], LENGTH, CPU)
    assert not launching.available(CPU)
    reading, gradient = ModelSketch(["weight"], [5], [0], 1, LENGTH, CPU), torch.arange(5.0)
    reading.begin()
    assert not reading.add(0, gradient)
    assert reading.end()[1].tolist() == [30.0]


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="no Triton: the GPU kernels are not tested")
def test_the_kernels_compute_what_the_reference_does():
    outcome = launch([sys.executable, JOB], env={"TRITON_INTERPRET": 1}, timeout=300)
    assert outcome.returncode == 0, outcome
    found = json.loads(outcome.stdout)
    assert all(found["equal"].values()), found
    assert len(found["differences"]) == 3
    for case, errors in found["differences"].items():
        assert errors["sketch"] < 1e-6, case
        assert errors["squares"] < 5e-7, case
        assert errors["total"] < 5e-7, case
