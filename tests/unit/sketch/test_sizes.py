"""Shorter sketches and sketches as bytes."""

from __future__ import annotations

import pytest
import torch

from unisono.sketch import default_length, dequantise, narrow, quantise
from unisono.sketch.hashing import mix32, sequence


@pytest.mark.parametrize(
    ("total", "length"), [(0, 1024), (1, 1024), (1024, 1024), (1025, 2048), (60_000, 65_536), (10**10, 65_536)]
)
def test_default_length(total: int, length: int) -> None:
    assert default_length(total) == length


def test_narrow_adds_rotated_blocks() -> None:
    long_GK = torch.randint(-9, 10, (3, 4096)).float()
    words = sequence(mix32(5 ^ 0x6E617272), 4).tolist()
    blocks = [block.roll(word >> 16, -1) for block, word in zip(long_GK.split(1024, -1), words, strict=True)]
    assert torch.equal(narrow(long_GK, 1024, 5), torch.stack(blocks).sum(0))
    assert torch.equal(narrow(long_GK[0], 1024, 5), narrow(long_GK, 1024, 5)[0])
    assert (narrow(long_GK, 4096, 5).sum(-1) == long_GK.sum(-1)).all()


def test_quantise_is_within_half_a_step() -> None:
    values = torch.randn(3, 1024) * torch.tensor([[1e-20], [1.0], [1e20]])
    steps, scale = quantise(values)
    assert steps.dtype == torch.int8
    assert scale.shape == (3,)
    assert ((dequantise(steps, scale) - values).abs() <= scale[:, None] * 0.5001).all()


@pytest.mark.parametrize(("poison", "silent"), [(0.0, False), (torch.nan, True), (torch.inf, True)])
def test_quantise_of_zero_and_non_finite(poison: float, silent: bool) -> None:
    restored = dequantise(*quantise(torch.tensor([[poison, 0.0], [1.0, -1.0]])))
    assert restored[0].isnan().all() == silent
    assert silent or not restored[0].any()
    assert restored[1].tolist() == [1, -1]
