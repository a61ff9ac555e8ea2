"""Who gives: the largest camp, and the first worker where there is none."""

import pytest

from unisono.act.actions.resync import givers

VOTES = [
    ("all are equal", [[5, 5, 5, 5]], (0, [0])),
    ("one is wrong", [[5, 9, 5, 5]], (0, [0])),
    ("the first is wrong", [[9, 5, 5, 5]], (1, [1])),
    ("two against two", [[5, 5, 9, 9]], (0, [0])),
    ("two workers", [[9, 5]], (0, [0])),
    ("all differ", [[1, 2, 3, 4]], (0, [0])),
    ("two agree and the others do not", [[1, 2, 3, 2]], (1, [1])),
    ("one worker", [[5]], (0, [0])),
    ("the wrong ones differ from kind to kind", [[9, 5, 5, 5], [5, 9, 5, 5], [5, 5, 5, 9]], (2, [2, 2, 2])),
    ("nobody is right in everything", [[9, 5, 5], [5, 9, 5], [5, 5, 9]], (0, [1, 0, 0])),
    ("a kind that differs everywhere comes from one who is right", [[9, 5, 5, 5], [1, 2, 3, 4]], (1, [1, 1])),
    ("weights and optimizer come from one worker", [[5, 9, 5, 5], [1, 2, 7, 7]], (2, [2, 2])),
]


@pytest.mark.parametrize(("print_KW", "expected"), [vote[1:] for vote in VOTES], ids=[vote[0] for vote in VOTES])
def test_the_largest_camp_gives(print_KW, expected):
    assert givers(print_KW) == expected
