"""Validation that stalls while the training loss falls; and all that looks like it and is healthy."""

import numpy as np
import pytest
from benchmarks.validation_histories import SHAPES, History, found_at, healthy, judged

from unisono.diagnose.rules.un412_validation_stalls import MOST, ValidationStalls, _noise
from unisono.records import ValidationRecord
from unit.diagnose.rules.build import attempt, judge, step, watch
from unit.diagnose.rules.streams import causes

EVERY = 5
VALIDATIONS = 40
TIME = np.arange(VALIDATIONS)
FALLING = 0.3 + 2 * np.exp(-TIME / 15)
"""A training loss from one validation to the next."""


def noise(size, seed=0, count=VALIDATIONS):
    return size * np.random.default_rng(seed).standard_normal(count)


def run(validation, loss, first=0, number=1):
    """Five steps of training before each validation."""
    for at, (accuracy, mean) in enumerate(zip(validation, loss, strict=True)):
        last = first + (at + 1) * EVERY - 1
        for one in range(last - EVERY + 1, last + 1):
            yield step(one, loss_W=(mean,) * 4, loss_mean=float(mean))
        yield ValidationRecord(number, last, float(last), 0, float(accuracy))


LEARNT_THEN_FALLS = np.minimum(0.1 + 0.05 * TIME, 0.6) - 0.006 * np.clip(TIME - 12, 0, None)
LEARNT_THEN_STAYS = np.minimum(0.1 + 0.05 * TIME, 0.6)


def test_a_validation_that_falls_while_the_loss_does():
    found = judge(ValidationStalls, *run(LEARNT_THEN_FALLS + noise(0.002), FALLING))
    assert (found.code, found.severity, found.state, found.ranks) == ("UN412", "warning", "open", ())
    assert causes(found) == ["too-little-data", "noisy-labels", "validation-differs"]
    assert 0.55 <= found.evidence["best_validation"] <= 0.61
    assert found.first_step == found.evidence["best_step"]
    assert 10 * EVERY <= found.first_step <= 16 * EVERY
    assert "its best was 0." in found.why
    assert "`unisono batches RUN`" in " ".join(found.remedies)


def test_one_that_stays_where_it_is():
    found = judge(ValidationStalls, *run(LEARNT_THEN_STAYS + noise(0.002), FALLING))
    assert found.severity == "warning"
    assert "as before it would have gained" in found.why
    assert found.evidence["loss_now"] < found.evidence["loss_before"]


@pytest.mark.parametrize("scale", [lambda share: 100 * share, lambda share: -2 * (1 - share)], ids=["percent", "-loss"])
def test_the_unit_does_not_matter(scale):
    assert judge(ValidationStalls, *run(scale(LEARNT_THEN_FALLS + noise(0.002)), FALLING)) is not None
    rising = 0.1 + 0.2 * (2.3 - FALLING) + noise(0.002)
    assert judge(ValidationStalls, *run(scale(rising), FALLING)) is None


FLAT = np.where(TIME < 12, FALLING, FALLING[12]) * (1 + noise(0.01, seed=5))
HEALTHY = {
    "both improve": (0.6 - 0.25 * FALLING + noise(0.005), FALLING),
    "both have come to rest": (LEARNT_THEN_STAYS + noise(0.005), FLAT),
    "a single dip": (0.6 - 0.25 * FALLING + noise(0.002) - 0.3 * (TIME == 30), FALLING),
    "at its ceiling": (np.minimum(0.99, 0.3 + 0.06 * TIME) + noise(0.003), FALLING),
    "always the same number": (np.zeros(len(TIME)), FALLING),
    "a quick start, then slowly": (np.where(TIME < 2, 0.1, 0.5 + 0.003 * TIME) + noise(0.001), 2.3 - 0.05 * TIME),
    "the loss has only begun to fall": (
        np.where(TIME < 2, 0.1, 0.3)[:14] + noise(0.002, 0, 14),
        2.3 - 0.13 * (TIME[:14] - 3).clip(0),
    ),
    "never better than chance": (0.1 + noise(0.01), FALLING),
    "too few": (LEARNT_THEN_FALLS[5:18], FALLING[5:18]),
    "mostly noise": (0.6 - 0.05 * FALLING + noise(0.1), FALLING),
    "the loss rises": (LEARNT_THEN_FALLS + noise(0.002), np.where(TIME < 12, FALLING, 1.2 + 0.02 * TIME)),
}


