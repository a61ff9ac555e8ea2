"""A file that grows, breaks off, is replaced or is full of noise, seen from its end."""

import os
import random
from itertools import pairwise

import pytest

from unisono.records import RunRecord, StepRecord, to_line
from unisono.records.runfile import RunWriter, scan
from unisono.records.runfile.lines import LINE_LIMIT
from unisono.show.live_server import tail as tail_module
from unisono.show.live_server.tail import Tail
from unit.show.live_server.serving import end, lines, start, step

HEADER = RunRecord(1, "run", 1.5, "train.py", "0.1")
OTHER = RunRecord(1, "other", 2.5, "train.py", "0.1")


@pytest.fixture
def file(tmp_path):
    return tmp_path / "run.jsonl"


def append(file, content):
    with file.open("ab") as writing:
        writing.write(content)


def rest(tail):
    """All records that there are now, and whether it began anew."""
    records, anew = [], False
    while True:
        bite = tail.bite()
        records = [] if bite.anew else records
        anew = anew or bite.anew
        records += bite.records
        if not bite.standing.more:
            return records, anew


def steps(tail):
    return [record.step for record in rest(tail)[0] if isinstance(record, StepRecord)]


def test_what_was_added_is_read_once(file):
    tail = Tail(file)
    assert rest(tail) == ([], False)
    append(file, lines(HEADER, start(), step(0)))
    assert rest(tail) == ([HEADER, start(), step(0)], False)
    assert rest(tail) == ([], False)
    append(file, lines(step(1), end(1), start(2)))
    assert rest(tail) == ([step(1), end(1), start(2)], False)


def test_a_torn_line_is_waited_for_byte_by_byte(file):
    tail, content = Tail(file), lines(HEADER, step(0))
    seen = []
    for byte in content:
        append(file, bytes([byte]))
        seen += rest(tail)[0]
    assert seen == [HEADER, step(0)]
    assert tail.bite().standing.unreadable == 0


def test_a_torn_line_that_the_writer_repairs_is_never_counted(file):
    append(file, lines(HEADER, step(0)) + lines(step(1))[:-5])
    tail = Tail(file)
    assert steps(tail) == [0]
    writer = RunWriter(file)
    writer.write(step(2))
    writer.close()
    assert (steps(tail), tail.bite().standing.unreadable) == ([2], 0)


def replace_by_rename(file, content):
    file.with_suffix(".new").write_bytes(content)
    file.with_suffix(".new").replace(file)


def replace_after_deletion(file, content):
    """The new file often gets the inode of the old one."""
    file.unlink()
    file.write_bytes(content)


def write_over(file, content):
    with file.open("r+b") as writing:
        writing.truncate()
        writing.write(content)
        writing.truncate()


@pytest.mark.parametrize("size", [1, 3, 5], ids=["shorter", "as long", "longer"])
@pytest.mark.parametrize("replace", [replace_by_rename, replace_after_deletion, write_over])
def test_another_file_begins_anew(file, replace, size):
    append(file, lines(HEADER, *map(step, range(3))))
    tail = Tail(file)
    assert steps(tail) == [0, 1, 2]
    replace(file, lines(RunRecord(1, "run", 2.5, "train.py", "0.1"), *map(step, range(7, 7 + size))))
    records, anew = rest(tail)
    assert anew
    assert [record.step for record in records[1:]] == list(range(7, 7 + size))


def test_a_file_that_only_begins_alike_is_another(file):
    """As when an older copy of a run is put back."""
    append(file, lines(HEADER, *map(step, range(40))))
    tail = Tail(file)
    assert len(steps(tail)) == 40
    replace_by_rename(file, lines(HEADER, *map(step, range(20)), *map(step, range(90, 120))))
    assert steps(tail) == [*range(20), *range(90, 120)]


def test_a_file_that_was_cut_begins_anew(file):
    append(file, lines(HEADER, *map(step, range(40))))
    tail = Tail(file)
    assert len(steps(tail)) == 40
    os.truncate(file, len(lines(HEADER, *map(step, range(20)))))
    assert steps(tail) == list(range(20))


