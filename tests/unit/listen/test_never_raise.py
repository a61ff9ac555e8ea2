"""A fault of ours stays ours, also when it is followed by another one while the first is cleared up."""

import pytest
import torch
from torch import nn

import unisono
from unisono.listen.evidence.collector import EvidenceCollector
from unisono.listen.gradient_reader import GradientReader
from unisono.listen.read_timing import ReadTiming
from unisono.listen.step_tracker import StepTracker
from unisono.sketch import ModelSketch


@pytest.fixture(autouse=True)
def elsewhere(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("UNISONO_RUN_DIR", raising=False)


def fails(fired):
    def fail(*_, **__):
        fired.append(True)
        raise ValueError("injected")

    return fail


def weights(steps=8, monitor=True):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    listening = unisono.attach(model, optimizer) if monitor else None
    for step in range(steps):
        for _ in range(2):
            # The first time for nothing: what was begun is dropped.
            optimizer.zero_grad()
            (model(torch.full((2, 4), float(step))) - 1).square().mean().backward()
        optimizer.step()
    if listening is not None:
        listening.record_validation(0.5)
        listening.close()
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


@pytest.mark.parametrize(
    ("owner", "name"),
    [
        (GradientReader, "abandon"),
        (ModelSketch, "forget"),
        (ReadTiming, "forget"),
        (EvidenceCollector, "forget"),
        (StepTracker, "capturing"),
        (EvidenceCollector, "capturing"),
        (StepTracker, "failed"),
        (EvidenceCollector, "close"),
    ],
)
def test_a_second_fault_does_not_reach_training_either(owner, name, monkeypatch):
    plain, first, second = weights(monitor=False), [], []
    monkeypatch.setattr(GradientReader, "hear", fails(first))
    monkeypatch.setattr(EvidenceCollector, "past_the_wrapper", lambda self: True)
    monkeypatch.setattr(StepTracker, "_may_listen", lambda self: True)
    monkeypatch.setattr(owner, name, fails(second))
    assert torch.equal(weights(), plain)
    assert second, "nothing was injected"
