from dataclasses import replace

from unisono.diagnose.rules.un001_monitor_degraded import MonitorDegraded
from unit.diagnose.rules.build import judge, note, step


def test_names_the_rank_that_does_not_report():
    found = judge(MonitorDegraded, note("unheard", 2))
    assert (found.severity, found.ranks, found.state) == ("warning", (2,), "open")
    assert found.causes[0].slug == "not-attached"


def test_a_rank_that_returns_resolves_it():
    found = judge(MonitorDegraded, note("unheard", 2), note("returned", 2), step(6))
    assert found.state == "resolved"


def test_one_of_two_returning_does_not():
    found = judge(MonitorDegraded, note("unheard", 1, 2), note("returned", 2), step(6))
    assert found.state == "open"


def test_directions_lost_for_long():
    found = judge(MonitorDegraded, note("directions-lost", at=5), step(54), step(60))
    assert (found.first_step, found.ranks) == (5, ())
    assert found.causes[0].slug == "network-interface"


def test_many_steps_in_no_time_are_not_long():
    lost = note("directions-lost", at=5)
    assert judge(MonitorDegraded, lost, *(replace(step(number), time=1.0) for number in range(6, 500))) is None


def test_directions_soon_back_are_not_worth_a_word():
    assert judge(MonitorDegraded, note("directions-lost", at=5), step(54), note("directions-back"), step(99)) is None


def test_other_notes_are_none_of_its_business():
    assert judge(MonitorDegraded, note("missing", 1), note("", 1), step(100)) is None
