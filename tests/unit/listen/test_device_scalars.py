"""Numbers on their way from a device: all in one copy."""

import pytest
import torch

from unisono.listen import device_scalars
from unisono.listen.device_scalars import DeviceScalars


@pytest.fixture
def unpinned(monkeypatch):
    """Pinned memory needs a device; everything else about the copy is the same without one."""
    empty = torch.empty
    monkeypatch.setattr(device_scalars.torch, "empty", lambda *size, pin_memory, **options: empty(*size, **options))


def test_plain_numbers_need_no_luggage():
    luggage = DeviceScalars([1.5, None, 3], torch.float64)
    assert not luggage
    assert [luggage.unpack(number) for number in (1.5, None, 3)] == [1.5, None, 3]


def test_tensors_come_back_as_numbers(unpinned):
    numbers = [torch.tensor(1.5), 2.5, None, torch.tensor([3.5], requires_grad=True), torch.tensor(True)]
    luggage = DeviceScalars(numbers, torch.float64)
    assert luggage
    assert [luggage.unpack(number) for number in numbers] == [1.5, 2.5, None, 3.5, 1.0]


def test_64_bits_survive(unpinned):
    numbers = [torch.tensor(number) for number in (2**63 - 1, -(2**63), 2**53 + 1)]
    luggage = DeviceScalars(numbers, torch.int64)
    assert [luggage.unpack(number) for number in numbers] == [2**63 - 1, -(2**63), 2**53 + 1]


def test_what_changes_afterwards_does_not_matter(unpinned):
    number = torch.tensor(1.0)
    luggage = DeviceScalars([number], torch.float64)
    number += 1
    assert luggage.unpack(number) == 1.0
