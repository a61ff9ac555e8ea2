"""Which optimizer ends a step when one keeps another."""

from unisono.listen.step_tracker import NestedOptimizers

INNER, OUTER = object(), object()


def test_a_step_ends_with_the_outermost():
    nesting = NestedOptimizers()
    nesting.enter(OUTER)
    nesting.enter(INNER)
    assert nesting.leave(INNER) is False
    assert nesting.leave(OUTER) is True
    assert not nesting


def test_one_after_the_other():
    nesting = NestedOptimizers()
    for optimizer in (OUTER, INNER):
        nesting.enter(optimizer)
        assert nesting
        assert nesting.leave(optimizer) is True


def test_an_error_inside_does_not_keep_it_open():
    nesting = NestedOptimizers()
    nesting.enter(OUTER)
    nesting.enter(INNER)  # it raises, and the script goes on
    nesting.enter(OUTER)
    nesting.enter(INNER)
    assert nesting.leave(INNER) is False
    assert nesting.leave(OUTER) is True


def test_one_that_was_not_seen_to_begin():
    assert NestedOptimizers().leave(OUTER) is True
