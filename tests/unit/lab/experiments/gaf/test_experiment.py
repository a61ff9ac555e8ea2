"""`unisono lab paper gaf`, small."""

import json

import pytest

from unisono.cli import main as cli
from unisono.lab.experiments.gaf import experiment
from unisono.lab.experiments.gaf.experiment import thinned


def paper(out, *options):
    return cli.main(["lab", "paper", "gaf", "--small", "--out", str(out), *options])


def runs(path):
    return {(run["method"], run["purpose"], run["learning_rate"]): run for run in json.loads(path.read_text())}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    out = tmp_path_factory.mktemp("gaf") / "gaf.json"
    assert paper(out) == 0
    return out


def test_every_run_says_what_it_was_and_what_came_out(whole):
    rows = [run for run in json.loads(whole.read_text()) if run["purpose"] == "table"]
    assert [run["method"] for run in rows] == ["averaging", "published"]
    for run in rows:
        assert {"noise", "method", "tau", "microbatch", "workers", "seed", "epochs", "best", "final"} <= run.keys()
        assert {"skipped", "cosine", "device", "torch", "command"} <= run.keys()
        assert len(run["cosine"]) == len(run["test"]) == run["epochs"]
        assert run["final"] == run["test"][-1] <= run["best"] == max(run["test"])
    averaged, filtered = rows
    assert averaged["final"] > 0.4, "ten classes, half of the labels right"
    assert averaged["skipped"] == 0 < filtered["skipped"] < 1


def test_a_full_table_is_left_alone(whole, capsys):
    before = whole.read_bytes()
    assert paper(whole) == 0
    assert whole.read_bytes() == before
    out, err = capsys.readouterr()
    assert out == f"2 of 2 runs of the table are in {whole}.\n"
    assert err == ""


def test_stopped_after_every_epoch_it_comes_to_the_same(whole, tmp_path):
    out = tmp_path / "gaf.json"
    epochs = sum(run["epochs"] for run in runs(whole).values())
    stops = 0
    for _ in range(epochs):
        assert paper(out, "--minutes", "1e-9") == 0
        stops += (tmp_path / "gaf.unfinished").exists()
    assert stops > 10
    assert runs(out).keys() == runs(whole).keys()
    assert not (tmp_path / "gaf.unfinished").exists()
    for key, run in runs(whole).items():
        assert {**runs(out)[key], "command": ""} == {**run, "command": ""}


def test_runs_side_by_side_come_to_the_same(whole, tmp_path, monkeypatch):
    monkeypatch.setattr(experiment, "SIDE_BY_SIDE", {"cpu": 3})
    assert paper(tmp_path / "gaf.json") == 0
    for key, run in runs(whole).items():
        assert {**runs(tmp_path / "gaf.json")[key], "command": ""} == {**run, "command": ""}


def test_long_curves_keep_their_ends():
    assert thinned([1, 2, 3]) == [1, 2, 3]
    short = thinned(list(range(100)))
    assert (len(short), short[0], short[-1]) == (30, 0, 99)
