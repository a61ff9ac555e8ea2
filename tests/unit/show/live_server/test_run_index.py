"""Which runs are found, and under which ids."""

import os
import time

import pytest

from unisono.common.errors import RunFileError
from unisono.records import StepRecord
from unisono.show.live_server import run_index as shelf_module
from unisono.show.live_server.run_index import RunHeaders, RunIndex, condition
from unit.show.live_server.serving import end, lines, start, step, write_run


@pytest.fixture(autouse=True)
def always_look(monkeypatch):
    monkeypatch.setattr(shelf_module, "FRESH_SECONDS", -1.0)


def names(run_index):
    return [entry.name for entry in run_index.entries()]


def test_newest_first_and_the_link_to_the_latest_is_no_second_run(tmp_path):
    for number, name in enumerate(["b", "c", "a"]):
        write_run(tmp_path / name, started=1e9 + number)
    (tmp_path / "latest").symlink_to("c", target_is_directory=True)
    assert names(RunIndex(tmp_path)) == ["a", "c", "b"]


def test_a_run_is_its_directory_or_its_file_and_has_one_id(tmp_path):
    file = write_run(tmp_path / "run")
    (tmp_path / "latest").symlink_to("run")
    by_directory, by_file, by_link = RunIndex(tmp_path / "run"), RunIndex(file), RunIndex(tmp_path / "latest")
    assert by_directory.only() == by_file.only() == by_link.only()
    assert by_directory.only().name == "run"
    assert RunIndex(tmp_path).only() is None
    assert RunIndex(tmp_path).find(by_file.only().id).path == file


def test_further_models_of_a_run_are_listed_too(tmp_path):
    for name in ("job", "job/model-2", "job/ranks-4-7", "job/ranks-4-7/model-2"):
        write_run(tmp_path / name)
    assert sorted(names(RunIndex(tmp_path))) == ["job", "job/model-2", "job/ranks-4-7", "job/ranks-4-7/model-2"]
    assert sorted(names(RunIndex(tmp_path / "job"))) == ["job", "model-2", "ranks-4-7", "ranks-4-7/model-2"]
    assert RunIndex(tmp_path / "job").only() is None


def test_runs_appear_and_disappear_but_stay_known(tmp_path):
    run_index = RunIndex(tmp_path)
    assert names(run_index) == []
    file = write_run(tmp_path / "run")
    (entry,) = run_index.entries()
    file.unlink()
    assert names(run_index) == []
    assert run_index.find(entry.id) == entry


def test_a_folder_can_become_a_run(tmp_path):
    run_index = RunIndex(tmp_path)
    assert run_index.only() is None
    write_run(tmp_path)
    assert run_index.only().name == tmp_path.name


def test_odd_things_in_the_folder_are_passed_over(tmp_path):
    write_run(tmp_path / "good")
    write_run(tmp_path / ".hidden")
    write_run(tmp_path / "a/b/c/too-deep")
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "nowhere").symlink_to("/nowhere")
    (tmp_path / "up").symlink_to(tmp_path.parent)
    (tmp_path / "text").write_text("x")
    for name in ("pipe", "folder", "circle"):
        (tmp_path / name).mkdir()
    os.mkfifo(tmp_path / "pipe/run.jsonl")
    (tmp_path / "folder/run.jsonl").mkdir()
    (tmp_path / "circle/run.jsonl").symlink_to("run.jsonl")
    assert names(RunIndex(tmp_path)) == ["good"]


def test_a_run_elsewhere_is_found_through_a_link(tmp_path):
    write_run(tmp_path / "other disk/run")
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs/linked").symlink_to(tmp_path / "other disk/run")
    assert names(RunIndex(tmp_path / "runs")) == ["run"]


def test_a_name_that_is_no_text_is_shown_as_far_as_it_is(tmp_path):
    write_run(tmp_path / os.fsdecode(b"run-\xff\xfe"))
    assert names(RunIndex(tmp_path)) == ["run-"]


def test_no_more_than_so_many_folders_are_entered(tmp_path, monkeypatch):
    monkeypatch.setattr(shelf_module, "MOST_FOLDERS", 4)
    for number in range(10):
        write_run(tmp_path / str(number))
    assert len(names(RunIndex(tmp_path))) == 3


@pytest.mark.parametrize("place", ["", "missing", "missing/run.jsonl", "a\0b", "x" * 5000, "pipe", "/dev/null"])
def test_a_place_that_is_nothing_is_an_error(tmp_path, monkeypatch, place):
    monkeypatch.chdir(tmp_path)
    os.mkfifo("pipe")
    with pytest.raises(RunFileError):
        RunIndex(place)


def test_an_unknown_id_finds_nothing(tmp_path):
    write_run(tmp_path / "run")
    assert [RunIndex(tmp_path).find(run_id) for run_id in ("", "run", "../run", "0" * 12)] == [None] * 4


def test_a_look_holds_for_a_while(tmp_path, monkeypatch):
    monkeypatch.setattr(shelf_module, "FRESH_SECONDS", 60.0)
    run_index = RunIndex(tmp_path)
    assert names(run_index) == []
    write_run(tmp_path / "run")
    assert names(run_index) == []


def header(tmp_path, content):
    (tmp_path / "run.jsonl").write_bytes(content)
    found = RunHeaders().of(tmp_path / "run.jsonl")
    return found.step, found.ended


WIDE = StepRecord(1, 8, 1.5, cos_WW=((0.123456789,) * 250,) * 250)
ENDS = {
    "nothing": (b"", (None, "")),
    "steps": (lines(start(), step(0), step(1)), (1, "")),
    "end": (lines(start(), step(0), step(1), end(1)), (1, "finished")),
    "end without a step": (lines(start(), end(-1)), (None, "finished")),
    "a new attempt": (lines(start(), step(7), end(7), start(2)), (7, "")),
    "torn": (lines(start(), step(7)) + lines(step(8))[:-1], (7, "")),
    "noise": (b"\xff\n{}\n" * 10_000, (None, "")),
    "many short ones": (lines(start(), *map(step, range(5_000))), (4_999, "")),
    "a long one": (lines(start(), WIDE), (8, "")),
    "a long one and its beginning": (lines(start(), WIDE) + lines(WIDE)[:-9], (8, "")),
}


@pytest.mark.parametrize(("content", "expected"), ENDS.values(), ids=ENDS)
def test_the_last_lines_tell_how_far_a_run_is(tmp_path, content, expected):
    assert header(tmp_path, content) == expected


def test_a_cover_is_read_again_when_the_file_has_changed(tmp_path):
    file, run_headers = write_run(tmp_path, steps=3), RunHeaders()
    assert run_headers.of(file) is run_headers.of(file)
    assert run_headers.of(file).step == 2
    with file.open("ab") as more:
        more.write(lines(step(3)))
    assert run_headers.of(file).step == 3


AGES = {
    0: "running",
    -100: "running",
    29: "running",
    59: "nothing new for 30 seconds",
    61: "nothing new for 1 minute",
    7_300: "nothing new for 2 hours",
}
AGES |= {90_000: "nothing new for 1 day", 172_800: "nothing new for 2 days", 3_599: "nothing new for 59 minutes"}


@pytest.mark.parametrize(("age", "expected"), AGES.items())
def test_how_a_run_is_doing(age, expected):
    now = time.time()
    assert condition("", now - age, now)[1] == expected
    for ended, words in {"finished": "finished", "crashed": "crashed", "killed": "killed", "unknown": "ended"}.items():
        assert condition(ended, now - age, now) == ("ended", words)
