"""Outcomes and records that lie on disk: the benchmark goes on, and other rules judge the same training again."""

from dataclasses import replace

import pytest
from benchmarks.detection import detect as detecting
from benchmarks.detection.detect import detect
from benchmarks.detection.kept import load_outcomes, load_records
from benchmarks.detection.plan_of_trials import Trial
from benchmarks.detection.setting import USUAL

from unisono.common.schedule import DEFAULT
from unisono.diagnose import engine

HEALTHY = Trial("", "clouds", replace(USUAL["clouds"], steps=140, schedule=DEFAULT), (0, 0), 140, seed=3)
FAULTY = Trial("gradient-x10", "clouds", replace(USUAL["clouds"], steps=100), (2,), 70, seed=4)


class Done:
    def __init__(self, value):
        self.result = lambda: value


class Pool:
    """Performs at once, in this process."""

    def __init__(self, *_):
        pass

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def submit(self, function, *arguments):
        self.performed.append(arguments[0].slug)
        value = function(*arguments)
        return Done(value)


@pytest.fixture
def performed(monkeypatch):
    monkeypatch.setattr(detecting, "ProcessPoolExecutor", Pool)
    monkeypatch.setattr(detecting, "as_completed", iter)
    monkeypatch.setattr(Pool, "performed", [], raising=False)
    return Pool.performed


def test_what_was_done_is_not_done_again(performed, tmp_path):
    found = detect([FAULTY, HEALTHY], 1, tmp_path)
    assert len(performed) == 2
    [faulty] = [one for one in found if one.fault]
    assert faulty.found.steps == faulty.found.readings
    next(tmp_path.glob("healthy*")).unlink()
    again = detect([FAULTY, HEALTHY], 1, tmp_path)
    assert len(performed) == 3
    assert performed[2].startswith("healthy-clouds-4-default")
    assert sorted(map(repr, again)) == sorted(map(repr, found))


def test_kept_records_are_judged_by_the_rules_of_today(performed, tmp_path, monkeypatch):
    records = tmp_path / "records"
    found = detect([HEALTHY], 1, tmp_path / "first", records)
    monkeypatch.setattr(detecting, "train", None)
    assert detect([HEALTHY], 1, tmp_path / "second", records) == found
    monkeypatch.setattr(engine.Diagnosis, "news", lambda self: [])
    alarms = [dict(outcome.manuals) for outcome in detect([HEALTHY], 1, tmp_path / "third", records)]
    assert alarms == [dict(outcome.manuals) for outcome in found]
    [first, second] = load_records(next(records.iterdir()))
    assert [record.kind for record in first[:3]] == ["attempt", "step", "step"]
    assert sum(record.kind == "step" and record.heard for record in second) >= 100 + 4
    assert load_outcomes(next((tmp_path / "third").iterdir()))[0].told == ()


def test_nothing_begins_when_time_is_up_and_what_is_there_is_told(performed, tmp_path):
    assert detect([HEALTHY], 1, tmp_path, until=0.0) == []
    found = detect([HEALTHY], 1, tmp_path)
    assert detect([HEALTHY, FAULTY], 1, tmp_path, until=0.0) == found
    assert len(performed) == 1
