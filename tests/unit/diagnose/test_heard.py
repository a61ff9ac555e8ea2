"""What was heard of a run, and whether that is enough to call it healthy."""

from dataclasses import replace

import pytest

import invented_runs as invented
from unisono.diagnose import engine
from unisono.diagnose.engine import Diagnosis
from unisono.diagnose.heard import LEAST_SHARE, NEEDED, NO_ATTEMPT, NO_PROCESS
from unisono.records import DepartureRecord, EndRecord, FactsRecord, HeartbeatRecord
from unisono.show.analysis.checkup import examine

EVIDENCE = {
    "compared": 4,
    "fresh": True,
    "samples_W": (8,) * 4,
    "audits": ("reduced", "used", "weights", "state"),
    "parts": 1,
}
INITIAL = FactsRecord(1, 0, 1e9, "initial", same={"weights": "12ab"})
LOADER = FactsRecord(
    *(1, 0, 1e9, "loader"),
    same={"number": "0", "sampler": "DistributedSampler", "sampler replicas": "4", "shuffle": "yes"},
    differ={"sampler rank": ("0", "1", "2", "3")},
)


def end(ended="finished", number=1):
    return EndRecord(number, 99, 1e9 + 99, 100, 100, 0, ended=ended)


def run(*more, workers=4, count=100, loader=LOADER, initial=INITIAL, **fields):
    evidence = EVIDENCE | {"samples_W": (8,) * workers} | fields
    steps = invented.steps(workers, count, matrices=False, **evidence)
    return [record for record in (invented.attempt(workers), initial, loader, *steps, *more) if record is not None]


def heard(*records, ignore=()):
    diagnosis = Diagnosis(ignore)
    for record in records:
        diagnosis.see(record)
    assert [found for found in diagnosis.findings() if found.at_least("warning")] == []
    return diagnosis.heard()


def silent_from(step, rank=1, workers=4):
    return {
        "finite_W": lambda now: tuple(None if worker == rank and now >= step else True for worker in range(workers))
    }


def two_fall_silent(step):
    return (True, None if step >= 60 else True, None if step >= 30 else True, True)


def lost_directions(every):
    return {name: (lambda step: () if step % every else (0.2,) * 4) for name in ("cos_W", "window_cos_W")} | {
        name: (lambda step: None if step % every else 1) for name in ("cos_mean", "window_start", "window_steps")
    }


def test_a_run_that_was_heard_whole():
    found = heard(*run(end()))
    assert found.as_dict() == {
        "level": "gradients",
        "steps": 100,
        "gradients": 1.0,
        "directions": 1.0,
        "silent": [],
        "ended": "finished",
        "why": None,
        "not_judged": [],
        "idle": 0.0,
    }


@pytest.mark.parametrize("workers", [2, 4])
def test_gradients_of_zeros_have_no_direction_and_do_no_harm(workers):
    """All margins are met, or no answer of a group is better than another."""
    zero, others = {"norm_W": 0.0, "cos_W": None}, {"norm_W": 1.0, "cos_W": None if workers == 2 else 0.2}

    def of(name):
        usual = {"norm_W": 1.0, "cos_W": 0.2}
        return lambda step: tuple(
            usual[name] if step % 3 == 0 else (zero if worker == step % workers else others)[name]
            for worker in range(workers)
        )

    found = heard(*run(end(), workers=workers, loader=None, norm_W=of("norm_W"), cos_W=of("cos_W")))
    assert (found.directions, found.why) == (1.0, None)


def test_a_worker_whose_data_have_ended_inside_join_is_not_missed():
    joined = FactsRecord(1, 0, 1e9, "model", same={"data": "uneven, inside Join"})
    records = run(end(), **silent_from(40))
    assert heard(*records).too_little == "rank 1 was not heard since step 40"
    assert heard(*records[:1], joined, *records[1:]).silent == {}


def test_every_check_that_healthy_needs_is_a_rule():
    codes = {"UN101", "UN102", "UN106", "UN202", "UN301", "UN302", "UN303", "UN404", "UN501", "UN502"}
    assert set(NEEDED) == codes


