"""Departures that single ranks wrote down: read beside the run, at the end of the attempt they belong to."""

from dataclasses import replace

import pytest

import invented_runs as invented
from unisono.records import DepartureRecord, EndRecord, LocalStep, to_line
from unisono.records.runfile.departures import departures_beside
from unisono.show.analysis.checkup import examine
from unisono.show.analysis.scan_run import look_through

LOST = "its process is gone and left no word"
BEGAN = 1e9


def went(rank, attempt=1, told_by=1, how="lost", detail=LOST, after=50.0):
    return DepartureRecord(attempt, 19, BEGAN + after, rank, how, detail, told_by)


def leave(folder, rank, *departures):
    steps = [LocalStep(1, rank, step, 1.0, 0.5) for step in range(1_000)]
    lines = [to_line(record) for record in (*steps, *departures)]
    (folder / f"rank-{rank}.jsonl").write_text("\n".join(lines) + "\n{torn")


def test_rank_0_is_named_by_what_another_rank_wrote_down(tmp_path):
    invented.write(tmp_path, invented.header(), invented.attempt(2), *invented.steps(2, 40))
    leave(tmp_path, 1, went(0), went(1, how="exception", detail="RuntimeError: Connection closed by peer"))
    for path in (tmp_path, tmp_path / "run.jsonl"):
        found = {finding.code: finding for finding in examine(path).findings}
        assert found["UN502"].ranks == (0,)
        assert examine(path).verdict == "critical"


def test_each_stands_at_the_end_of_its_attempt(tmp_path):
    starts = [invented.attempt(2, number=number) for number in (1, 2)]
    invented.write(tmp_path, invented.header(), starts[0], *invented.steps(2, 3), starts[1])
    leave(tmp_path, 1, went(0, attempt=2), went(0, attempt=1), went(0, attempt=3))
    seen = []
    look_through(tmp_path, seen.append)
    assert [(one.kind, getattr(one, "attempt", 0)) for one in seen if one.kind in ("attempt", "departure")] == [
        ("attempt", 1),
        ("departure", 1),
        ("attempt", 2),
        ("departure", 2),
    ]


def end(ended, at=80.0):
    return EndRecord(attempt=1, step=39, time=BEGAN + at, steps=40, heard=40, lost=0, ended=ended, trained=39)


@pytest.mark.parametrize(
    ("how", "ended", "told"),
    [("silence", "finished", []), ("silence", "killed", [(0,)]), ("lost", "finished", [(0,)])],
)
def test_a_rank_0_that_has_finished_well_was_only_silent(tmp_path, how, ended, told):
    invented.write(tmp_path, invented.header(), invented.attempt(2), *invented.steps(2, 40), end(ended))
    leave(tmp_path, 1, went(0, how=how))
    assert [finding.ranks for finding in examine(tmp_path).findings if finding.code == "UN502"] == told


@pytest.mark.parametrize(
    ("departure", "hosts", "told"),
    [
        (went(0, after=-3), ("a", "a"), True),
        (went(0, after=-20), ("a", "a"), False),
        (went(0, after=-20), ("a", "b"), True),
        (went(0, after=-3600), ("a", "b"), False),
        (went(3), ("a", "a"), False),
        (went(0, told_by=3), ("a", "a"), False),
    ],
)
def test_what_a_job_before_has_left_in_the_same_place_accuses_nobody(tmp_path, departure, hosts, told):
    began = invented.attempt(2)
    workers = tuple(replace(worker, host=host) for worker, host in zip(began.workers, hosts, strict=True))
    invented.write(tmp_path, invented.header(), replace(began, workers=workers), *invented.steps(2, 3))
    leave(tmp_path, 1, departure)
    seen = []
    look_through(tmp_path, seen.append)
    assert [one for one in seen if one.kind == "departure"] == [departure] * told


def test_what_is_no_file_or_cannot_be_read_is_passed_over(tmp_path):
    invented.run(tmp_path, workers=2, count=3)
    (tmp_path / "rank-0.jsonl").mkdir()
    (tmp_path / "rank-1.jsonl").write_bytes(b"\xff\n" + b'{"type":"departure","attempt":"x"}\n')
    (tmp_path / "rank-2.jsonl").symlink_to(tmp_path / "nowhere")
    assert departures_beside(tmp_path) == []
    assert departures_beside(tmp_path / "nothing") == []
