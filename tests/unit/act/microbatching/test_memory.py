"""How many gradients are held at a time."""

import json

import numpy as np
import pytest
import torch
from torch import nn

import unisono
from unisono.weightings import AgreementFilter


def peak_bytes(work, tmp_path):
    """The most memory held at once beyond what was held before, over all of torch's allocations."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        work()
    profile.export_chrome_trace(str(tmp_path / "trace.json"))
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    changes = sorted((event["ts"], event["args"]["Bytes"]) for event in events if event["name"] == "[memory]")
    return int(np.cumsum([0, *(change for _, change in changes)]).max())


@pytest.mark.parametrize("limit", [0.0, 2.0], ids=["all rejected", "all kept"])
@pytest.mark.parametrize(("order", "buffers"), [("sequential", 2), ("any", 8)])
def test_no_more_gradients_are_held_than_promised(order, buffers, limit, tmp_path):
    model = nn.Linear(1000, 1000)
    inputs = torch.randn(8, 1, 1000)
    workers = unisono.microbatches(model, weighting=AgreementFilter(limit, order=order))

    def step():
        for part in inputs:
            with workers.microbatch():
                model(part).square().sum().backward()
        workers.reduce()
        model.zero_grad()

    step()
    held = peak_bytes(step, tmp_path) / (4 * 1000 * 1000)
    assert buffers - 0.1 < held < buffers + 0.1
