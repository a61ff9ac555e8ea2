"""Files that appear whole or not at all, and never through a link."""

import builtins
import io
import os
import stat

import pytest

import invented_runs as invented
from unisono.common import whole_file
from unisono.common.errors import UserError
from unisono.common.whole_file import output_path, replacing


def test_it_appears_when_the_block_has_ended_for_this_user_only(tmp_path):
    path = tmp_path / "rank-0.jsonl"
    with replacing(path) as file:
        file.write(b"steps")
        assert not path.exists()
    assert path.read_bytes() == b"steps"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert os.listdir(tmp_path) == [path.name]


@pytest.mark.parametrize(
    "put", [lambda place, to: place.symlink_to(to), lambda place, to: place.write_bytes(b"theirs")]
)
def test_what_lies_in_the_place_of_the_temporary_file_is_left_alone(tmp_path, monkeypatch, put):
    monkeypatch.setattr(whole_file.secrets, "token_hex", lambda count: "guessed")
    other = tmp_path / "other"
    other.write_bytes(b"theirs")
    put(tmp_path / ".rank-0.jsonl.guessed.tmp", other)
    with pytest.raises(FileExistsError), replacing(tmp_path / "rank-0.jsonl"):
        pytest.fail("should not have been opened")
    assert other.read_bytes() == b"theirs"
    assert not (tmp_path / "rank-0.jsonl").exists()


def test_a_link_that_is_put_there_after_the_file_was_made_is_not_written_through(tmp_path):
    other = tmp_path / "other"
    other.write_bytes(b"theirs")
    with replacing(tmp_path / "rank-0.jsonl") as file:
        os.unlink(file.name)
        os.symlink(other, file.name)
        file.write(b"steps")
    assert other.read_bytes() == b"theirs"


def test_it_is_opened_once_by_the_call_that_makes_it(tmp_path, monkeypatch):
    """Between two calls somebody could put a link in its place."""
    flags_of, by_name = [], []
    real, real_open = os.open, builtins.open

    def made(path, flags, *mode):
        if str(path).endswith(".tmp"):
            flags_of.append(flags)
        return real(path, flags, *mode)

    def opened(path, *arguments, opener=None, **named):
        if opener is None and str(path).endswith(".tmp"):
            by_name.append(path)
        return real_open(path, *arguments, opener=opener, **named)

    monkeypatch.setattr(os, "open", made)
    monkeypatch.setattr(builtins, "open", opened)
    with replacing(tmp_path / "rank-0.jsonl") as file:
        file.write(b"steps")
    (flags,) = flags_of
    assert flags & os.O_EXCL
    assert flags & os.O_NOFOLLOW
    assert by_name == []


def test_short_writes_are_continued(tmp_path, monkeypatch):
    """A write may take only a part of what it is given; what is buffered goes on with the rest."""
    taken = []

    class Short(io.FileIO):
        def write(self, data):
            taken.append(len(data))
            return super().write(bytes(data)[:1_000])

    monkeypatch.setattr(
        "builtins.open",
        lambda path, mode, opener: io.BufferedRandom(Short(opener(os.fspath(path), os.O_RDWR), "rb+")),
    )
    data = bytes(range(256)) * 40
    with replacing(tmp_path / "rank-0.jsonl") as file:
        file.write(data)
    monkeypatch.undo()
    assert len(taken) > 2
    assert (tmp_path / "rank-0.jsonl").read_bytes() == data


@pytest.mark.parametrize("name", ["run.jsonl", "link.toml"])
def test_a_run_is_never_replaced_also_not_another_one(tmp_path, name):
    invented.write(tmp_path / "run", invented.header(), invented.attempt(2))
    before = (tmp_path / "run" / "run.jsonl").read_bytes()
    (tmp_path / "link.toml").symlink_to(tmp_path / "run" / "run.jsonl")
    with pytest.raises(UserError, match="should not replace a run"):
        output_path(tmp_path / "run" / name if name == "run.jsonl" else tmp_path / name)
    assert (tmp_path / "run" / "run.jsonl").read_bytes() == before
