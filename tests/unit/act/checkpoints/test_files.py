"""Files that were changed, cut, swapped or made to do harm are refused, and the next older checkpoint is used."""

import hashlib
import io
import json
import os
import pickle
import random
import shutil
import stat
import subprocess
import zipfile

import pytest
import torch

from unisono.act.checkpoints import (
    CheckpointError,
    DiskStore,
    capture,
    files,
    find_healthy,
    load,
    put_back,
)
from unisono.act.checkpoints import (
    checksummed as checksummed,
)

PLACES = 100


@pytest.fixture(scope="module")
def two_checkpoints(tmp_path_factory):
    """Steps 1 and 2 of one worker; in its parameters stands the step."""
    folder = tmp_path_factory.mktemp("run") / "checkpoints"
    fill(folder)
    return folder


def fill(folder, steps=(1, 2), rank=0, world=1, replica_writer=True, attempt=1, value=None):
    store = DiskStore(folder, rank, replica_writer, f"replica-{rank}.pt", 5, 0, world, attempt)
    for step in steps:
        store.keep(snapshot_of(step, step if value is None else value))
        assert store.wait(10)
        store.quiet(step)
        store.agreed(step)
    store.close()
    assert store.failures == 0, store.error


def snapshot_of(step, value):
    from unisono.act.checkpoints import Subject

    model = torch.nn.Sequential(torch.nn.Linear(9, 9), torch.nn.BatchNorm1d(9))
    with torch.no_grad():
        model[0].weight.fill_(value)
    return capture(Subject(model, [torch.optim.SGD(model.parameters(), lr=0.1)]), step)


@pytest.fixture
def folder(two_checkpoints, tmp_path):
    return shutil.copytree(two_checkpoints, tmp_path / "checkpoints")


def newest(folder):
    return folder / "step-000000002"


def value_of(snapshot):
    return snapshot.replica["parameters"]["0.weight"].unique().tolist()


def test_both_load(folder):
    assert find_healthy(folder, 0) == [1, 2]
    assert [value_of(load(folder, step, 0)) for step in (1, 2)] == [[1.0], [2.0]]


def test_files_and_folders_are_for_their_owner_only(folder):
    modes = {stat.S_IMODE(path.stat().st_mode) for path in folder.rglob("*") if path.is_file()}
    folders = {stat.S_IMODE(path.stat().st_mode) for path in (folder, newest(folder))}
    assert (modes, folders) == ({0o600}, {0o700})


NAMES = ["replica-0.pt", "rank-0.pt", "replica-0.json", "rank-0.json", "healthy.json"]


@pytest.mark.parametrize("name", NAMES)
def test_one_flipped_bit_anywhere_is_refused_and_the_next_older_is_used(folder, name):
    path, chance = newest(folder) / name, random.Random(name)
    intact = path.read_bytes()
    for _ in range(PLACES):
        place = chance.randrange(len(intact))
        path.write_bytes(intact[:place] + bytes([intact[place] ^ 1 << chance.randrange(8)]) + intact[place + 1 :])
        assert_refused(folder, 2)
    assert find_healthy(folder, 0) == [1]
    path.write_bytes(intact)
    assert find_healthy(folder, 0) == [1, 2]


def assert_refused(folder, step, match="."):
    with pytest.raises(CheckpointError, match=match):
        load(folder, step, 0)


@pytest.mark.parametrize("name", NAMES)
def test_files_cut_anywhere_or_ending_in_zeros_are_refused(folder, name):
    path = newest(folder) / name
    intact = path.read_bytes()
    for place in [*range(0, len(intact), 512), len(intact) // 2, len(intact) - 1]:
        for tail in (b"", b"\0" * (len(intact) - place)):
            path.write_bytes(intact[:place] + tail)
            if path.read_bytes() != intact:
                assert_refused(folder, 2)
    path.write_bytes(intact + b"\0" * 512)
    assert_refused(folder, 2)
    assert find_healthy(folder, 0) == [1]


@pytest.mark.parametrize("name", NAMES)
def test_a_missing_file_is_refused(folder, name):
    (newest(folder) / name).unlink()
    assert find_healthy(folder, 0) == [1]


@pytest.mark.parametrize("name", NAMES)
def test_a_file_of_another_step_is_refused(folder, name):
    shutil.copy(folder / "step-000000001" / name, newest(folder) / name)
    assert_refused(folder, 2)


def test_a_whole_folder_under_another_number_is_refused(folder):
    shutil.copytree(newest(folder), folder / "step-000000003")
    assert find_healthy(folder, 0) == [1, 2]


def test_parts_of_two_attempts_do_not_make_one_checkpoint(folder):
    """Attempt 2 was killed after worker 0 had written the same step again, before all had."""
    shutil.copytree(folder, folder.parent / "old")
    fill(folder, steps=(2,), attempt=2, value=7)
    for name in ("rank-0.pt", "rank-0.json"):
        shutil.copy(folder.parent / "old" / "step-000000002" / name, newest(folder) / name)
    assert_refused(folder, 2, "of another file, step, attempt")


@pytest.mark.parametrize("name", NAMES)
def test_links_pipes_and_folders_are_not_read(folder, name):
    path, elsewhere = newest(folder) / name, folder.parent / "elsewhere"
    path.rename(elsewhere)
    for make in (lambda: path.symlink_to(elsewhere), lambda: os.mkfifo(path), path.mkdir):
        make()
        assert_refused(folder, 2)
        path.rmdir() if path.is_dir() else path.unlink()


def test_a_linked_folder_is_not_read(folder):
    newest(folder).rename(folder.parent / "elsewhere")
    newest(folder).symlink_to(folder.parent / "elsewhere")
    assert_refused(folder, 2, "a link or a file")
    linked = folder.parent / "linked"
    linked.symlink_to(folder)
    assert_refused(linked, 1, "a link or a file")


def replace(path, content):
    """With a manifest that tells the truth, as somebody could write it who can write files at all."""
    path.write_bytes(content)
    told = checksummed.read(files.manifest_of(path))
    told.update(sha256=hashlib.sha256(content).hexdigest(), bytes=len(content))
    files.manifest_of(path).unlink()
    checksummed.write(files.manifest_of(path), told)


class Harm:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


def saved(value):
    content = io.BytesIO()
    torch.save(value, content)
    return content.getvalue()


@pytest.mark.parametrize("make", [saved, pickle.dumps], ids=["archive", "bare"])
def test_harmful_content_is_refused_and_not_run(folder, tmp_path, make, monkeypatch):
    monkeypatch.setenv("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", "1")
    replace(newest(folder) / "replica-0.pt", make({"parameters": {}, "x": Harm(tmp_path / "harmed")}))
    assert_refused(folder, 2)
    assert not (tmp_path / "harmed").exists()


def bomb():
    content = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(saved({"parameters": {}}))) as source, zipfile.ZipFile(content, "w") as target:
        for member in source.infolist():
            target.writestr(member.filename, source.read(member))
        target.writestr("archive/data/9", b"\0" * 10_000_000, compress_type=zipfile.ZIP_DEFLATED)
    return content.getvalue()


