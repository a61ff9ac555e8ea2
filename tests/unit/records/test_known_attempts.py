"""What a record says of workers has to fit the attempt; else it is left out, live and by every reader."""

import tracemalloc

import pytest

import invented_runs as invented
from consoles import Console
from unisono.monitor.live_diagnosis import LiveDiagnosis
from unisono.records import (
    BatchRecord,
    CoverageRecord,
    DecisionRecord,
    DepartureRecord,
    FactsRecord,
    NoteRecord,
    ReplicasRecord,
    StepRecord,
    StreamsRecord,
    ValidationRecord,
    to_line,
)
from unisono.records.known_attempts import KnownAttempts
from unisono.records.runfile import read_run, scan
from unisono.show.analysis.checkup import examine
from unisono.show.live_server.tail import Tail

AT = (1, 5, 1e9)
FITTING = [
    StepRecord(*AT, loss_W=(0.5,) * 3, norm_G=(1.0,) * 4),
    StepRecord(*AT),
    FactsRecord(*AT, "loader", differ={"lr": ("1", None, "2")}),
    ReplicasRecord(*AT, 3, weights_W=(0, 1, 0), distance_W=(0.0, 1.0, 0.0)),
    CoverageRecord(*AT, 0, 0, drawn_W=(1, 1, 1)),
    StreamsRecord(*AT, same={"torch": (0, 0, 2)}),
    BatchRecord(*AT, 9),
    ValidationRecord(*AT, 9, 0.5),
    DepartureRecord(*AT, 9, "lost"),
    NoteRecord(*AT, "gone", "missing", (8, None)),
    DecisionRecord(*AT, "1-5-1", "skip", "why", ranks=(7, 8)),
]
UNFITTING = [
    StepRecord(*AT, loss_W=(0.5,) * 4),
    StepRecord(*AT, syncs_W=(1, 1)),
    StepRecord(*AT, cos_WW=((1.0,) * 2,) * 2),
    StepRecord(*AT, norm_G=(1.0,) * 5),
    FactsRecord(*AT, "loader", differ={"lr": ("1", "2")}),
    ReplicasRecord(*AT, 3, weights_W=(0, 1)),
    CoverageRecord(*AT, 0, 0, distinct_W=(1.0,) * 5),
    StreamsRecord(*AT, same={"torch": (0, 0, 2, 3)}),
    BatchRecord(*AT, 2),
    ValidationRecord(*AT, 10, 0.5),
    DepartureRecord(*AT, 300_000_000, "lost"),
    NoteRecord(*AT, "gone", "missing", (1,)),
    DecisionRecord(*AT, "1-5-1", "skip", "why", ranks=(7, 17)),
]


@pytest.fixture
def attempts():
    known = KnownAttempts()
    known.read(to_line(invented.attempt(3, ranks=(7, 8, 9))))
    return known


@pytest.mark.parametrize("record", FITTING, ids=lambda record: record.kind)
def test_what_fits_is_read(attempts, record):
    assert attempts.read(to_line(record)) == record


@pytest.mark.parametrize("record", UNFITTING, ids=lambda record: record.kind)
def test_what_does_not_is_refused(attempts, record):
    with pytest.raises(ValueError, match="attempt"):
        attempts.read(to_line(record))


def test_each_record_is_held_against_its_own_attempt(attempts):
    attempts.read(to_line(invented.attempt(2, number=2)))
    assert attempts.read(to_line(FITTING[0])) == FITTING[0]
    second = StepRecord(2, 5, 1e9, loss_W=(0.5, 0.5))
    assert attempts.read(to_line(second)) == second


def test_without_an_attempt_nothing_is_known_and_all_is_read():
    assert KnownAttempts().read(to_line(UNFITTING[0])) == UNFITTING[0]


def test_every_reader_leaves_out_the_same_and_counts_it(tmp_path):
    bad = StepRecord(1, 200, 1e9 + 200, loss_W=(0.5,) * 3)
    records = [invented.header(), invented.attempt(2), *invented.steps(2, 100, matrices=False), bad, bad]
    run = invented.write(tmp_path, *records, *invented.steps(2, 10, first=201))
    found = [record for _, record in scan(run)]
    assert (found.count(None), read_run(run).bad_count, len(read_run(run).steps)) == (2, 2, 110)
    bite = Tail(run / "run.jsonl").bite()
    assert (list(bite.records), bite.standing.unreadable) == ([one for one in found if one is not None], 2)
    checkup = examine(run)
    assert (checkup.steps, checkup.unreadable_lines) == (110, 2)
    console = Console()
    live = LiveDiagnosis(console, (), None)
    for record in [*records, *invented.steps(2, 10, first=201)]:
        live.see(record)
    live.tell(last=True)
    assert tuple(live.findings) == checkup.findings
    assert "is of 3 workers, and the attempt has 2" in console.complaints[0]


def test_memory_does_not_follow_the_numbers_in_a_file(tmp_path):
    attempt = to_line(invented.attempt(2)).replace('"world":2', '"world":300000000')
    facts = FactsRecord(*AT, "loader", same={"sampler replicas": "4", "sampler rank": "0", "batch size": "8"})
    run = invented.write(tmp_path, invented.header(), *invented.steps(2, 20), facts)
    run_file = run / "run.jsonl"
    run_file.write_text(f"{attempt}\n{run_file.read_text()}")
    tracemalloc.start()
    assert examine(run).unreadable_lines == 1
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 5_000_000
