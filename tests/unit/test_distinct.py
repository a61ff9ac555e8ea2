"""The counter of distinct numbers: its error at all sizes, and what merging and writing down leave of it."""

from __future__ import annotations

import base64
import random
import statistics
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unisono.distinct import REGISTERS, Distinct, shared, splitmix64

IDS = st.lists(st.integers(-(2**63), 2**63 - 1), max_size=50)


def counter(ids) -> Distinct:
    found = Distinct()
    found.add(ids)
    return found


def test_splitmix64_is_the_published_one():
    """The first numbers that the generator gives from the seeds 0 and 1234567."""
    golden = 0x9E3779B97F4A7C15
    assert splitmix64(0) == 0xE220A8397B1DCDAF
    assert [splitmix64(1234567 + i * golden) for i in range(3)] == [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
    ]


def slow_registers(ids):
    registers = [0] * REGISTERS
    for number in ids:
        bits = f"{splitmix64(number % 2**64):064b}"
        rest = bits[12:]
        run = 1 + len(rest) - len(rest.lstrip("0"))
        registers[int(bits[:12], 2)] = max(registers[int(bits[:12], 2)], run)
    return registers


@given(IDS)
def test_registers_follow_their_definition(ids):
    text = counter(ids).to_text()
    assert list(zlib.decompress(base64.b64decode(text))) == slow_registers(ids)


@pytest.mark.parametrize(("size", "runs"), [(1, 30), (10, 30), (300, 30), (3_000, 30), (10_000, 20), (20_000, 10)])
def test_error_is_as_promised(size, runs):
    """Sizes between 2 and 5 times the registers are those at which plain HyperLogLog is off by several percent."""
    errors = [counter(range(run << 40, (run << 40) + size)).count() / size - 1 for run in range(runs)]
    assert statistics.pstdev(errors) < 0.025
    assert abs(statistics.mean(errors)) < 4 * 0.016 / runs**0.5
    assert max(map(abs, errors)) < 0.06


def test_a_million():
    assert counter(range(1_000_000)).count() == pytest.approx(1_000_000, rel=0.04)


def test_scattered_and_negative_numbers():
    numbers = random.Random(0)
    ids = {numbers.randrange(-(2**63), 2**63) for _ in range(30_000)}
    assert counter(ids).count() == pytest.approx(len(ids), rel=0.05)


def test_nothing_is_zero():
    assert Distinct().count() == 0.0


def test_no_register_empty_is_counted_without_them():
    """The share of empty registers must drop out, not divide by zero."""
    full = base64.b64encode(zlib.compress(bytes([5]) * REGISTERS)).decode()
    assert Distinct.from_text(full).count() == pytest.approx(REGISTERS * 32 / (2 * 0.6931471805599453))


def test_repeats_do_not_count():
    assert counter([*range(100)] * 5).to_text() == counter(range(100)).to_text()


def test_add_goes_on_where_it_was():
    found = counter(range(50))
    found.add(number for number in range(50, 100))
    assert found.to_text() == counter(range(100)).to_text()


@given(IDS, IDS)
def test_merged_is_as_if_one_had_seen_all(one, other):
    merged = counter(one)
    merged.merge(counter(other))
    assert merged.to_text() == counter([*one, *other]).to_text()


def test_union_changes_neither():
    one, two, three = counter(range(100)), counter(range(100, 200)), counter(range(200, 300))
    before = [each.to_text() for each in (one, two, three)]
    assert one.union([two, three]).to_text() == counter(range(300)).to_text()
    assert [each.to_text() for each in (one, two, three)] == before
    assert one.union([]).to_text() == before[0]
    assert one.union([]) is not one


def test_shared():
    one, other = counter(range(10_000)), counter(range(6_000, 16_000))
    assert shared(one, other) == pytest.approx(4_000, abs=0.05 * 16_000)
    assert shared(one, one) == pytest.approx(one.count())
    assert shared(counter(range(10)), counter(range(10, 20))) == pytest.approx(0, abs=0.1)


def test_shared_is_never_negative():
    pairs = [(counter(range(n, n + 500)), counter(range(-n - 500, -n))) for n in range(1, 20_000, 1_000)]
    found = [shared(one, other) for one, other in pairs]
    assert min(found) == 0.0


@given(IDS)
def test_text_and_back(ids):
    text = counter(ids).to_text()
    assert Distinct.from_text(text).to_text() == text
    assert text.isascii()


def test_text_is_short():
    assert len(counter(range(10)).to_text()) < 150
    assert len(counter(range(100_000)).to_text()) < 3_000


def packed(data: bytes) -> str:
    return base64.b64encode(zlib.compress(data)).decode()


@pytest.mark.parametrize(
    "text",
    ["", "?", "abcd", "é", packed(b""), packed(bytes(4095)), packed(bytes(4097)), packed(bytes([54]) * 4096)],
)
def test_texts_of_others_are_refused(text):
    with pytest.raises(ValueError, match="text should hold"):
        Distinct.from_text(text)


def test_a_small_text_cannot_fill_the_memory():
    with pytest.raises(ValueError, match="text should hold"):
        Distinct.from_text(packed(bytes(1 << 26)))
