"""What optimizers remember travels as plain bytes and is the same afterwards, bit by bit, in the same tensors."""

import io

import numpy as np
import torch
from torch import nn

from unisono.act.actions.resync_inventory import Inventory, packed, print_of, taken_over

HOST = torch.device("cpu")


def sent(memory):
    file = io.BytesIO()
    torch.save(packed(memory), file)
    file.seek(0)
    return torch.load(file, weights_only=True)


def test_what_was_taken_over_has_the_same_fingerprint():
    memory = {
        "step": torch.tensor(3.0),
        "exp_avg": torch.randn(4, 2, dtype=torch.bfloat16),
        "dirs": [torch.randn(3), torch.randn(2)],
        "betas": (0.9, np.float64(0.95)),
        "name": "x",
        "none": None,
        "mask": torch.tensor([True, False]),
    }
    for own in ({}, {"step": 1, "exp_avg": torch.zeros(4, 2), "gone": torch.ones(1), "dirs": [torch.ones(3)]}):
        new = taken_over(own, sent(memory), HOST)
        assert print_of(new) == print_of(memory)
        assert new["exp_avg"].dtype is torch.bfloat16


def test_tensors_that_fit_are_filled_and_stay_who_they_are():
    own = {"exp_avg": torch.zeros(4, 2).t(), "step": torch.tensor(1.0)}
    average = torch.randn(2, 4)
    received = sent({"exp_avg": average, "step": torch.tensor(2.0)})
    new = taken_over(own, received, HOST)
    assert new["exp_avg"] is own["exp_avg"]
    assert torch.equal(own["exp_avg"], average)
    assert new["step"] is own["step"]
    assert new["step"] == 2


def test_one_different_bit_gives_another_fingerprint():
    memory = {"exp_avg": torch.ones(1000), "step": 3}
    before = print_of(memory)
    memory["exp_avg"][567] = torch.nextafter(torch.tensor(1.0), torch.tensor(2.0))
    assert print_of(memory) != before
    memory["exp_avg"][567] = 1
    assert print_of(memory) == before
    assert print_of(memory | {"step": 4}) != before
    assert print_of({"exp_avg_sq": memory["exp_avg"], "step": 3}) != before


def test_what_has_no_fingerprint_is_neither_compared_nor_sent():
    memory, odd = {"exp_avg": torch.ones(2), "hook": object()}, object()
    assert print_of(memory) == print_of({"exp_avg": torch.ones(2), "hook": odd})
    new = taken_over({"hook": odd}, sent(memory), HOST)
    assert new["hook"] is odd


def test_a_part_of_something_large_is_sent_alone():
    file = io.BytesIO()
    torch.save(packed({"exp_avg": torch.zeros(1_000_000)[:10]}), file)
    assert file.getbuffer().nbytes < 10_000


def test_settings_and_state_change_in_place_and_nothing_else_does():
    model = nn.Linear(3, 2)
    ahead, behind = (torch.optim.Adam(model.parameters(), lr, fused=lr > 0.1) for lr in (0.5, 0.1))
    model(torch.ones(1, 3)).sum().backward()
    ahead.step()
    group = behind.param_groups[0]
    for giver, taker in zip(*(Inventory(model, [each]).remembered for each in (ahead, behind)), strict=True):
        taker.take_over(sent(giver.memory()))
    assert behind.param_groups[0] is group
    assert group["lr"] == 0.5
    assert group["fused"] is False
    assert group["params"] == ahead.param_groups[0]["params"]
    assert Inventory(model, [ahead]).whole_prints() == Inventory(model, [behind]).whole_prints()


def test_a_worker_that_has_more_forgets_it():
    model = nn.Linear(3, 2)
    fresh, ahead = (torch.optim.Adam(model.parameters()) for _ in range(2))
    model(torch.ones(1, 3)).sum().backward()
    ahead.step()
    for giver, taker in zip(*(Inventory(model, [each]).remembered for each in (fresh, ahead)), strict=True):
        taker.take_over(sent(giver.memory()))
    assert not ahead.state
