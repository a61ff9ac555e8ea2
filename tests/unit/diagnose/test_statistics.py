"""Windows and scores, against the plain definitions."""

import math
import random
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unisono.diagnose.statistics import (
    Blocks,
    Opposition,
    Peers,
    Relation,
    Window,
    gaps_to_others,
    median,
    median_of_others,
    scatter,
)
from unisono.diagnose.statistics import (
    peers as _peers,
)
from unisono.diagnose.statistics.bets import SIDES, Bets

numbers = st.lists(st.floats(-100, 100), min_size=2, max_size=40)


@given(numbers)
def test_a_window_holds_the_last_numbers(values):
    window = Window(8)
    for value in values:
        window.add(value)
    last = values[-8:]
    assert len(window) == len(last)
    assert window.full == (len(values) >= 8)
    assert window.median == pytest.approx(statistics.median(last))
    assert window.largest == max(last)


def test_deviation_ignores_a_quarter():
    rng = random.Random(0)
    window = Window(400)
    for number in range(400):
        window.add(1e6 if number % 10 == 0 else rng.gauss(5, 2))
    assert window.deviation == pytest.approx(2, rel=0.3)


def test_scatter_is_the_standard_deviation_of_normal_numbers():
    rng = random.Random(0)
    assert scatter([rng.gauss(5, 2) for _ in range(2000)]) == pytest.approx(2, rel=0.1)


@given(numbers)
def test_medians_of_others(values):
    expected = [statistics.median(values[:i] + values[i + 1 :]) for i in range(len(values))]
    assert [median_of_others(values, i) for i in range(len(values))] == pytest.approx(expected)
    assert gaps_to_others(values) == pytest.approx([a - b for a, b in zip(values, expected, strict=True)])


@given(st.lists(st.floats(-100, 100), min_size=1, max_size=9))
def test_median(values):
    assert median(values) == pytest.approx(statistics.median(values))


def test_blocks():
    blocks = Blocks(size=3, count=2)
    assert [blocks.add(number) for number in (1, 2, 9, 4, 4, 4)] == [False, False, True, False, False, True]
    assert list(blocks.medians) == [2, 4]
    assert (blocks.full, blocks.rising, blocks.falling, blocks.growth) == (True, True, False, 2)
    for number in (1, 1, 1):
        blocks.add(number)
    assert list(blocks.medians) == [4, 1]
    assert (blocks.rising, blocks.falling) == (False, True)


def heard(peers, readings, offset_W, seed=0):
    rng = random.Random(seed)
    for _ in range(readings):
        peers.add([rng.gauss(offset, 1) for offset in offset_W], step=peers.readings)
    return peers


@pytest.mark.parametrize("workers", [2, 3, 4, 8])
@pytest.mark.parametrize("seed", range(5))
def test_peers_that_are_alike(workers, seed):
    peers = Peers(workers, least=0.1)
    for block in range(20):
        heard(peers, 100, [0] * workers, seed=100 * seed + block)
        assert peers.apart() == []


@pytest.mark.parametrize("workers", [3, 4, 8])
@pytest.mark.parametrize("offset", [2, -2, 1.5])
def test_the_outlier_among_peers(workers, offset):
    peers = heard(Peers(workers, least=0.1), 400, [0, offset] + [0] * (workers - 2))
    assert peers.outliers() == [1]
    assert peers.level(1) == pytest.approx(offset, abs=0.8)


def test_three_extreme_readings_are_enough():
    peers = heard(Peers(3, least=0.1), 100, [0, 0, 0])
    heard(peers, 2, [0, 50, 0])
    assert peers.outliers() == []
    heard(peers, 1, [0, 50, 0])
    assert peers.outliers() == [1]


def test_nobody_is_judged_before_enough_was_heard():
    assert heard(Peers(3, least=0.1), 10, [0, 50, 0]).outliers() == []


def test_two_of_six_are_outliers_and_three_are_not():
    assert heard(Peers(6, least=0.1), 300, [0, 3, 3, 0, 0, 0]).outliers() == [1, 2]
    assert heard(Peers(6, least=0.1), 300, [0, 3, 3, 3, 0, 0]).outliers() == []
    assert heard(Peers(4, least=0.1), 900, [0, 0, 10, 3.8]).outliers() == []


@pytest.mark.parametrize("workers", [2, 4, 8])
def test_since_is_near_the_change(workers):
    peers = heard(Peers(workers, least=0.1), 200, [0] * workers)
    heard(peers, 150, [0, 2] + [0] * (workers - 2), seed=1)
    assert 195 <= peers.since(1) <= 230


@pytest.mark.parametrize("workers", [2, 4])
def test_readings_that_repeat_each_other_count_less(workers):
    """Stretches of eight readings at levels of their own: interchangeable, but not independent."""
    rng, peers = random.Random(0), Peers(workers, least=0.1)
    for stretch in range(200):
        levels = [rng.gauss(0, 3) for _ in range(workers)]
        for place in range(8):
            peers.add([rng.gauss(level, 1) for level in levels], step=8 * stretch + place)
            assert not peers.alarmed


