from dataclasses import replace

import pytest

from unisono.diagnose.rules.un502_missing_worker import MissingWorker
from unisono.records import DepartureRecord
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


def went(rank, how, detail="", told_by=None, at=9):
    return DepartureRecord(1, at, 50.0, rank, how, detail, rank if told_by is None else told_by)


LOST = "RuntimeError: Connection closed by peer [127.0.0.1]:410"


def test_a_worker_that_goes_is_named_with_step_host_and_how():
    found = judge(MissingWorker, step(9), went(3, "exception", "ValueError: as planned"), went(0, "exception", LOST))
    assert (found.severity, found.ranks, found.where, found.first_step) == ("critical", (3,), ("host3 cuda:3",), 9)
    assert found.why == "rank 3 (on host3) was ended by an exception after step 9: ValueError: as planned"
    assert found.evidence == {"went_after_step": 9, "how": "exception", "detail": "ValueError: as planned"}
    assert [cause.slug for cause in found.causes] == ["raised"]


def test_a_consequence_that_was_heard_of_first_is_not_named_any_more():
    found = judge(MissingWorker, step(9), went(0, "exception", LOST), went(2, "lost", "gone", told_by=0))
    assert found.ranks == (2,)


def test_nobody_is_named_where_nobody_knows():
    found = judge(MissingWorker, step(9), went(0, "exception", LOST))
    assert (found.ranks, found.state) == ((), "open")
    assert "who went first is not known" in found.why


def test_a_job_that_is_stopped_has_lost_nobody():
    assert judge(MissingWorker, step(9), *(went(rank, "signal", "SIGTERM") for rank in range(4))) is None


def test_silence_is_rather_a_worker_that_hangs():
    found = judge(MissingWorker, step(9), went(1, "silence", "no sign of life for 5 s", told_by=0))
    assert (found.ranks, found.causes[0].slug) == ((1,), "worker-hangs")
    gone, back = went(1, "silence", told_by=0), replace(note("returned", 1), time=60.0)
    assert judge(MissingWorker, note("missing", 1), gone, back, step(10)).severity == "info"


def test_after_a_departure_steps_that_were_still_on_their_way_excuse_nothing():
    assert judge(MissingWorker, went(1, "lost", told_by=0), step(9), step(10)).state == "open"
    assert judge(MissingWorker, went(1, "lost", told_by=0), attempt(number=2), step(11)).state == "resolved"


@pytest.mark.parametrize(
    ("how", "cause"), [("exception", "raised"), ("exit", "exited"), ("signal", "sent-away"), ("lost", "process-died")]
)
def test_the_cause_is_what_its_last_word_says(how, cause):
    found = judge(MissingWorker, step(9), went(3, how))
    assert [one.slug for one in found.causes] == [cause]
