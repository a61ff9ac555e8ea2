"""`unisono lab`: the list of faults, and the papers."""

import pytest

from unisono.cli import main as cli
from unisono.lab.experiments.catalogue import EXPERIMENTS
from unisono.lab.faults.catalogue import FAULTS


def call(*arguments):
    try:
        return cli.main(["lab", *arguments])
    except SystemExit as leaving:
        return leaving.code


def test_all_faults_are_listed_with_their_code(capsys):
    assert call("list") == 0
    lines = capsys.readouterr().out.splitlines()
    listed = {line.split()[0]: line for line in lines if line.startswith("  ")}
    assert list(listed) == list(FAULTS)
    assert all(fault.code in listed[name] and fault.what in listed[name] for name, fault in FAULTS.items())


@pytest.mark.parametrize(("arguments", "words"), [((), "ACTION"), (("banana",), "banana")])
def test_bad_input_gives_one_line_and_2(arguments, words, capsys):
    assert call(*arguments) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert words in err


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ((), "CIFAR-100"),
        (("--data", "/nowhere"), "no folder `/nowhere`"),
        (("--small", "--minutes", "0"), "--minutes"),
        (("--small", "--minutes", "nan"), "--minutes"),
    ],
)
def test_a_paper_without_what_it_needs_gives_one_line_and_2(options, words, tmp_path, capsys):
    assert call("paper", "gaf", "--out", str(tmp_path / "out.json"), *options) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert words in err
    assert not any(tmp_path.iterdir())


def test_papers_are_listed(capsys):
    assert call("paper", "--help") == 0
    out = capsys.readouterr().out
    assert all(name in out for name in EXPERIMENTS)
