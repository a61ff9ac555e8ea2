"""Which steps can be compared with those before."""

from dataclasses import replace

import pytest

from unisono.diagnose.rules.shared.comparable_steps import ComparableSteps
from unit.diagnose.rules.build import step

LOSSES = {"loss_W": (1.0, 1.0), "loss_mean": 1.0}


def followed(*records):
    """(usable, broken, jumped) after each."""
    comparable, seen = ComparableSteps(), []
    for record in records:
        comparable.follow(record)
        assert comparable.turned == (comparable.broken or comparable.jumped)
        seen.append((comparable.usable, comparable.broken, comparable.jumped))
    return seen


def steps(count, **fields):
    return [step(number, **{**LOSSES, **fields}) for number in range(count)]


def test_steps_alike_can_be_compared():
    assert followed(*steps(3, samples_W=(8, 8)))[1:] == [(True, False, False)] * 2


@pytest.mark.parametrize("fields", [{"skipped": True}, {"finite_W": (True, False)}, {"loss_mean": float("nan")}])
def test_steps_that_cannot(fields):
    assert followed(*steps(2), *steps(1, **fields))[-1] == (False, False, False)


def test_many_short_last_batches_are_all_left_out():
    epoch = [*steps(5, samples_W=(8, 8)), *steps(1, samples_W=(2, 2))]
    seen = followed(*epoch * 20)
    assert seen[5::6] == [(False, False, False)] * 20
    assert all(usable for usable, _, _ in seen[6::6])
    assert not any(broken for _, broken, _ in seen[1:])


def test_another_batch_size_that_stays():
    seen = followed(*steps(20, samples_W=(8, 8)), *steps(20, samples_W=(32, 32)))
    assert [usable for usable, _, _ in seen[20:30]] == [False] * 10
    assert seen[30:32] == [(True, True, False), (True, False, False)]


def test_a_batch_size_that_grows_slowly():
    sizes = [step(n, samples_W=(8 + n // 10, 8 + n // 10), **LOSSES) for n in range(300)]
    assert all(usable and not broken for usable, broken, _ in followed(*sizes)[1:])


@pytest.mark.parametrize(("rate", "jumped"), [(0.12, False), (0.2, True), (0.01, True), (None, False), (0.0, True)])
def test_the_learning_rate_jumps(rate, jumped):
    assert followed(*steps(2), *steps(1, lr=rate))[-1][2] is jumped


def test_a_rate_that_is_not_told_is_the_one_before():
    assert followed(*steps(2), *steps(1, lr=None), *steps(1, lr=0.1))[-1] == (True, False, False)


def test_other_workers():
    alone = steps(2, loss_W=(1.0, 1.0, 1.0))
    assert [broken for _, broken, _ in followed(*steps(2), *alone)] == [True, False, True, False]


def test_a_step_without_numbers_changes_nothing():
    silent = step(2, loss_W=(), loss_mean=None)
    assert followed(*steps(2), silent, *steps(1))[2:] == [(True, False, False)] * 2


@pytest.mark.parametrize(("rate", "turmoil"), [(0.2, 50), (0.12, 0), (0.01, 0)])
def test_turmoil_follows_a_rate_that_jumps_upwards(rate, turmoil):
    comparable, seen = ComparableSteps(), []
    for number in range(100):
        comparable.follow(step(number, lr=0.1 if number < 10 else rate, **LOSSES))
        seen.append(comparable.turmoil)
    assert seen == [False] * 10 + [True] * turmoil + [False] * (90 - turmoil)


def test_a_new_attempt_starts_calm():
    comparable = ComparableSteps()
    for record in (*steps(2), *steps(1, lr=10.0)):
        comparable.follow(record)
    comparable.follow(replace(step(3, lr=10.0, **LOSSES), attempt=2))
    assert not comparable.turmoil


def test_a_step_that_steering_skips_can_be_compared_unless_it_is_broken():
    skipped = {**LOSSES, "skipped": True, "kept_workers": 0}
    usual = steps(2)
    assert followed(*usual, step(2, **skipped))[-1] == (True, False, False)
    assert followed(*usual, step(2, **skipped, finite_W=(True, False)))[-1] == (False, False, False)
    assert followed(*usual, step(2, **skipped | {"kept_workers": 2}))[-1] == (False, False, False)
