import errno
import gzip
import os
import stat
import subprocess
import sys

import pytest

from unisono.records import AttemptRecord, EndRecord, LocalStep, NoteRecord, RunRecord, StepRecord, to_line
from unisono.records.runfile import RunWriter, continue_or_create, new_run_dir, read_run, scan
from unisono.records.runfile import appending as appending_module
from unisono.records.runfile import lines as lines_module
from unisono.records.runfile import writer as writer_module

HEADER = RunRecord(1, "r", 1.5, "train.py", "0.1.0")
START = AttemptRecord(1, 1.5, 2, 0, ())


def step(number, attempt=1, **values):
    return StepRecord(attempt, number, 1.5, **values)


def data(*records):
    return "".join(to_line(record) + "\n" for record in records).encode()


@pytest.fixture
def run_file(tmp_path):
    return tmp_path / "run.jsonl"


@pytest.fixture
def filled(run_file):
    run_file.write_bytes(data(HEADER, START, step(0), step(1)))
    return run_file


@pytest.fixture
def clock(monkeypatch):
    """What the writer takes for the time; set `clock[0]`."""
    now = [1000.0]
    monkeypatch.setattr(writer_module, "monotonic", lambda: now[0])
    return now


DAMAGES = {
    "torn middle": (b'{"type":"st\n', 1),
    "torn end": (b'{"type":"st', 1),
    "zeros": (b"\0" * 512 + b"\n", 1),
    "zeros at the end": (b"\0" * 512, 1),
    "invalid UTF-8": (b"\xff\xfe\n", 1),
    "NaN": (b'{"type":"step","attempt":1,"step":9,"time":NaN}\n', 1),
    "glued": (data(step(9))[:-1] + data(step(9)), 1),
    "blank": (b"\n  \r\n", 0),
    "newer kind": (b'{"type":"later"}\n', 0),
    "another run": (data(RunRecord(1, "other", 1.5, "", "")), 1),
    "the header again": (data(HEADER), 0),
    "10 MB line": (b"x" * 10_000_000 + b"\n", 1),
    "10 MB line at the end": (b"x" * 10_000_000, 1),
    "10 MB of braces": (b"{" * 10_000_000 + b"\n", 1),
}


NOT_RUNS = {
    "empty": (b"", "Found none"),
    "newline": (b"\n", "Found none"),
    "text": (b"hello\nworld\n", "2 unreadable lines"),
    "gzip": (gzip.compress(data(HEADER)), "gzip"),
    "zip": (b"PK\x03\x04\n", "zip"),
    "other json": (b'{"a":1}\n', "1 unreadable lines"),
    "one rank": (data(LocalStep(1, 3, 9, 1.5)), "single rank"),
    "newer format": (data(RunRecord(2, "r", 1.5, "", "9.0")), "format 2.*pip install -U"),
}


