"""Departures that single ranks wrote down: read beside the run, at the end of the attempt they belong to."""

import invented_runs as invented
from unisono.records import DepartureRecord, LocalStep, to_line
from unisono.records.runfile.departures import departures_beside
from unisono.show.analysis.checkup import examine
from unisono.show.analysis.scan_run import look_through

LOST = "its process is gone and left no word"


def went(rank, attempt=1, told_by=1, how="lost", detail=LOST):
    return DepartureRecord(attempt, 19, 100.0, rank, how, detail, told_by)


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


def test_what_is_no_file_or_cannot_be_read_is_passed_over(tmp_path):
    invented.run(tmp_path, workers=2, count=3)
    (tmp_path / "rank-0.jsonl").mkdir()
    (tmp_path / "rank-1.jsonl").write_bytes(b"\xff\n" + b'{"type":"departure","attempt":"x"}\n')
    (tmp_path / "rank-2.jsonl").symlink_to(tmp_path / "nowhere")
    assert departures_beside(tmp_path) == []
    assert departures_beside(tmp_path / "nothing") == []
