from dataclasses import replace

from unisono.diagnose.rules.un502_missing_worker import MissingWorker
from unit.diagnose.rules.build import attempt, judge, note, step


def test_a_missing_worker():
    found = judge(MissingWorker, step(4), note("missing", 3))
    assert (found.severity, found.ranks, found.where) == ("critical", (3,), ("host3 cuda:3",))
    assert found.causes[0].slug == "process-died"


def test_ranks_are_the_launchers_numbers():
    found = judge(MissingWorker, attempt(2, ranks=(4, 6)), note("missing", 6))
    assert (found.ranks, found.where) == ((6,), ("host6 cuda:6",))


def test_returning_resolves_it():
    assert judge(MissingWorker, note("missing", 3), step(5), note("returned", 3), step(6)).state == "resolved"


def test_only_one_of_two_returning_does_not():
    assert judge(MissingWorker, note("missing", 2, 3), note("returned", 3), step(6)).state == "open"


def test_a_restart_resolves_it():
    assert judge(MissingWorker, note("missing", 3), attempt(number=2), step(6)).state == "resolved"


def test_healthy():
    assert judge(MissingWorker, step(1), note("unheard", 3), note("", 3)) is None


def test_a_short_silence_was_only_a_busy_worker():
    back = replace(note("returned", 2), time=20.0)
    assert judge(MissingWorker, note("missing", 2), back, step(6)).severity == "info"
    late = replace(note("returned", 2), time=200.0)
    assert judge(MissingWorker, note("missing", 2), late, step(6)).severity == "critical"


def test_a_note_that_names_nobody_is_told_all_the_same():
    found = judge(MissingWorker, step(0), note("missing"))
    assert found.why == "nothing has been heard of some rank since step 5"
    assert found.ranks == ()