def test_an_emptied_file_begins_anew(file):
    append(file, lines(HEADER, step(0)))
    tail = Tail(file)
    rest(tail)
    os.truncate(file, 0)
    assert rest(tail) == ([], True)
    append(file, lines(OTHER))
    assert rest(tail) == ([OTHER], False)


def test_a_file_that_goes_and_comes_back_is_read_on(file):
    append(file, lines(HEADER, step(0)))
    tail = Tail(file)
    rest(tail)
    file.rename(file.with_suffix(".away"))
    gone = tail.bite().standing
    assert (gone.there, gone.position > 0) == (False, True)
    file.with_suffix(".away").rename(file)
    append(file, lines(step(1)))
    assert rest(tail) == ([step(1)], False)


def test_what_is_no_regular_file_is_not_there(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path, tmp_path / "pipe", tmp_path / "none" / "run.jsonl", tmp_path / ("x" * 500)):
        assert not Tail(path).bite().standing.there


NOISE = {
    "no JSON": (b"hello\n", 1),
    "not UTF-8": (b"\xff\xfe\n", 1),
    "zeros": (b"\0" * 512 + b"\n", 1),
    "NaN": (b'{"type":"step","attempt":1,"step":9,"time":NaN}\n', 1),
    "deep": (b"[" * 100_000 + b"\n", 1),
    "another run": (lines(OTHER), 1),
    "the header again": (lines(HEADER), 0),
    "blank": (b"\n \r\n", 0),
    "newer kind": (b'{"type":"later"}\n', 0),
    "CRLF": (lines(start())[:-1] + b"\r\n", 0),
    "10 MB": (b"x" * 10_000_000 + b"\n", 1),
    "just too long": (b"x" * LINE_LIMIT + b"\n", 1),
    "as long as may be": (b'{"type":"later","x":"' + b"x" * (LINE_LIMIT - 24) + b'"}\n', 0),
}


@pytest.mark.parametrize(("noise", "unreadable"), NOISE.values(), ids=NOISE)
def test_unreadable_lines_are_counted_and_passed_over(file, noise, unreadable):
    append(file, lines(HEADER, step(0)) + noise + lines(step(1)))
    tail = Tail(file)
    assert steps(tail) == [0, 1]
    assert tail.bite().standing.unreadable == unreadable


def test_a_line_too_long_is_passed_over_while_it_is_written(file):
    append(file, lines(HEADER, step(0)))
    tail = Tail(file)
    seen = steps(tail)
    for _ in range(30):
        append(file, b"x" * 100_000)
        seen += steps(tail)
    append(file, b"\n" + lines(step(1)))
    assert seen + steps(tail) == [0, 1]
    assert tail.bite().standing.unreadable == 1


def test_a_byte_order_mark_is_no_part_of_the_first_line(file):
    append(file, b"\xef\xbb\xbf" + lines(HEADER))
    assert rest(Tail(file)) == ([HEADER], False)


def test_a_newer_format_is_not_guessed_at(file):
    append(file, to_line(HEADER).replace('"format":1', '"format":2').encode() + b"\n" + lines(step(0)))
    tail = Tail(file)
    assert rest(tail) == ([], False)
    assert tail.bite().standing.newer_format == 2


def test_a_long_file_is_read_in_bites(file):
    append(file, lines(HEADER, *map(step, range(10_000))))
    tail, sizes = Tail(file), []
    while (bite := tail.bite()).standing.more:
        sizes.append(bite.standing.position)
    assert len(sizes) == 5
    assert max(later - earlier for earlier, later in pairwise(sizes)) <= tail_module.BITE


def test_in_whatever_pieces_a_file_grows_the_records_are_those_of_the_reader(file, monkeypatch):
    monkeypatch.setattr(tail_module, "BITE", 200)
    chance = random.Random(3)
    records = [
        HEADER,
        start(),
        *(StepRecord(1, n, 1.5, audits=("weights",) * chance.randrange(80)) for n in range(300)),
    ]
    content = lines(*records)
    tail, seen, place = Tail(file), [], 0
    while place < len(content):
        size = chance.randrange(1, 700)
        append(file, content[place : place + size])
        place += size
        seen += rest(tail)[0] if chance.random() < 0.7 else tail.bite().records
    seen += rest(tail)[0]
    assert seen == records == [record for _, record in scan(file)]
