"""Sketches of the same gradient are equal whatever the bucket size, bucket order, wrapper or world size."""

from pathlib import Path

import pytest
import torch

from launch import forked, launch

JOB = Path(__file__).parent.parent / "jobs" / "same_sketch.py"


@pytest.mark.slow
def test_the_same_gradient_has_the_same_sketch(tmp_path):
    for workers in (1, 3):
        outcome = launch(forked(workers, JOB, workers), env={"RESULTS": tmp_path}, timeout=120)
        assert outcome.returncode == 0, outcome
    sketches = {path.stem: torch.load(path, weights_only=True) for path in sorted(tmp_path.glob("*.pt"))}
    assert len(sketches) == 11
    reference = sketches["default-1"][0]
    assert reference.abs().sum() > 0
    for name, sketch_SGK in sketches.items():
        assert len(sketch_SGK) == 3, name
        for sketch_GK in sketch_SGK:
            torch.testing.assert_close(sketch_GK, reference, rtol=0, atol=1e-6, msg=name)