class TestReading:
    def test_a_run_is_its_directory_or_its_file(self, filled):
        assert read_run(filled) == read_run(filled.parent) == read_run(str(filled))

    def test_records_are_sorted_by_kind_in_file_order(self, run_file):
        note, end = NoteRecord(1, 0, 1.5, "late"), EndRecord(1, 1, 1.5, 2, 0, 0)
        run_file.write_bytes(data(HEADER, START, step(0), note, step(1), end))
        run = read_run(run_file)
        assert (run.header, run.attempts, run.notes, run.ends) == (HEADER, (START,), (note,), (end,))
        assert run.steps == (step(0), step(1))
        assert (run.bad_lines, run.bad_count) == ((), 0)

    @pytest.mark.parametrize(("damage", "bad"), DAMAGES.values(), ids=DAMAGES)
    def test_damage_is_counted_and_the_rest_read(self, run_file, damage, bad):
        run_file.write_bytes(data(HEADER, step(0)) + damage)
        run = read_run(run_file)
        assert run.steps == (step(0),)
        assert (run.bad_lines, run.bad_count) == ((3,) * bad, bad)

    def test_a_line_over_the_limit_is_never_held(self, run_file, monkeypatch):
        monkeypatch.setattr(lines_module, "LINE_LIMIT", 500)
        run_file.write_bytes(data(HEADER) + b"x" * 5000 + b"\n" + data(step(0)) + b"x" * 500 + b"\n" + data(step(1)))
        run = read_run(run_file)
        assert (run.bad_lines, run.steps) == ((2, 4), (step(0), step(1)))

    def test_byte_order_mark_and_windows_line_ends(self, run_file):
        run_file.write_bytes(b"\xef\xbb\xbf" + data(HEADER, step(0)).replace(b"\n", b"\r\n"))
        assert (read_run(run_file).header, read_run(run_file).bad_count) == (HEADER, 0)

    def test_a_last_line_without_newline_counts_if_it_is_whole(self, run_file):
        run_file.write_bytes(data(HEADER, step(0))[:-1])
        assert read_run(run_file).steps == (step(0),)

    def test_only_the_first_hundred_bad_lines_are_named(self, run_file):
        run_file.write_bytes(data(HEADER) + b"bad\n" * 250)
        run = read_run(run_file)
        assert (run.bad_lines, run.bad_count) == (tuple(range(2, 102)), 250)

    def test_a_lost_header_does_not_lose_the_run(self, run_file):
        run_file.write_bytes(b"\0\n" + data(START, step(0)))
        run = read_run(run_file)
        assert (run.header.run, run.steps, run.bad_lines) == (run_file.parent.name, (step(0),), (1,))

    def test_a_file_may_shrink_while_it_is_read(self, run_file):
        run_file.write_bytes(data(HEADER) + data(step(0)) * 10_000)
        found = scan(run_file)
        next(found)
        os.truncate(run_file, 10)
        assert len(list(found)) < 10_000

    def test_the_newest_line_is_that_of_the_record(self, run_file):
        writer = RunWriter(run_file)
        writer.write(step(7, loss_mean=0.1234567891))
        assert writer.newest_line == to_line(step(7, loss_mean=0.1234567891))
        writer.write(step("seven"))
        assert writer.newest_line == ""

    def test_nothing_is_written_after_close(self, run_file):
        writer = RunWriter(run_file)
        writer.write(HEADER)
        writer.close()
        writer.close()
        writer.sync()
        assert not writer.write(step(0))
        assert (writer.dropped, run_file.read_bytes()) == (1, data(HEADER))

    def test_an_attempt_takes_the_place_of_all_that_was_done_from_its_first_step_on(self, run_file):
        first = [step(number) for number in range(10)]
        second = [step(number, attempt=2) for number in (4, 5)]
        run_file.write_bytes(data(HEADER, START, *first, AttemptRecord(2, 2.5, 2, 4, ()), *second))
        timeline = read_run(run_file).timeline()
        assert [(record.attempt, record.step) for record in timeline] == [(1, n) for n in range(4)] + [(2, 4), (2, 5)]


