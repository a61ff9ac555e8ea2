"""How many different numbers were seen, to within a few percent, in a counter that workers can merge.

A HyperLogLog: each number is hashed; twelve bits of the hash choose a register, which keeps the longest run of zeros
that began the other bits. Runs of k zeros turn up about once in 2^k different numbers, and repeats change nothing.
"""

from __future__ import annotations

import base64
import math
import zlib
from collections.abc import Iterable

REGISTERS = 4096
GOLDEN = 0x9E3779B97F4A7C15
FACTORS = (0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
_MASK = (1 << 64) - 1
_REST_BITS = 52
_REST = (1 << _REST_BITS) - 1


def splitmix64(word: int) -> int:
    """The number that the generator "splitmix64" gives in this state: 64 well mixed bits."""
    word = (word + GOLDEN) & _MASK
    word = ((word ^ (word >> 30)) * FACTORS[0]) & _MASK
    word = ((word ^ (word >> 27)) * FACTORS[1]) & _MASK
    return word ^ (word >> 31)


class Distinct:
    """Counts different 64-bit numbers with a standard error of 1.6 %, in 4,096 bytes."""

    __slots__ = ("_registers",)

    def __init__(self) -> None:
        self._registers = bytearray(REGISTERS)

    def add(self, ids: Iterable[int]) -> None:
        registers = self._registers
        golden, mask, rest, (first, second) = GOLDEN, _MASK, _REST, FACTORS
        for number in ids:
            # `splitmix64`, written out: a call for each number would take half as long again.
            word = (number + golden) & mask
            word = ((word ^ (word >> 30)) * first) & mask
            word = ((word ^ (word >> 27)) * second) & mask
            word ^= word >> 31
            run = 53 - (word & rest).bit_length()
            if run > registers[word >> 52]:
                registers[word >> 52] = run

    def count(self) -> float:
        """The number of different ids, as Ertl estimates it (arXiv:1702.01284): for any size, without tables."""
        empty = self._registers.count(0)
        if empty == REGISTERS:
            return 0.0
        filled = math.fsum(2.0**-run for run in self._registers if run)
        return REGISTERS**2 / (2 * math.log(2)) / (filled + REGISTERS * _sigma(empty / REGISTERS))

    def merge(self, other: Distinct) -> None:
        """Count what the other has seen as well."""
        self._registers[:] = bytes(map(max, self._registers, other._registers))

    def union(self, others: Iterable[Distinct]) -> Distinct:
        """A new counter of all that this one and the others have seen."""
        together = Distinct()
        for counter in (self, *others):
            together.merge(counter)
        return together

    def to_text(self) -> str:
        return base64.b64encode(zlib.compress(self._registers, 9)).decode("ascii")

    @classmethod
    def from_text(cls, text: str) -> Distinct:
        """
        The counter that `to_text` wrote down.

        :raises ValueError: the text is none of its own.
        """
        try:
            registers = zlib.decompressobj().decompress(base64.b64decode(text, validate=True), REGISTERS + 1)
        except (ValueError, zlib.error) as error:
            raise ValueError(f"The text should hold a counter of distinct numbers: {error}.") from error
        if len(registers) != REGISTERS or max(registers) > _REST_BITS + 1:
            raise ValueError(f"The text should hold {REGISTERS} registers of at most {_REST_BITS + 1}.")
        counter = cls()
        counter._registers = bytearray(registers)
        return counter


def shared(one: Distinct, other: Distinct) -> float:
    """
    About how many numbers both have seen.

    Its error is a few percent of all that they have seen together, however few they share.
    """
    return max(0.0, one.count() + other.count() - one.union([other]).count())


def _sigma(share: float) -> float:
    """share + the sum over k > 0 of share^(2^k) * 2^(k-1): the weight of empty registers, for a share below one."""
    total, power = share, 1.0
    while share > 0.0:
        share *= share
        before, total, power = total, total + share * power, power * 2
        if total == before:
            break
    return total
