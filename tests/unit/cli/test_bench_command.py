"""`unisono bench`: what is asked for, what cannot be done here, and where the result goes."""

import importlib.metadata
import importlib.util
import json

import pytest
import torch

import unisono
from unisono.cli import main as cli
from unisono.cli.commands import bench
from unisono.lab.bench import measuring, text


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    return tmp_path


@pytest.fixture
def requests(monkeypatch):
    """What would be measured; nothing is."""
    asked = []

    def measure(request, say):
        say("nothing")
        asked.append(request)
        return {"machine": {"torch": "2"}, "step": [{"interval": 3}]}

    monkeypatch.setattr(measuring, "measure", measure)
    monkeypatch.setattr(text, "as_text", lambda found, width, short: f"interval {found['step'][0]['interval']}")
    return asked


def call(*arguments):
    try:
        return cli.main(["bench", *arguments])
    except SystemExit as leaving:
        return leaving.code


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--device", "tpu"), "tpu"),
        (("--parameters", "ten"), "Write: --parameters 10M"),
        (("--parameters", ""), "Write: --parameters 10M"),
        (("--parameters", "-3"), "--parameters"),
        (("--parameters", "1e7"), "Write: --parameters 10M"),
        (("--parameters", "nan"), "Write: --parameters 10M"),
        (("--parameters", "10"), "from 1M to 100B"),
        (("--parameters", "101B"), "from 1M to 100B"),
        (("--parameters", "100B"), "should fit into memory"),
        (("--steps", "0"), "Write: --steps 2"),
        (("--steps", "many"), "many"),
        (("--workers", "0"), "Write: --workers 2"),
        (("--workers", "65"), "from 1 to 64"),
        (("--json", "folder"), "regular file"),
        (("--json", "none/result.json"), "Make it first"),
        (("--json", ""), "empty"),
        (("--banana",), "banana"),
        (("more",), "more"),
    ],
)
def test_bad_input_gives_one_line_and_2(arguments, words, requests, capsys):
    assert call(*arguments) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert words in err
    assert "unexpected" not in err
    assert requests == []


def test_without_a_gpu_it_says_so(requests, capsys, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert call("--device", "cuda") == 2
    assert "Found none. Write: --device cpu" in capsys.readouterr().err
    assert requests == []


def test_without_torch_it_says_what_to_install(requests, monkeypatch, capsys):
    found = importlib.util.find_spec
    monkeypatch.setattr(bench, "find_spec", lambda name: None if name == "torch" else found(name))
    assert call() == 2
    assert 'pip install "unisono[torch]"' in capsys.readouterr().err


@pytest.mark.parametrize(
    ("written", "number"),
    [("10M", 10_000_000), ("1.16B", 1_160_000_000), ("2500k", 2_500_000), ("1_000_000", 1_000_000), ("3m", 3_000_000)],
)
def test_numbers_of_parameters(written, number):
    assert bench.number_of_parameters(written) == number


def test_what_is_asked_for_is_measured(requests):
    assert call("--parameters", "2M", "--steps", "21", "--workers", "3") == 0
    asked = requests[0]
    assert (asked.device, asked.parameters, asked.workers) == ("cpu", 2_000_000, 3)
    assert asked.turns * asked.steps >= 21 > asked.turns * (asked.steps - 1)


def test_short_is_small_unless_a_size_is_asked_for(requests):
    assert call() == call("--short") == call("--short", "--parameters", "2M") == 0
    usual, short, chosen = requests
    assert (usual.parameters, short.parameters, chosen.parameters) == (10_000_000, 1_000_000, 2_000_000)
    assert max(short.sizes) < max(usual.sizes)


def test_everything_goes_into_the_file(requests, place, capsys):
    assert call("--json", "result.json", "--short", "--workers", "2") == 0
    kept = json.loads((place / "result.json").read_text())
    assert kept == {
        "command": "unisono bench --device cpu --workers 2 --short",
        "machine": {"torch": "2"},
        "step": [{"interval": 3}],
    }
    assert capsys.readouterr() == ("interval 3\n", "measuring nothing\n")


def test_the_machine_is_told_also_where_the_package_is_not_installed(monkeypatch):
    def not_installed(_name):
        raise importlib.metadata.PackageNotFoundError

    monkeypatch.setattr(importlib.metadata, "version", not_installed)
    monkeypatch.setattr(measuring, "version", not_installed, raising=False)
    assert measuring.machine("cpu")["unisono"] == unisono.__version__