class TestDisk:
    @pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO, errno.EDQUOT, errno.ESTALE, errno.EACCES])
    def test_errors_are_counted_and_writing_resumes(self, run_file, monkeypatch, code):
        writer = RunWriter(run_file)
        writer.write(HEADER)
        with monkeypatch.context() as patch:
            patch.setattr(os, "write", lambda *_: _raise(code))
            assert not any(writer.write(step(number)) for number in range(3))
        assert (writer.dropped, os.strerror(code) in writer.last_error) == (3, True)
        assert writer.write(step(3))
        assert run_file.read_bytes() == data(HEADER, step(3))

    def test_half_a_record_is_taken_back(self, run_file, monkeypatch):
        writer, write = RunWriter(run_file), os.write
        writer.write(HEADER)
        with monkeypatch.context() as patch:
            patch.setattr(os, "write", lambda fd, line: write(fd, line[:20]))
            assert not writer.write(step(0))
        assert run_file.read_bytes() == data(HEADER)
        assert writer.write(step(1))
        assert (run_file.read_bytes(), writer.dropped) == (data(HEADER, step(1)), 1)

    def test_half_a_record_is_taken_back_later_if_not_at_once(self, run_file, monkeypatch):
        writer, write = RunWriter(run_file), os.write
        writer.write(HEADER)
        with monkeypatch.context() as patch:
            patch.setattr(os, "write", lambda fd, line: write(fd, line[:20]))
            patch.setattr(os, "ftruncate", lambda *_: _raise(errno.EIO))
            assert not any(writer.write(step(number)) for number in range(3))
        assert writer.write(step(3))
        assert (run_file.read_bytes(), writer.dropped) == (data(HEADER, step(3)), 3)

    def test_headers_are_owed_until_the_disk_takes_them(self, run_file, monkeypatch):
        writer = RunWriter(run_file)
        with monkeypatch.context() as patch:
            patch.setattr(os, "write", lambda *_: _raise(errno.ENOSPC))
            assert not any([writer.write(HEADER), writer.write(START), writer.write(step(0))])
        assert writer.dropped == 3
        assert writer.write(step(1))
        assert (run_file.read_bytes(), writer.dropped) == (data(HEADER, START, step(1)), 1)

    def test_a_full_device(self, tmp_path, monkeypatch):
        # There is one such device for everybody on this machine: whoever tests at the same time would hold its lock.
        monkeypatch.setattr(appending_module.fcntl, "flock", lambda *_: None)
        (tmp_path / "run.jsonl").symlink_to("/dev/full")
        writer = RunWriter(tmp_path)
        assert not any(writer.write(record) for record in (HEADER, START, step(0), step(1)))
        writer.sync()
        assert writer.dropped == 4

    @pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
    def test_a_forked_child_that_outlives_its_parents_writer_does_not_hold_the_run(self, run_file):
        """As the workers of a data loader do, while the job is started again."""
        writer = RunWriter(run_file)
        writer.write(HEADER)
        (reading, writing), (ready, alive) = os.pipe(), os.pipe()
        child = os.fork()
        if child == 0:
            os.close(writing)
            os.write(alive, b".")
            os.read(reading, 1)  # until the test is over
            os._exit(0)
        try:
            os.read(ready, 1)
            writer.close()
            again = RunWriter(run_file)
            assert again.write(step(0))
            again.close()
        finally:
            for end in (reading, writing, ready, alive):
                os.close(end)
            os.waitpid(child, 0)

    def test_a_file_size_limit_tears_no_line(self, tmp_path):
        script = """
import resource, sys
from unisono.records import RunRecord, StepRecord
from unisono.records.runfile import RunWriter
writer = RunWriter(sys.argv[1])
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, resource.RLIM_INFINITY))
writer.write(RunRecord(1, "r", 1.5, "", ""))
written = [writer.write(StepRecord(1, number, 1.5, loss_W=(0.5,) * 10)) for number in range(100)]
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)
writer.write(StepRecord(1, 100, 1.5))
print(sum(written), writer.dropped)
"""
        result = subprocess.run([sys.executable, "-c", script, tmp_path], capture_output=True, text=True, check=True)
        written, dropped = map(int, result.stdout.split())
        run = read_run(tmp_path)
        assert 0 < written < 100
        assert (written + dropped, run.bad_count) == (100, 0)
        assert [record.step for record in run.steps] == [*range(written), 100]

    def test_a_deleted_directory_is_made_again_with_its_headers(self, tmp_path, clock):
        writer = RunWriter(tmp_path / "run")
        for record in (HEADER, START, step(0)):
            writer.write(record)
        clock[0] += 2
        _remove(writer.path)
        assert writer.write(step(1))
        assert writer.path.read_bytes() == data(HEADER, START, step(1))
        _remove(writer.path)
        assert not writer.write(step(2))
        clock[0] += 2
        assert writer.write(step(3))
        assert writer.path.read_bytes() == data(HEADER, START, step(3))
        assert writer.dropped == 1

    def test_a_renamed_directory_is_followed(self, tmp_path):
        writer = RunWriter(tmp_path / "run")
        writer.write(HEADER)
        (tmp_path / "run").rename(tmp_path / "moved")
        assert writer.write(step(0))
        assert read_run(tmp_path / "moved").steps == (step(0),)

    @pytest.mark.parametrize("code", [errno.EACCES, errno.EROFS, errno.ENAMETOOLONG])
    def test_a_place_that_cannot_be_written_is_tried_again_each_second(self, run_file, monkeypatch, clock, code):
        attempts = []
        with monkeypatch.context() as patch:
            patch.setattr(os, "open", lambda *_: attempts.append(1) or _raise(code))
            writer = RunWriter(run_file)
            assert writer.needs_header
            assert not any(writer.write(record) for record in (HEADER, step(0), step(1)))
        assert (len(attempts), writer.dropped, os.strerror(code) in writer.last_error) == (1, 3, True)
        clock[0] += 2
        assert writer.write(step(2))
        assert (run_file.read_bytes(), writer.dropped) == (data(HEADER, step(2)), 2)

    def test_a_file_in_the_place_of_the_directory(self, tmp_path):
        (tmp_path / "run").write_text("mine")
        writer = RunWriter(tmp_path / "run")
        assert not writer.write(HEADER)
        assert (tmp_path / "run").read_text() == "mine"


