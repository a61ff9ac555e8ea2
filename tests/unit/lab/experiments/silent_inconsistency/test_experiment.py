"""The order of the runs, going on where it was stopped, and what is wrong with the data, without training."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from unisono.cli import main as cli
from unisono.common.errors import UserError
from unisono.lab.experiments.catalogue import Order
from unisono.lab.experiments.silent_inconsistency import experiment
from unisono.lab.experiments.silent_inconsistency.examples import read_examples
from unisono.lab.experiments.silent_inconsistency.perturbations import PERTURBATIONS


class Letters:
    """A tokenizer of single letters."""

    def encode(self, text):
        return [ord(letter) % 400 + 3 for letter in text]


def order(tmp_path, minutes=1.0, **options):
    given = {"data": None, "out": tmp_path / "results.json", "command": "unisono lab paper"} | options
    return Order(minutes=minutes, **given)


@pytest.fixture
def trained(monkeypatch):
    """Which runs were asked for; none is trained."""
    asked = []

    def instead(material, setting, seed):
        asked.append((setting, seed))
        return {"seconds": 0.0}

    monkeypatch.setattr(experiment, "_run", instead)
    return asked


def test_the_first_seed_of_all_settings_comes_first():
    plan = [(one["setting"], one["seed"]) for one in experiment._plan(experiment.FULL)]
    assert plan[: len(PERTURBATIONS)] == [(name, 0) for name in PERTURBATIONS]
    assert len(set(plan)) == len(plan) == 5 * len(PERTURBATIONS)


def test_the_epochs_have_whole_steps():
    for size in (experiment.FULL, experiment.SMALL):
        assert size.examples % (size.workers * size.recipe.batch) == 0
    assert experiment.FULL.steps == 128


def test_it_goes_on_with_what_is_missing(trained, tmp_path):
    settings = experiment.SMALL.settings
    assert experiment.run(order(tmp_path)) == f"3 of 3 runs are in {tmp_path / 'results.json'}"
    assert trained == [(name, 0) for name in settings]
    file = tmp_path / "results.json"
    runs = json.loads(file.read_text())
    file.write_text(json.dumps([runs[0], runs[2]]))
    experiment.run(order(tmp_path))
    assert trained[3:] == [(settings[1], 0)]
    experiment.run(order(tmp_path))
    assert len(trained) == 4


def test_small_runs_do_not_stand_for_full_ones(trained, tmp_path):
    experiment.run(order(tmp_path))
    small = json.loads((tmp_path / "results.json").read_text())
    identities = [tuple(one[name] for name in experiment.IDENTITY) for one in experiment._plan(experiment.FULL)]
    assert all(tuple(run[name] for name in experiment.IDENTITY) not in identities for run in small)


def test_a_run_that_would_not_end_in_time_is_not_begun(trained, tmp_path, monkeypatch):
    passed = iter([0, 1, 21, 21, 41, 41, 61])
    # Not of all of Python: other tests' threads would take from it.
    monkeypatch.setattr(experiment, "time", SimpleNamespace(monotonic=lambda: next(passed)))
    said = experiment.run(order(tmp_path, minutes=50 / 60))
    assert len(trained) == 2
    assert said == f"2 of 3 runs are in {tmp_path / 'results.json'}: call again"


def test_a_setting_that_did_not_happen_ends_it(monkeypatch, tmp_path):
    healthy = PERTURBATIONS["synchronised"]
    inert = {**PERTURBATIONS, "wrong-labels": type(healthy)("", healthy.plans, PERTURBATIONS["wrong-labels"].fired)}
    monkeypatch.setattr(experiment, "PERTURBATIONS", inert)

    def report(workers, be_rank, complaints):
        for rank in range(workers):
            said = {"indices": list(range(rank, 512, 4)), "stale": False, "stream": str(rank), "held_out": 1.0}
            (complaints.parent / f"rank-{rank}.json").write_text(json.dumps(said))

    monkeypatch.setattr(experiment, "fork_ranks", report)
    material = experiment._material(order(tmp_path), experiment.SMALL)
    with pytest.raises(RuntimeError, match="wrong-labels has not happened with seed 0"):
        experiment._run(material, "wrong-labels", 0)


def row(**changed):
    given = {"instruction": "Say", "input": "it", "output": "yes indeed", "source": "alpagasus_random_9k.json"}
    return json.dumps(given | changed)


def test_prompts_that_leave_no_room_and_chosen_samples_are_left_out(tmp_path):
    file = tmp_path / "alpaca.jsonl"
    rows = [row(), row(input=""), row(output="no"), row(instruction="long " * 30), row(source="chosen")]
    file.write_text("\n".join(rows))
    examples = read_examples(file, Letters(), 64)
    assert len(examples) == 2
    assert [one.counted for one in examples] == [len("yes indeed") + 1] * 2
    assert examples[0].start == len("Question: Say\nit\nAnswer: ") + 1


@pytest.mark.parametrize("content", [None, "{", json.dumps({"instruction": "Say"}), "3"])
def test_other_data_are_refused(content, tmp_path):
    file = tmp_path / "alpaca_subset.jsonl"
    if content is not None:
        file.write_text(content)
    with pytest.raises(UserError, match=r"`--data` should hold alpaca/alpaca_subset\.jsonl"):
        read_examples(file, Letters(), 64)


def call(capsys, *arguments):
    code = cli.main(["lab", "paper", "silent-inconsistency", *map(str, arguments)])
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    return code, err


def test_a_missing_model_is_one_line(tmp_path, capsys):
    code, err = call(capsys, "--data", tmp_path, "--out", tmp_path / "out.json")
    assert code == 2
    assert "`--data` should hold stories260K/" in err


def test_missing_packages_are_one_line(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(experiment, "find_spec", lambda name: None if name == "sentencepiece" else Path)
    code, err = call(capsys, "--small", "--out", tmp_path / "out.json")
    assert code == 2
    assert "Found no sentencepiece. Install with: pip install sentencepiece" in err
