"""What a rank leaves of its last steps."""

import pytest

from unisono.common import whole_file
from unisono.monitor.last_steps import write_rank_file
from unisono.records import DepartureRecord

GONE = DepartureRecord(1, 30, 1.5, 1, "signal", "SIGTERM", told_by=1)


@pytest.fixture
def victim(tmp_path):
    (tmp_path / "run").mkdir()
    victim = tmp_path / "victim"
    victim.write_bytes(b"theirs")
    return victim


def test_nothing_is_written_through_a_link_where_the_temporary_file_could_be_guessed(tmp_path, victim, monkeypatch):
    monkeypatch.setattr(whole_file.secrets, "token_hex", lambda count: "guessed")
    for name in ("rank-1.tmp", "rank-1.jsonl.tmp", ".rank-1.jsonl.guessed.tmp"):
        (tmp_path / "run" / name).symlink_to(victim)
    with pytest.raises(FileExistsError):
        write_rank_file(str(tmp_path / "run"), 1, [GONE])
    assert victim.read_bytes() == b"theirs"


def test_a_link_in_the_place_of_the_file_is_replaced_and_not_followed(tmp_path, victim):
    (tmp_path / "run" / "rank-1.jsonl").symlink_to(victim)
    write_rank_file(str(tmp_path / "run"), 1, [GONE])
    assert victim.read_bytes() == b"theirs"
    assert b"SIGTERM" in (tmp_path / "run" / "rank-1.jsonl").read_bytes()