HARMFUL = {
    "a bomb": (bomb, "unpack into more"),
    "a list": (lambda: saved([1]), "holds a `list`"),
    "numpy": (lambda: saved({"x": __import__("numpy").arange(2)}), "cannot load"),
    "no tensors": (lambda: saved({"parameters": {"0.weight": 1}}), "not plain tensors"),
    "a view": (lambda: saved({"parameters": {"x": torch.zeros(1).expand(1 << 50)}}), "not plain tensors"),
    "nan": (lambda: saved({"parameters": {"x": torch.tensor([1.0, float("nan")])}}), "parameter `x` of step 2 is not"),
    "inf": (lambda: saved({"parameters": {"x": torch.tensor([1.0, float("inf")])}}), "parameter `x` of step 2 is not"),
}


@pytest.mark.parametrize(("make", "match"), HARMFUL.values(), ids=HARMFUL)
def test_other_content_is_refused(folder, make, match):
    replace(newest(folder) / "replica-0.pt", make())
    assert_refused(folder, 2, match)
    assert find_healthy(folder, 0) == [1]


def test_content_that_lacks_parts_changes_nothing(folder, worker):
    one = worker()
    before = one.everything()
    replace(newest(folder) / "replica-0.pt", saved({"parameters": {}}))
    with pytest.raises(CheckpointError, match="should be complete"):
        put_back(one.subject, load(folder, 2, 0))
    assert one.everything() == before


@pytest.mark.parametrize("told", [{"bytes": -1}, {"bytes": "9"}, {"bytes": 1 << 50}, {"world": 3}, {"file": "../x.pt"}])
def test_manifests_that_lie_are_refused(folder, told):
    manifest = newest(folder) / "replica-0.json"
    fields = {**checksummed.read(manifest), **told}
    checksummed.write(manifest, fields)
    assert_refused(folder, 2)


@pytest.mark.parametrize("content", [b"", b"[]", b"{}", b"[" * 4000, b"1" * 4000, b"\xff", b'{"seal":1}', b"0" * 5000])
def test_manifests_that_are_none_are_refused(folder, content):
    (newest(folder) / "replica-0.json").write_bytes(content)
    assert_refused(folder, 2)


def test_another_hosts_replica_takes_the_place_of_a_broken_one(tmp_path):
    folder = tmp_path / "checkpoints"
    fill(folder, rank=0, world=2)
    fill(folder, rank=1, world=2)
    (newest(folder) / "replica-1.pt").write_bytes(b"broken")
    assert find_healthy(folder, 1, ["replica-1.pt"]) == [1, 2]
    assert value_of(load(folder, 2, 1, ["replica-1.pt"])) == [2.0]
    (newest(folder) / "replica-0.pt").write_bytes(b"broken")
    assert find_healthy(folder, 1, ["replica-1.pt"]) == [1]


def test_checkpoints_of_another_number_of_workers_can_be_left_out(folder):
    assert (find_healthy(folder, 0, world=1), find_healthy(folder, 0, world=2)) == ([1, 2], [])
    assert find_healthy(folder, 3) == []


def test_no_folder_means_no_checkpoint(tmp_path):
    assert find_healthy(tmp_path / "none", 0) == []
    with pytest.raises(CheckpointError, match="should exist"):
        load(tmp_path / "none", 1, 0)


def test_nothing_but_json_is_in_the_manifests(folder):
    told = json.loads((newest(folder) / "replica-0.json").read_text())
    content = (newest(folder) / "replica-0.pt").read_bytes()
    assert (told["sha256"], told["bytes"]) == (hashlib.sha256(content).hexdigest(), len(content))
    listed = subprocess.run(["sha256sum", newest(folder) / "replica-0.pt"], capture_output=True, text=True, check=True)
    assert listed.stdout.split()[0] == told["sha256"]
