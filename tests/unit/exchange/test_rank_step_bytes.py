"""Signals survive the way to rank 0 bit by bit."""

import math
import struct
from dataclasses import fields, replace
from typing import get_type_hints

import pytest

from unisono.exchange.rank_step_bytes import pack, unpack
from unisono.listen.messages import RankStep

VALUES = {int: 3, int | None: -(2**63), float: 0.1, float | None: -1e300, bool: True}
HINTS = get_type_hints(RankStep)
LISTS = {"squared_norm_G": (1.5, 0.0, math.inf), "weight_W": (0.25, 0.0), "distance_W": (0.1, 1.9, 0.3, 2.0)}
FULL = RankStep(
    **{field.name: VALUES[HINTS[field.name]] for field in fields(RankStep) if field.name not in LISTS}, **LISTS
)
OPTIONAL = [field.name for field in fields(RankStep) if HINTS[field.name] in (int | None, float | None)]


def through(*signals):
    return list(unpack(b"".join(map(pack, signals))))


def test_every_field_comes_back():
    assert through(FULL) == [FULL]


def test_the_least_comes_back():
    signal = RankStep(step=0, time=0.0)
    assert through(signal) == [signal]


@pytest.mark.parametrize("name", OPTIONAL)
def test_what_is_not_known_is_told_from_zero(name):
    unknown, zero = replace(FULL, **{name: None}), replace(FULL, **{name: 0})
    found = through(unknown, zero)
    assert getattr(found[0], name) is None
    assert getattr(found[1], name) == 0
    assert found == [unknown, zero]


def test_many_signals_of_different_length_in_one_letter():
    signals = [replace(FULL, step=step, squared_norm_G=(0.5,) * step) for step in range(5)]
    assert through(*signals) == signals


@pytest.mark.parametrize("name", LISTS)
def test_a_list_comes_back_alone(name):
    signal = RankStep(step=1, time=0.0, **{name: (1.0, math.pi)})
    assert through(signal, FULL, signal) == [signal, FULL, signal]


def test_an_empty_message_holds_nothing():
    assert through() == []


def test_numbers_that_are_not_finite_survive():
    signal = replace(FULL, loss=math.nan, clip_norm=-math.inf, squared_norm_G=(math.nan,))
    (found,) = through(signal)
    assert math.isnan(found.loss)
    assert found.clip_norm == -math.inf
    assert math.isnan(found.squared_norm_G[0])


@pytest.mark.parametrize("number", [2**63 - 1, -(2**63)])
def test_whole_numbers_of_64_bits_fit(number):
    assert through(replace(FULL, weights=number))[0].weights == number


@pytest.mark.parametrize("lost", [1, 8, 30, 33, 50])
def test_a_torn_message_is_refused(lost):
    message = pack(FULL) + pack(FULL)
    with pytest.raises(struct.error):
        list(unpack(message[:-lost]))


def test_there_is_a_bit_for_every_field():
    assert len(fields(RankStep)) <= 64
