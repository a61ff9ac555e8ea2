import pytest

from unisono.diagnose.rules.un303_optimizer_differs import OptimizerDiffers
from unit.diagnose.rules.build import audit, facts, judge, step

ONE, NONE_AGREE = (0, 0, 2, 0), (0, 1, 2, 3)


def test_a_learning_rate_of_its_own():
    found = judge(OptimizerDiffers, step(0), step(1, lr=None, lr_W=(0.1, 0.1, 0.01, 0.1), settings_W=ONE))
    assert (found.severity, found.ranks, found.first_step) == ("critical", (2,), 1)
    assert [cause.slug for cause in found.causes] == ["learning-rate-differs"]
    assert "0.01 on rank 2, 0.1 on ranks 0, 1 and 3" in found.why


def test_two_workers_are_undecidable():
    found = judge(OptimizerDiffers, step(1, lr=None, lr_W=(0.1, 0.01)), world=2)
    assert (found.ranks, found.evidence["undecidable"]) == ((), "between ranks 0 and 1")


def test_another_number():
    found = judge(OptimizerDiffers, step(1, settings_W=ONE))
    assert (found.ranks, found.causes[0].slug) == ((2,), "hyper-parameter-differs")


@pytest.mark.parametrize(
    ("name", "cause"),
    [
        ("class", "optimizer-class-differs"),
        ("numbers", "hyper-parameter-differs"),
        ("lr", "learning-rate-differs"),
    ],
)
def test_facts(name, cause):
    found = judge(OptimizerDiffers, facts("optimizer", **{name: "aaba"}))
    assert (found.ranks, found.causes[0].slug) == ((2,), cause)


def test_another_class_is_not_resolved_by_equal_numbers():
    found = judge(OptimizerDiffers, facts("optimizer", **{"class": "aaba"}), *map(step, range(5)))
    assert found.state == "open"


def test_state_that_differs_while_gradients_are_equal():
    found = judge(OptimizerDiffers, audit(0, state_W=ONE, weights_W=ONE))
    assert (found.ranks, found.causes[0].slug) == ((2,), "state-differs")


@pytest.mark.parametrize(
    "records",
    [
        [audit(0, state_W=NONE_AGREE, used_W=NONE_AGREE), audit(1, state_W=NONE_AGREE)],
        [audit(0, state_W=NONE_AGREE, reduced_W=NONE_AGREE)],
        [audit(0, state_W=NONE_AGREE, syncs_W=(0,) * 4)],
        [audit(0, weights_W=ONE), audit(1, weights_W=ONE, state_W=ONE)],
    ],
)
def test_state_that_follows_other_differences_is_not_its_business(records):
    assert judge(OptimizerDiffers, *records) is None


def test_sharded_state_is_healthy():
    assert (
        judge(OptimizerDiffers, facts("optimizer", same={"sharded state": "yes"}), audit(0, state_W=NONE_AGREE)) is None
    )


def test_healthy():
    quiet = facts("optimizer", same={"class": "Adam"}), facts("optimizer", lr=("0.1", None, "0.1", "0.1"))
    assert judge(OptimizerDiffers, *quiet, *map(audit, range(5)), step(5, skipped=True, lr_W=(1, 2, 3, 4))) is None


def test_resolves():
    found = judge(OptimizerDiffers, step(0, lr=None, lr_W=(0.1, 0.1, 0.2, 0.1)), *map(step, (1, 2, 3)))
    assert found.state == "resolved"
