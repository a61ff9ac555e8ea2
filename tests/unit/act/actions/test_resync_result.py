"""What was overwritten, in words."""

import math

from unisono.act.actions.resync import Overwritten, ResyncResult

RANKS = (4, 5, 6, 7, 8, 9)


def sentence(*overwritten, left_alone=()):
    return ResyncResult(0, 12, 3, overwritten, left_alone).sentence(RANKS)


def test_ranks_amounts_and_the_optimizer_are_named():
    each = Overwritten(worker=1, by=0, parameters=3, states=2, largest=1.234e-7)
    expected = "rank 5 was overwritten by rank 4: 3 of 12 parameters, largest difference 1.2e-07; optimizer state"
    assert sentence(each) == expected


def test_buffers_and_optimizer_alone():
    assert sentence(Overwritten(2, 1, buffers=2, largest_in_buffers=0.5)).endswith(
        "2 of 3 buffers, largest difference 5.0e-01"
    )
    assert sentence(Overwritten(2, 1, states=1)) == "rank 6 was overwritten by rank 5: optimizer state"


def test_counters_in_buffers_do_not_hide_how_far_parameters_were_apart():
    said = sentence(Overwritten(2, 1, parameters=1, buffers=1, largest=1e-7, largest_in_buffers=5.0))
    assert said.endswith("1 of 12 parameters, largest difference 1.0e-07; 1 of 3 buffers, largest difference 5.0e+00")


def test_what_was_not_finite_is_said_so():
    assert sentence(Overwritten(2, 1, parameters=1, largest=math.inf)).endswith(
        "parameters, some values were not finite"
    )


def test_nobody_was_overwritten():
    assert sentence() == "all replicas are equal"
    assert sentence(left_alone=("buffers were left alone",)) == "all replicas are equal. buffers were left alone"


def test_of_many_workers_some_are_named_and_all_are_counted():
    said = sentence(*(Overwritten(worker, 0, parameters=1) for worker in range(1, 6)))
    assert said.count("was overwritten by") == 4
    assert said.endswith(". 1 more overwritten")