@pytest.mark.parametrize("name", HEALTHY)
def test_it_is_silent_where(name):
    assert judge(ValidationStalls, *run(*HEALTHY[name])) is None


def test_without_validation_there_is_nothing_to_check():
    rule, _ = watch(ValidationStalls, *(step(number, loss_mean=1.0) for number in range(300)))
    assert rule.checks == 0
    rule, _ = watch(ValidationStalls, *run(*HEALTHY["both improve"]))
    assert rule.checks > 0


def test_validations_without_training_between_them_say_nothing():
    records = [*run(LEARNT_THEN_STAYS[:5], FALLING[:5]), *(ValidationRecord(1, 24, 0.0, 0, 0.1) for _ in range(100))]
    assert watch(ValidationStalls, *records)[0].checks == 0


def test_numbers_that_are_not_finite_are_passed_over():
    spoilt = (LEARNT_THEN_FALLS + noise(0.002)).repeat(2)
    spoilt[1::2] = np.nan
    assert judge(ValidationStalls, *run(spoilt, FALLING.repeat(2))) is not None


def test_it_stays_open_when_the_loss_has_flattened_and_is_resolved_by_a_new_best():
    flat = np.full(20, FALLING[-1])
    fallen, low = LEARNT_THEN_FALLS + noise(0.002), np.full(20, LEARNT_THEN_FALLS[-1]) + noise(0.002, 3, 20)
    records = [*run(np.concatenate([fallen, low]), np.concatenate([FALLING, flat]))]
    assert judge(ValidationStalls, *records).state == "open"
    better = 0.7 + noise(0.002, 4, 20)
    records += run(better, flat, first=60 * EVERY)
    assert judge(ValidationStalls, *records).state == "resolved"


def test_a_restart_forgets_what_it_does_again():
    stalled = [*run(LEARNT_THEN_STAYS + noise(0.002), FALLING)]
    before_it_shows = stalled[: 20 * (EVERY + 1)]
    again = attempt(number=2)
    assert judge(ValidationStalls, attempt(), *before_it_shows) is None
    assert judge(ValidationStalls, attempt(), *before_it_shows, again, *stalled[20 * (EVERY + 1) :]) is None


def test_very_many_validations_are_kept_in_bounded_memory_and_found_as_well():
    many = 50 * len(TIME)
    slow = np.interp(np.arange(many) / 50, TIME, LEARNT_THEN_FALLS) + noise(0.01, 1, many)
    loss = np.interp(np.arange(many) / 50, TIME, FALLING)
    rule, run_state = watch(ValidationStalls, *run(slow, loss))
    assert rule.finding(run_state) is not None
    assert len(rule._curve.points) < MOST
    assert judge(ValidationStalls, *run(0.6 - 0.25 * loss + noise(0.01, 1, many), loss)) is None


@pytest.mark.parametrize("shape", SHAPES)
def test_healthy_histories_are_quiet(shape):
    random = np.random.default_rng(SHAPES.index(shape))
    assert [at for _ in range(25) if (at := found_at(healthy(shape, random))) is not None] == []


def test_most_clear_stalls_are_found_and_none_before_it_begins():
    found = judged(0, 40, np.random.default_rng(7))
    assert found["found_before_they_began"] == 0
    assert found["clear_stalls"] >= 15
    assert found["clear_found"] >= 0.85 * found["clear_stalls"]


def test_neighbours_that_err_alike_count_as_less():
    values = noise(1.0, 3, 36)
    slow = np.sort(values[:18]).tolist() + np.sort(values[18:])[::-1].tolist()
    assert _noise(slow) > 2 * _noise(values.tolist())
    assert _noise(values.tolist()) == pytest.approx(1.0, rel=0.4)
    assert _noise((values + 5 * np.arange(36)).tolist()) == pytest.approx(_noise(values.tolist()))


def test_the_histories_are_judged_by_the_rule():
    assert found_at(History(LEARNT_THEN_FALLS + noise(0.002), FALLING)) is not None
