import pytest

from unisono.diagnose.rules.un201_identical_randomness import IdenticalRandomness
from unit.diagnose.rules.build import attempt, checks, facts, judge, streams

ALL, PAIR = (0, 0, 0, 0), (0, 1, 2, 1)


@pytest.mark.parametrize(
    ("stream", "cause"),
    [
        ("torch_in_forward", "same-seed-in-forward"),
        ("cuda_in_forward", "same-seed-in-forward"),
        ("numpy_in_loading", "same-seed-in-loading"),
        ("python_in_loading", "same-seed-in-loading"),
        ("torch_in_loading", "same-seed-in-loading"),
    ],
)
def test_a_shared_stream(stream, cause):
    found = judge(IdenticalRandomness, streams(3, **{stream: ALL}), streams(6, **{stream: ALL}))
    assert (found.severity, found.ranks, found.first_step) == ("warning", (0, 1, 2, 3), 3)
    assert found.causes[0].slug == cause


def test_only_those_who_share_are_named():
    found = judge(IdenticalRandomness, *(streams(n, torch_in_forward=PAIR) for n in (0, 1)))
    assert found.ranks == (1, 3)


@pytest.mark.parametrize("stream", ["numpy_in_forward", "python_in_forward"])
def test_streams_that_may_be_meant_to_be_equal(stream):
    found = judge(IdenticalRandomness, *(streams(n, **{stream: ALL}) for n in (0, 1)))
    assert (found.severity, found.causes[0].slug) == ("info", "dropped-layers")


HEALTHY = {
    "once": [streams(0, torch_in_forward=ALL)],
    "not in a row": [
        streams(0, torch_in_forward=ALL),
        streams(1, "torch in forward"),
        streams(2, torch_in_forward=ALL),
    ],
    "not across a restart": [streams(0, torch_in_forward=ALL), attempt(number=2), streams(1, torch_in_forward=ALL)],
    "different ones": [streams(n, "torch in forward") for n in range(3)],
    "no randomness": [streams(n) for n in range(3)],
}


@pytest.mark.parametrize("records", HEALTHY.values(), ids=HEALTHY)
def test_healthy(records):
    assert judge(IdenticalRandomness, attempt(), *records) is None


def test_resolves():
    shared, different = (
        (streams(n, torch_in_forward=ALL) for n in (0, 1)),
        (streams(n, "torch in forward") for n in "abc"),
    )
    assert judge(IdenticalRandomness, *shared, *different).state == "resolved"


def test_a_model_without_randomness_was_not_checked():
    assert checks(IdenticalRandomness, streams(0), streams(1)) == 0
    assert checks(IdenticalRandomness, streams(0, "torch in forward")) == 1


@pytest.mark.parametrize("stream", ["torch_in_forward", "torch_in_loading"])
def test_a_trainer_that_seeds_alike_has_a_remedy_of_its_own(stream):
    wrapped = facts("model", same={"wrapped by": "transformers"})
    found = judge(IdenticalRandomness, wrapped, *(streams(n, **{stream: ALL}) for n in (0, 1)))
    assert [cause.slug for cause in found.causes] == ["seeded-by-trainer"]
    assert "on_train_begin" in found.remedies[0]
