from unisono.diagnose.rules.shared.model_parts import Parts
from unit.diagnose.rules.build import audit


def test_equal_from_the_start():
    parts = Parts()
    assert parts.agree(audit(0))
    assert parts.agree(audit(1, 3, 5))


def test_after_a_difference_somewhere_every_part_has_to_be_seen_equal():
    parts = Parts()
    parts.agree(audit(0, 0, 3))
    assert parts.differ(audit(1)) is None
    assert not parts.agree(audit(2, 1, 3))
    assert not parts.agree(audit(3, 2, 3))
    assert parts.agree(audit(4, 0, 3))


def test_a_whole_comparison_settles_it():
    parts = Parts()
    parts.differ(audit(0, 2, 3))
    assert parts.agree(audit(1))
    assert parts.agree(audit(2, 0, 3))


def test_what_was_seen_equal_before_a_difference_everywhere_has_to_be_seen_again():
    parts = Parts()
    parts.differ(audit(0, 0, 2))
    parts.agree(audit(1, 1, 2))
    parts.differ(audit(2))
    assert not parts.agree(audit(3, 0, 2))
    assert parts.agree(audit(4, 1, 2))


def test_the_last_equal_step_of_a_part():
    parts = Parts()
    parts.agree(audit(0))
    parts.agree(audit(1, 0, 3))
    parts.agree(audit(2, 1, 3))
    assert parts.differ(audit(3, 2, 3)) == 0
    assert parts.differ(audit(4, 1, 3)) == 2


def test_everything_was_equal_when_the_part_seen_longest_ago_was():
    parts = Parts()
    parts.agree(audit(0))
    for step in range(1, 5):
        parts.agree(audit(step, step % 3, 3))
    assert parts.differ(audit(5)) == 2


def test_partial():
    parts = Parts()
    parts.differ(audit(0))
    parts.agree(audit(1, 0, 3))
    assert not parts.partial
    parts.differ(audit(2, 1, 3))
    assert parts.partial
