"""The generator "splitmix64" on Python's integers and on tensors of 64-bit ones, which wrap around in torch."""

from __future__ import annotations

from torch import Tensor

GOLDEN = 0x9E3779B97F4A7C15
_FACTORS = (0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
_MASK = (1 << 64) - 1


def splitmix64(word: int) -> int:
    """The number that the generator gives in this state: 64 well mixed bits."""
    word = (word + GOLDEN) & _MASK
    word = ((word ^ (word >> 30)) * _FACTORS[0]) & _MASK
    word = ((word ^ (word >> 27)) * _FACTORS[1]) & _MASK
    return word ^ (word >> 31)


def mixed(word: Tensor) -> Tensor:
    """`splitmix64` of each."""
    word = word + signed(GOLDEN)
    word = (word ^ _shifted(word, 30)) * signed(_FACTORS[0])
    word = (word ^ _shifted(word, 27)) * signed(_FACTORS[1])
    return word ^ _shifted(word, 31)


def _shifted(word: Tensor, bits: int) -> Tensor:
    """To the right, with zeros coming in: torch would repeat the sign."""
    return (word >> bits) & ((1 << (64 - bits)) - 1)


def signed(word: int) -> int:
    return ((word + (1 << 63)) & _MASK) - (1 << 63)
