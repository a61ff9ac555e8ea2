"""Rules that would misjudge a steered run if they did not know of it."""

import numpy as np
import pytest

from unisono.diagnose.rules.shared.steered_steps import Marks, applied_norm
from unisono.diagnose.rules.un401_gradient_explosion import GradientExplosion
from unisono.records import are_left_out, left_out
from unit.diagnose.rules.build import judge, step

WELL = (True,) * 3


def test_who_was_left_out():
    assert left_out(step(0, finite_W=WELL)) is None
    assert left_out(step(0, finite_W=WELL, kept_workers=0)) is None
    assert left_out(step(0, finite_W=WELL, kept_workers=3)) == ()
    assert left_out(step(0, finite_W=WELL, kept_workers=3, weight_W=(0.5, 0.3, 0.2))) == ()
    assert left_out(step(0, finite_W=WELL, kept_workers=2, weight_W=(0.5, 0.0, 0.5))) == (1,)
    assert left_out(step(0, finite_W=WELL, kept_workers=2)) is None


def test_whether_some_were_left_out():
    known = step(0, finite_W=WELL, kept_workers=2, weight_W=(0.5, 0.0, 0.5))
    assert are_left_out(known, [1])
    assert not are_left_out(known, [0, 1])
    assert not are_left_out(step(0, finite_W=WELL), [1])


@pytest.mark.parametrize(
    ("fields", "norm"),
    [
        ({"grad_norm": None}, None),
        ({}, 300.0),
        ({"kept_workers": 3}, 300.0),
        ({"kept_workers": 2, "weight_W": (0.5, 0.5, 0.0)}, 2.0),
        ({"kept_workers": 2, "weight_W": (0.0, 0.5, 0.5)}, 300.0),
        ({"kept_workers": 0}, 0.0),
    ],
)
def test_the_norm_of_what_was_applied_has_a_bound(fields, norm):
    assert applied_norm(step(0, **{"norm_W": (1.0, 3.0, 900.0), "grad_norm": 300.0, **fields})) == norm


def exploding(count=120, **last):
    """The gradient of the last worker becomes 100,000 times too long for five steps."""
    random = np.random.default_rng(0)
    for number in range(count):
        norm_W = np.exp(0.1 * random.standard_normal(4))
        hot = 100 <= number < 105
        norm_W[3] *= 1e5 if hot else 1
        base = {"finite_W": (True,) * 4, "loss_W": (1.0,) * 4, "loss_mean": 1.0, "kept_workers": 4}
        base |= {"norm_W": tuple(norm_W.tolist()), "grad_norm": float(norm_W.max() / 3 if hot else norm_W.mean() / 2)}
        yield step(number, **base | (last if hot else {}))


def test_a_huge_gradient_that_steering_left_out_is_no_explosion():
    assert judge(GradientExplosion, *exploding()).severity == "warning"
    assert judge(GradientExplosion, *exploding(kept_workers=3, weight_W=(1 / 3, 1 / 3, 1 / 3, 0.0))) is None
    assert judge(GradientExplosion, *exploding(kept_workers=0, skipped=True)) is None


class Listed(tuple):
    """Takes long to look somebody up in, if there are many."""

    def __contains__(self, who):
        raise AssertionError


def test_since_when_of_many_that_are_marked():
    marks = Marks(4)
    for number in range(6):
        marks.add(number, Listed(("a", "b")) if number > 3 else Listed("b"))
    assert (marks.since("a"), marks.since("b"), marks.since("c")) == (4, 2, None)


def test_marks_remember_the_last_steps_only():
    marks = Marks(4)
    for number, who in enumerate(((), ("a",), ("a", "b"), ("a",), ("b",), ("b",))):
        marks.add(number, who)
    assert len(marks) == 4
    assert (marks.count("a"), marks.share("b"), marks.share("c")) == (2, 0.75, 0.0)
    assert (marks.since("b"), marks.since("c")) == (4, None)
    assert Marks(4).share("a") == 0.0
