"""Signals survive the trip through the store."""

import math

from unisono.exchange.rank_step_bytes import pack, unpack
from unisono.listen.messages import RankStep

PLAIN = RankStep(step=3, time=1.5, loss=0.25, compute=0.1, seconds=0.2, cost=0.01)
HEARD = RankStep(
    step=4, time=2.0, loss=math.inf, finite=False, skipped=True, clip_norm=3.0, heard=True, window=64, nonfinite=2,
    reduced_share=0.5, squared_norm_G=(1.0, 2.0),
)  # fmt: skip
SILENT = RankStep(step=5, time=3.0)


def test_what_is_packed_is_unpacked():
    assert list(unpack(pack(PLAIN) + pack(HEARD) + pack(SILENT))) == [PLAIN, HEARD, SILENT]


def test_nan_stays_nan():
    (back,) = unpack(pack(RankStep(step=0, time=0.0, loss=math.nan)))
    assert math.isnan(back.loss)


def test_squared_norm_needs_hearing():
    assert PLAIN.squared_norm is None
    assert HEARD.squared_norm == 3.0
