"""What rank 0 asks for, and how seldom."""

import pytest

from unisono.listen.listening_plan import Announcement
from unisono.measure.follow_up_questions import (
    LEARNED_AFTER,
    MOST_AUDITS,
    MOST_BATCHES,
    MOST_DETAILS,
    STEPS_BETWEEN_AUDITS,
    STEPS_BETWEEN_BATCHES,
    FollowUpQuestions,
)
from unisono.records import StepRecord


def step(number, **fields):
    return StepRecord(attempt=1, step=number, time=0.0, **fields)


@pytest.fixture
def questions():
    return FollowUpQuestions()


def ask(questions, number, **fields):
    return list(questions.about(step(number, **fields), soon=number + 8))


def usual_losses(questions, steps):
    """Gaps of 0.1 around a loss of 1."""
    for number in range(steps):
        assert ask(questions, number, loss_W=(0.9, 1.0, 1.1, 1.0)) == []


def test_a_healthy_step_raises_no_question(questions):
    assert ask(questions, 0, loss_W=(1.0, 1.0), finite_W=(True, None)) == []


def test_different_weights_are_asked_about_in_both_ways(questions):
    assert ask(questions, 5, weights_W=(0, 1)) == [
        Announcement(start=13, audit_of=5),
        Announcement(start=13, detail=True),
    ]


def test_weights_that_stay_different_are_asked_about_now_and_then(questions):
    asked = [q for number in range(10_000) for q in ask(questions, number, weights_W=(0, 1))]
    audits = [question.audit_of for question in asked if question.audit_of is not None]
    details = [question.start for question in asked if question.detail]
    assert len(audits) == MOST_AUDITS
    assert len(details) == MOST_DETAILS
    assert audits[:3] == [0, STEPS_BETWEEN_AUDITS, 2 * STEPS_BETWEEN_AUDITS]


def test_a_worker_that_is_not_finite_is_asked_for_its_batch(questions):
    assert ask(questions, 3, finite_W=(True, None, False)) == [Announcement(start=11, batch_of=3, worker=2)]


def test_a_step_that_the_loss_scaler_skips_is_not_odd(questions):
    assert ask(questions, 3, finite_W=(False, True), skipped=True) == []


def test_a_step_that_the_guard_skipped_is_odd_all_the_same(questions):
    asked = list(questions.about(step(3, finite_W=(True, False), skipped=True), soon=11, guarded=True))
    assert asked == [Announcement(start=11, batch_of=3, worker=1)]


def test_a_loss_far_off_is_asked_about_once_the_usual_is_known(questions):
    far = (1.0, 1.0, 9.0, 1.0)
    usual_losses(questions, LEARNED_AFTER - 1)
    assert ask(questions, 49, loss_W=far) == []
    questions = FollowUpQuestions()
    usual_losses(questions, LEARNED_AFTER)
    assert ask(questions, 50, loss_W=far) == [Announcement(start=58, batch_of=50, worker=2)]


def test_a_loss_that_is_low_stands_out_too(questions):
    usual_losses(questions, LEARNED_AFTER)
    (question,) = ask(questions, 50, loss_W=(1.0, -9.0, 1.0, 1.0))
    assert question.worker == 1


def test_losses_that_have_always_been_apart_are_usual(questions):
    for number in range(200):
        assert ask(questions, number, loss_W=(1.0, 1.0, 9.0, 1.0)) == []


def test_equal_losses_leave_nothing_to_compare_with(questions):
    for number in range(100):
        assert ask(questions, number, loss_W=(1.0, 1.0)) == []
    assert ask(questions, 100, loss_W=(1.0, 1.1)) == []


@pytest.mark.parametrize("loss_W", [(1.0, None, 99.0, 1.0), (1.0, float("nan"), 99.0, 1.0), (1.0,), ()])
def test_nobody_is_named_while_one_is_not_heard(questions, loss_W):
    usual_losses(questions, LEARNED_AFTER)
    assert ask(questions, 50, loss_W=loss_W) == []


def test_questions_about_batches_are_few(questions):
    asked = [q.batch_of for number in range(10_000) for q in ask(questions, number, finite_W=(False, True))]
    assert len(asked) == MOST_BATCHES
    assert asked[:2] == [0, STEPS_BETWEEN_BATCHES]
