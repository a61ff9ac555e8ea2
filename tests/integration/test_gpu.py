"""The same promises on a GPU. Skipped, loudly, where there is none."""

import json
from pathlib import Path

import pytest
import torch

from launch import launch, torchrun

JOB = Path(__file__).parent.parent / "jobs" / "on_gpu.py"


@pytest.mark.skipif(
    not torch.cuda.is_available(), reason="no GPU: bit-equality and synchronisation there are not tested"
)
def test_on_a_gpu(tmp_path):
    env = {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
    outcome = launch(torchrun(2, JOB, tmp_path), env=env, timeout=400)
    assert outcome.returncode == 0, outcome
    found = json.loads(outcome.stdout)
    assert all(found["equal"].values()), found
    assert b"failed" not in outcome.stderr, outcome
    assert {name: told["found"] for name, told in found["evidence"].items()} == {
        **{name: [] for name in found["equal"]},
        "drift": ["UN301"],
        "same dropout": ["UN201"],
    }
    assert all(told["steps"] == 40 for told in found["evidence"].values()), found
    for name in (name for name in found if name.startswith("reference")):
        assert found[name]["heard"] >= 35, found
        assert found[name]["norm"] < 1e-5, found
        assert found[name]["loss"] < 1e-5, found
        assert found[name]["cosine"] < 0.08, found