@pytest.mark.parametrize(
    ("records", "why"),
    [
        (run(end(), count=31), "31 steps were heard, and it takes 32 to judge a run"),
        (run(end(), workers=1, loader=None), "one worker alone: there is nobody to compare it with"),
        (run(end(), **silent_from(40)), "rank 1 was not heard since step 40"),
        (run(end(), **silent_from(0)), "rank 1 was never heard"),
        (
            run(end(), finite_W=two_fall_silent),
            "rank 2 was not heard since step 30, rank 1 was not heard since step 60",
        ),
        (run(end(), **lost_directions(every=4)), "directions were heard in 25 % of the steps: too few for UN501"),
        (
            run(end(), missed=lambda step: step % 3 > 0, heard=lambda step: step % 3 == 0),
            "gradients were heard in 34 % of the steps: too few for UN501",
        ),
        (run(end(), initial=None), "UN202 has not been possible: it needs the first backward pass of every worker"),
        ([invented.attempt(4), end()], "nothing was heard"),
        ([invented.header()], NO_PROCESS),
    ],
)
def test_too_little_was_heard(records, why):
    found = heard(*records)
    assert (found.too_little, found.why) == (why, why)


def test_steps_without_any_record_should_have_been_heard_too():
    """169 of 600 directions: some came without their direction, some steps did not come at all."""
    steps = [record for record in run(end(), count=600, **lost_directions(every=2)) if getattr(record, "step", 0) % 9]
    found = heard(invented.attempt(4), INITIAL, LOADER, *steps, end())
    assert found.directions == pytest.approx(0.44, abs=0.01)
    assert found.too_little == "directions were heard in 44 % of the steps: too few for UN501"


def test_half_of_the_directions_are_enough_for_windows():
    assert LEAST_SHARE == 0.5
    assert heard(*run(end(), **lost_directions(every=2))).too_little is None


def test_listening_rarely_as_planned_is_no_loss():
    found = heard(*run(end(), count=400, every=10))
    assert (found.steps, found.gradients, found.directions, found.too_little) == (40, 1.0, 1.0, None)
    assert heard(*run(end(), count=310, every=10)).too_little.startswith("31 steps were heard")


@pytest.mark.parametrize(
    ("options", "not_judged"),
    [
        ({"loader": None}, ("data order",)),
        ({"compared": 0, "fresh": False, "samples_W": (), "noise_scale": None}, ("duplicated data",)),
        ({"audits": (), "parts": 0}, ("equal weights", "synchronisation")),
        ({"samples_W": lambda step: (8, 8, 8, 9)}, ("directions",)),
    ],
)
def test_what_cannot_exist_is_named_and_does_no_harm(options, not_judged):
    found = heard(*run(end(), **options))
    assert (found.too_little, found.not_judged) == (None, not_judged)


def test_what_was_turned_off_is_not_missed():
    assert heard(*run(end(), initial=None), ignore=("UN202",)).too_little is None


def test_at_the_optimizer_only():
    nothing = {"norm_W": (), "cos_W": (), "cos_mean": None, "window_steps": None}
    found = heard(*run(end(), heard=False, **nothing))
    assert (found.level, found.steps, found.gradients, found.too_little) == ("optimizer", 100, 0.0, None)


def test_a_worker_that_came_back_is_not_silent():
    gone = {"finite_W": lambda step: tuple(None if worker == 1 and 40 <= step < 60 else True for worker in range(4))}
    assert heard(*run(end(), **gone)).silent == {}


def test_two_late_reports_at_the_end_are_no_silence():
    assert heard(*run(end(), **silent_from(98))).silent == {}
    assert heard(*run(end(), **silent_from(97))).silent == {1: 97}


NOW = 2e9


def now(kind, *values, ago=0.0):
    return kind(1, 99, NOW - ago, *values)


@pytest.mark.parametrize(
    ("last", "ended"),
    [
        ((), "killed"),
        ((end("crashed"),), "crashed"),
        ((end("killed"),), "killed"),
        ((end("unknown"),), "unknown"),
        ((end("of another version"),), "unknown"),
        ((now(HeartbeatRecord, ago=20),), "running"),
        ((now(HeartbeatRecord, ago=40),), "killed"),
        ((now(DepartureRecord, 1, "exception"),), "crashed"),
        ((now(DepartureRecord, 1, "exit"),), "crashed"),
        ((now(DepartureRecord, 1, "signal"),), "killed"),
        ((now(DepartureRecord, 1, "silence"),), "running"),
        ((now(DepartureRecord, 1, "silence", ago=40),), "killed"),
        ((end("crashed"), invented.attempt(4, 2), now(HeartbeatRecord)), "running"),
    ],
)
def test_how_the_job_ended(last, ended, monkeypatch):
    monkeypatch.setattr(engine.time, "time", lambda: NOW)
    diagnosis = Diagnosis()
    for record in run(*last):
        diagnosis.see(record)
    found = diagnosis.heard()
    assert found.ended == ended
    assert (found.end is not None) == (ended in ("crashed", "killed"))