def test_bets_are_settled_as_they_are_defined():
    """Bet by bet: what was staked, or a new stake, times what the worker's score brought, over its price."""
    rng, bets = random.Random(0), Bets(workers=3, most=0.5)
    stake = dict.fromkeys(((tilt, worker) for tilt in SIDES for worker in range(3)), -math.inf)
    since = dict.fromkeys(stake, 0)
    for number in range(40):
        first, share, length = 4 * number, rng.choice([1.0, 0.4]), rng.choice([1, 4])
        score_TW = [[rng.gauss(offset, 1) for offset in (0, 1.5, -1.0)] for _ in range(length)]
        assert [bets.read(score_W, first + at) for at, score_W in enumerate(score_TW)] == list(range(1, length + 1))
        largest = bets.settle(100 + number, share)
        opening = -math.log(2.2 * (100 + number) * math.log(100 + number) ** 2)
        for tilt, worker in stake:
            powers = [[math.exp(tilt * score) for score in score_W] for score_W in score_TW]
            gain = sum(math.log(3 * power_W[worker] / sum(power_W)) for power_W in powers)
            if stake[tilt, worker] < opening + 2:
                since[tilt, worker] = first
            stake[tilt, worker] = min(0.5, max(opening, stake[tilt, worker]) + share * gain)
        assert largest == pytest.approx(max(stake.values()))
        for worker in range(3):
            best = max(SIDES, key=lambda tilt: round(stake[tilt, worker], 9))
            assert bets.best(worker) == (pytest.approx(stake[best, worker]), since[best, worker])
        for side in (1, -1):
            winners = {worker for tilt, worker in stake if tilt * side > 0 and stake[tilt, worker] > -4}
            assert bets.winning(-4, side) == winners
    assert bets.winning(-4) == bets.winning(-4, 1) | bets.winning(-4, -1) != set()


def test_a_suspicion_comes_before_the_alarm():
    peers = heard(Peers(4, least=0.1), 200, [0] * 4)
    assert not peers.suspicious
    suspected = alarmed = None
    for step in range(200, 400):
        heard(peers, 1, [0, 1, 0, 0], seed=step)
        suspected = step if suspected is None and peers.suspicious else suspected
        alarmed = step if alarmed is None and peers.alarmed else alarmed
    assert suspected < alarmed


def test_false_alarms_are_as_rare_as_promised(monkeypatch):
    """With a chance of one in ten for a whole run, at most one run in ten may raise an alarm."""
    monkeypatch.setattr(_peers, "CHANCE", 0.1)
    runs = [heard(Watched(4, least=0.01, sudden=False), 400, [0] * 4, seed) for seed in range(60)]
    assert sum(run.ever for run in runs) <= 12


class Watched(Peers):
    ever = False

    def add(self, value_W, step):
        super().add(value_W, step)
        self.ever = self.ever or self.alarmed


def test_what_a_loss_explains_is_no_difference():
    """Norms follow losses; without that part the rest is small."""
    rng, relation, rests = random.Random(0), Relation(), []
    for _ in range(300):
        loss_W = [rng.gauss(0, 1) for _ in range(4)]
        rests += relation.rest([0.8 * loss + rng.gauss(0, 0.1) for loss in loss_W], loss_W)
    assert relation.slope == pytest.approx(0.8, abs=0.05)
    assert scatter(rests[400:]) == pytest.approx(0.1, rel=0.2)


@pytest.mark.parametrize(("value", "known"), [(3.0, 3.0), (100.0, 3.0), (3.0, 100.0), (-100.0, -3.0)])
def test_an_extreme_reading_teaches_no_more_than_a_large_one(value, known):
    relation = Relation()
    relation.rest([0.0] * 4 + [value], [0.0] * 4 + [known])
    assert relation.slope == 1.0


def test_extreme_readings_do_not_seem_alike_because_they_are_capped():
    peers = heard(Peers(2, least=0.1, sudden=False), 200, [0, 0])
    heard(peers, 45, [0, 30], seed=1)
    assert peers.alarmed


@pytest.mark.parametrize("seed", range(5))
def test_the_worker_that_points_the_other_way(seed):
    rng, opposition = random.Random(seed), Opposition(4)
    for window in range(12):
        opposition.add([rng.gauss(0.4, 0.12) for _ in range(4)], 32 * window)
        assert not opposition.alarmed
    for window in range(12, 16):
        opposition.add(
            [rng.gauss(0.3, 0.12), rng.gauss(-0.6, 0.12), *(rng.gauss(0.3, 0.12) for _ in "23")], 32 * window
        )
    assert opposition.outliers() == [1]
    assert opposition.since(1) >= 11 * 32


@pytest.mark.parametrize(("cosine", "suspicious"), [(-0.9, True), (0.2, False)])
def test_half_a_window_that_points_away_is_worth_listening_closely(cosine, suspicious):
    rng, opposition = random.Random(0), Opposition(4)
    for window in range(6):
        opposition.add([rng.gauss(0.4, 0.12) for _ in range(4)], 32 * window)
    opposition.glance([0.4, cosine, 0.5, 0.35])
    assert (opposition.suspicious, opposition.alarmed) == (suspicious, False)


def test_sums_that_all_oppose_each_other_are_healthy():
    rng, opposition = random.Random(0), Opposition(4)
    for window in range(500):
        opposition.add([rng.gauss(-0.4, 0.12) for _ in range(4)], 32 * window)
        assert not opposition.alarmed


def test_levels_of_their_own_are_no_outlier():
    peers = Peers(3, least=0.1)
    for step in range(500):
        peers.add([0.0, 1.0, 9.0], step)
    assert peers.apart()
    assert peers.outliers() == []


def test_less_than_the_least_difference():
    peers = Peers(4, least=0.1)
    for step in range(500):
        peers.add([0.0, 0.0, 0.0, 0.05], step)
    assert peers.apart() == peers.outliers() == []