class TestDirectories:
    def test_a_run_is_named_by_time_and_script(self, tmp_path):
        run_dir = new_run_dir(tmp_path / "unisono-runs", "src/my train.py", now=0.0)
        assert run_dir.name.endswith("-my-train")
        assert len(run_dir.name) == len("YYYYmmdd-HHMMSS-my-train")
        assert stat.S_IMODE(run_dir.stat().st_mode) == 0o700
        assert (tmp_path / "unisono-runs" / ".gitignore").read_text() == "*\n"

    def test_names_do_not_collide_and_latest_follows(self, tmp_path):
        runs = [new_run_dir(tmp_path, "pkg.train", now=0.0) for _ in range(3)]
        assert [run.name.partition("pkg.train")[2] for run in runs] == ["", "-2", "-3"]
        assert os.readlink(tmp_path / "latest") == runs[2].name
        assert sorted(path.name for path in tmp_path.iterdir() if path.name.startswith(".")) == [".gitignore"]

    @pytest.mark.parametrize("script", ["", "..", "/", "a\0b", "x" * 500, "é\n"])
    def test_any_script_gives_a_name(self, tmp_path, script):
        assert new_run_dir(tmp_path, script).parent == tmp_path

    def test_a_folder_named_latest_is_left_alone(self, tmp_path):
        (tmp_path / "latest").mkdir()
        new_run_dir(tmp_path, "train.py")
        assert not (tmp_path / "latest").is_symlink()

    def test_attempts_are_counted_on(self, tmp_path):
        assert continue_or_create(tmp_path / "a" / "run") == 1
        assert continue_or_create(tmp_path / "a" / "run") == 1
        run_file = tmp_path / "a" / "run" / "run.jsonl"
        run_file.write_bytes(data(HEADER, START))
        assert continue_or_create(tmp_path / "a" / "run") == 2
        run_file.write_bytes(data(HEADER, START, step(0, attempt=7)) + b"\0\xff\n" + data(step(3, attempt=2)))
        assert continue_or_create(tmp_path / "a" / "run") == 8

    def test_a_file_is_not_continued(self, filled):
        with pytest.raises(OSError, match="File exists"):
            continue_or_create(filled)


def _raise(code):
    raise OSError(code, os.strerror(code))


def _remove(path):
    path.unlink()
    path.parent.rmdir()