def test_directions_that_no_longer_come_are_missed_however_long_the_run():
    from_400 = {name: (lambda step: () if step >= 400 else (0.2,) * 4) for name in ("cos_W", "window_cos_W")} | {
        name: (lambda step: None if step >= 400 else 1) for name in ("cos_mean", "window_start", "window_steps")
    }
    found = heard(*run(end(), count=440, **from_400))
    assert found.why == "directions were heard at 0 of the last 32 readings: too few for UN501"
    assert heard(*run(end(), count=410, **from_400)).why is None


def test_a_worker_without_gradients_is_silent_although_its_steps_are_told():
    norms = {"norm_W": lambda step: (1.0, None if step >= 90 else 1.0, 1.0, 1.0)}
    assert heard(*run(end(), **norms)).silent == {1: 90}


def test_nothing_was_heard_of_the_newest_attempt():
    assert heard(*run(), invented.attempt(4, 2), end(number=2)).why == "nothing was heard of attempt 2"


@pytest.mark.parametrize(
    ("promise", "why"),
    [("promised", "UN301 has not been possible"), ("not promised", None)],
)
def test_equal_weights_are_needed_where_the_wrapper_promises_them(promise, why):
    model = FactsRecord(1, 0, 1e9, "model", same={"equal weights": promise})
    found = heard(*run(model, end(), audits=()))
    assert (found.why or "").startswith(why) if why else found.why is None
    assert "equal weights" in found.not_judged


def test_the_end_is_where_a_rank_was_last_seen(monkeypatch):
    monkeypatch.setattr(engine.time, "time", lambda: NOW)
    diagnosis = Diagnosis()
    for record in run(DepartureRecord(1, 119, NOW, 0, "lost", told_by=1)):
        diagnosis.see(record)
    assert diagnosis.heard().end == "the job was killed after step 119"


def test_a_file_from_before_keeps_its_verdict():
    assert heard(*run(end("unknown"), count=5)).why is None
    start, *others = run(count=5)
    without_end = heard(replace(start, tells_end=False), *others)
    assert (without_end.ended, without_end.why) == ("unknown", None)


def test_a_job_that_is_over_before_its_first_step():
    assert (
        heard(invented.attempt(4), end("crashed")).why == "the job crashed before its first step, and nothing was heard"
    )


def test_a_header_alone_is_no_sign_of_an_end():
    assert (heard(invented.header()).ended, heard(invented.header()).end) == ("unknown", None)


def test_a_run_whose_beginning_cannot_be_read_is_not_judged():
    """A damaged line is no file from before it was written down how a job ends."""
    diagnosis = Diagnosis()
    for record in [*run()][1:]:
        diagnosis.see(record)
    found = diagnosis.heard()
    assert (found.ended, found.why) == ("unknown", NO_ATTEMPT)


def test_an_exit_code_is_told():
    found = heard(*run(replace(end("crashed"), detail="exit code 3")))
    assert (found.ended, found.why) == ("crashed", "the job ended with exit code 3 after step 99")


@pytest.mark.parametrize(
    ("trained", "why"), [(101, None), (102, "nothing was heard after step 99, and training went on")]
)
def test_steps_that_were_trained_after_the_last_record(trained, why):
    """As where the store is gone with its launcher, and the workers train on."""
    found = heard(*run(replace(end(), trained=trained)))
    assert (found.why or "").startswith(why or "")
    assert (found.why is None) is (why is None)


@pytest.mark.parametrize(("seconds", "told"), [(10, False), (70, True)])
def test_a_job_that_runs_and_does_not_get_on(monkeypatch, tmp_path, seconds, told):
    """A rank may hang in its own code while unisono's threads live on."""
    newest = 1e9 + 99 + seconds
    monkeypatch.setattr(engine.time, "time", lambda: newest + 5)
    invented.write(tmp_path / "run", invented.header(), *run(HeartbeatRecord(1, 99, newest)))
    found = examine(tmp_path / "run")
    assert (found.heard.ended, found.heard.idle) == ("running", seconds)
    assert found.verdict_text.startswith("healthy so far: 100 steps")
    assert (f"no step for {seconds} s" in found.verdict_text) is told
