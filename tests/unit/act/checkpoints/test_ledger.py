"""Which checkpoints are trusted, in numbers of steps."""

from unisono.act.checkpoints.ledger import Ledger


def ledger(*steps, keep=2, quiet=10):
    made = Ledger(keep, quiet)
    for step in steps:
        made.add(step)
    return made


def test_healthy_only_after_enough_quiet_steps():
    made = ledger(100)
    assert (made.quiet(109), made.healthy()) == ((), ())
    assert (made.quiet(110), made.healthy()) == ((100,), (100,))


def test_trouble_drops_those_that_wait():
    made = ledger(100, 105)
    made.quiet(110)
    assert made.trouble(111) == (105,)
    made.quiet(200)
    assert made.healthy() == (100,)


def test_trouble_that_began_long_ago_drops_healthy_ones_too():
    made = ledger(100, 200)
    made.quiet(300)
    made.agreed(200)
    assert (made.trouble(150), made.healthy()) == ((200,), ())


def test_older_ones_go_only_when_a_newer_one_is_agreed():
    made = ledger(keep=2)
    for step in (100, 200, 300):
        made.add(step)
        made.quiet(step + 10)
        assert made.agreed(step) == ((100,) if step == 300 else ())
    assert made.healthy() == (200, 300)
    made.add(400)
    made.quiet(410)
    assert made.healthy() == (200, 300, 400)


def test_one_that_not_all_workers_hold_goes_when_a_newer_one_is_agreed():
    made = ledger(100, 200)
    made.quiet(300)
    assert (made.agreed(200), made.healthy()) == ((100,), (200,))


def test_newer_ones_are_refused_while_enough_wait():
    made = ledger(100, keep=2)
    assert made.has_room()
    made.add(101)
    assert not made.has_room()
    made.quiet(110)
    assert made.has_room()
