"""`unisono demo --guard` with real processes; what it shows is tested by the guard's own tests, also in `make slow`."""

import subprocess
import sys

import pytest

from unisono.show.analysis.checkup import examine


@pytest.mark.soak("benchmarks")
def test_a_nan_on_one_worker_loses_the_training_without_the_guard_and_costs_a_step_with_it(tmp_path):
    command = [sys.executable, "-m", "unisono", "demo", "--guard", "--workers", "3", "--out", str(tmp_path / "demo")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "without the guard: lost, no finite loss from step" in done.stdout
    assert "the guard acted once: 1 step skipped" in done.stdout
    (action,) = examine(tmp_path / "demo" / "guarded").as_dict()["actions"]
    assert (action["action"], action["ranks"], action["dry"]) == ("skip", [1], False)
    assert examine(tmp_path / "demo" / "unguarded").as_dict()["actions"] == []
