"""`unisono bench --short`, with real processes."""

import json
import sys

import pytest

from launch import launch


@pytest.mark.slow
@pytest.mark.parametrize("workers", [2, pytest.param(1, marks=pytest.mark.soak("benchmarks"))])
def test_a_short_bench(tmp_path, workers):
    bench = [sys.executable, "-m", "unisono", "bench", "--short", "--steps", "4"]
    outcome = launch([*bench, "--workers", workers, "--json", "result.json"], cwd=tmp_path, timeout=200)
    assert outcome.returncode == 0, outcome
    found = json.loads((tmp_path / "result.json").read_text())
    assert found["command"] == f"unisono bench --device cpu --steps 4 --workers {workers} --short"
    assert found["step"][0]["workers"] == workers
    assert found["step"][0]["heard"]["every step heard"] == 4, found
    # Steering needs somebody to disagree with.
    assert found["routes"]["workers"] == 2
    assert list(found["routes"]["ratio"]) == ["plain DDP", "sketch, model", "exact, model"]
    assert b"One steered step" in outcome.stdout
