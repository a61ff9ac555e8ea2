"""What `unisono run` makes of its line and its environment, up to the moment it becomes the command."""

import os
import sys
from pathlib import Path

import pytest

from unisono.cli import main as cli
from unisono.cli.commands import run
from unisono.cli.commands.run import interpreter_flags, prepare, script_name, with_startup
from unisono.cli.run_arguments import RunRequest, parse
from unisono.common.errors import UserError
from unisono.records.runfile import read_run

STARTUP = str(run.STARTUP_DIR)


@pytest.fixture(autouse=True)
def empty_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def test_everything_behind_the_dashes_is_the_command():
    request = parse(["--every", "5", "--", "echo", "--every", "7", "--", "x"])
    assert request == RunRequest({"--every": "5"}, command=("echo", "--every", "7", "--", "x"))


def test_everything_from_the_script_on_is_the_script():
    Path("train.py").touch()
    request = parse(["--every=5", "train.py", "--out", "x", "-m", "--", "y"])
    assert request == RunRequest({"--every": "5"}, script=("train.py", "--out", "x", "-m", "--", "y"))


def test_a_module_is_a_script():
    assert parse(["-m", "pkg.train", "--help"]) == RunRequest(script=("-m", "pkg.train", "--help"))


def test_out_becomes_absolute(tmp_path):
    assert parse(["--out", "here", "--", "echo"]).options == {"--out": str(tmp_path / "here")}


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ([], "needs a command or a script"),
        (["--"], "needs a command"),
        (["--out"], "`--out` of `unisono run` needs a value"),
        (["--out", "--", "echo"], "`--out` of `unisono run` needs a value"),
        (["--out=", "--", "echo"], "an empty name"),
        (["--every", "0", "--", "echo"], "Found `0`"),
        (["--every", "-3", "--", "echo"], "Found `-3`"),
        (["--every", "1.5", "--", "echo"], "Found `1.5`"),
        (["--every", "often", "--", "echo"], "Found `often`"),
        (["--evry", "5", "--", "echo"], "Found `--evry`"),
        (["--", "no-such-command-anywhere"], "Found `no-such-command-anywhere`"),
        (["missing.py"], "Found `missing.py`"),
        (["echo", "hello"], "unisono run -- echo ..."),
        (["-m"], "needs a module"),
        (["--weighting", "--", "echo"], "`--weighting` of `unisono run` needs a value"),
        (["--weighting", "krum", "--", "echo"], "Found `krum`"),
        (["--weighting", "agreement:max_distance=3", "--", "echo"], "Found `3`"),
        (["--weighting=agreement:distance=1", "--", "echo"], "Found `distance=1`"),
        (["--guard=on", "--", "echo"], "takes no value"),
        (["--guard-file", "--", "echo"], "`--guard-file` of `unisono run` needs a value"),
        (["--guard-file", "none.toml", "--", "echo"], "Found `none.toml` (No such file or directory)"),
    ],
)
def test_bad_lines_are_refused_with_what_to_do(line, words):
    with pytest.raises(UserError) as refusal:
        parse(line)
    assert words in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_the_environment_carries_hook_and_settings(tmp_path):
    request = parse(["--out", "here", "--every", "5", "--", "echo"])
    prepared = prepare(request, {"HOME": "/home/me", "PYTHONPATH": "/mine"})
    assert prepared == {
        "HOME": "/home/me",
        "PYTHONPATH": f"{STARTUP}{os.pathsep}/mine",
        "UNISONO_AUTO": "1",
        "UNISONO_EVERY": "5",
        "UNISONO_RUN_DIR": str(tmp_path / "here"),
        "UNISONO_RUN_BEGAN": str((tmp_path / "here" / "run.jsonl").stat().st_size),
    }
    assert read_run(tmp_path / "here").header.script == "echo"


def test_a_command_gets_a_run_directory_of_its_own(tmp_path):
    prepared = prepare(parse(["--", "echo", "train.py"]), {})
    run_dir = Path(prepared["UNISONO_RUN_DIR"])
    assert run_dir.is_absolute()
    assert run_dir.parent == tmp_path / "unisono-runs"
    assert run_dir.name.endswith("-train")


@pytest.mark.parametrize("variable", run.RANK_VARIABLES)
def test_a_rank_does_not_choose_the_run_directory(variable, tmp_path):
    assert "UNISONO_RUN_DIR" not in prepare(parse(["--", "echo", "train.py"]), {variable: "0"})
    assert list(tmp_path.iterdir()) == []


def test_a_script_does_not_choose_the_run_directory():
    Path("train.py").touch()
    assert "UNISONO_RUN_DIR" not in prepare(parse(["train.py"]), {})


def test_a_given_run_directory_is_kept(tmp_path):
    given = {"UNISONO_RUN_DIR": str(tmp_path / "given")}
    assert prepare(parse(["--", "echo"]), given)["UNISONO_RUN_DIR"] == str(tmp_path / "given")


def test_off_leaves_the_environment_alone(tmp_path):
    environment = {"UNISONO": "off", "PYTHONPATH": "/mine"}
    assert prepare(parse(["--out", "here", "--", "echo"]), environment) == environment
    assert list(tmp_path.iterdir()) == []


def test_a_file_in_the_place_of_the_run_directory():
    Path("taken").touch()
    with pytest.raises(UserError, match="Name another with --out DIR"):
        prepare(parse(["--out", "taken", "--", "echo"]), {})


def test_a_file_in_the_place_of_all_runs():
    Path("unisono-runs").touch()
    with pytest.raises(UserError, match="Name another place with --out DIR"):
        prepare(parse(["--", "echo"]), {})


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("", STARTUP),
        ("/mine", f"{STARTUP}:/mine"),
        (f"{STARTUP}:/mine", f"{STARTUP}:/mine"),
        ("/mine:", f"{STARTUP}:/mine:"),
    ],
)
def test_the_hook_comes_first_on_the_path_and_once(before, after):
    assert with_startup(before) == after


@pytest.mark.parametrize(
    ("command", "name"),
    [
        ("torchrun --nproc-per-node 8 src/train.py --lr 3", "train"),
        ("torchrun -m pkg.train --config=conf.py", "pkg.train"),
        ("python -m torch.distributed.run -m pkg.train", "pkg.train"),
        ("accelerate launch --config_file=a.py tool.py other.py", "tool"),
        ("/usr/bin/make train", "make"),
        ("python -m", "python"),
    ],
)
def test_the_run_is_named_after_the_script(command, name):
    assert script_name(command.split()) == name


@pytest.mark.parametrize(
    ("line", "flags"),
    [
        ("python -m unisono run a.py", []),
        ("python -u -m unisono run a.py", ["-u"]),
        ("python -um unisono run a.py", ["-u"]),
        ("python -munisono run a.py", []),
        ("python -X dev -W error -m unisono run a.py", ["-X", "dev", "-W", "error"]),
        ("python /bin/unisono run a.py", []),
        ("python -Xm /bin/unisono run a.py", ["-Xm"]),
    ],
)
def test_interpreter_flags_are_handed_on(line, flags):
    assert interpreter_flags(line.split(), ["run", "a.py"]) == flags


def test_becoming_a_script(monkeypatch):
    became = []
    monkeypatch.setattr(run, "become", lambda command, environment: became.append(command))
    monkeypatch.setattr(sys, "orig_argv", ["python", "-u", "-m", "unisono", "run", "train.py", "--lr", "1"])
    monkeypatch.setattr(sys, "argv", ["unisono", "run", "train.py", "--lr", "1"])
    Path("train.py").touch()
    run.main(["train.py", "--lr", "1"])
    assert became == [(sys.executable, "-u", "train.py", "--lr", "1")]


def test_help_says_how_to_write_it(capsys):
    assert run.main(["--help"]) == 0
    assert "unisono run [options] -- CMD..." in capsys.readouterr().out


def test_ignored_codes_add_up():
    assert parse(["--ignore", "un101", "--ignore", "UN105", "--", "echo"]).options == {"--ignore": "UN101,UN105"}


def test_an_unknown_code_is_refused():
    with pytest.raises(UserError, match="UN999"):
        parse(["--ignore", "UN999", "--", "echo"])


def test_the_weighting_travels_in_the_environment():
    request = parse(["--weighting", "agreement:max_distance=0.95,gram=exact", "--", "echo"])
    assert prepare(request, {})["UNISONO_WEIGHTING"] == "agreement:max_distance=0.95,gram=exact"
    assert "UNISONO_WEIGHTING" not in prepare(parse(["--", "echo"]), {})


def test_the_last_weighting_counts():
    line = ["--weighting", "agreement", "--weighting", "adaptive:share=0.4", "--", "echo"]
    assert parse(line).options == {"--weighting": "adaptive:share=0.4"}


def test_a_bad_weighting_in_the_environment_is_refused_unless_another_is_given():
    environment = {"UNISONO_WEIGHTING": "krum"}
    with pytest.raises(UserError, match="Found `krum`"):
        prepare(parse(["--", "echo"]), environment)
    request = parse(["--weighting", "adaptive", "--", "echo"])
    assert prepare(request, environment)["UNISONO_WEIGHTING"] == "adaptive"


def test_a_bad_weighting_gives_one_line_and_2(capsys):
    assert cli.main(["run", "--weighting", "krum", "--", "echo"]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert err.startswith("unisono: error: a weighting should be")


def test_the_guard_travels_in_the_environment():
    assert prepare(parse(["--guard", "--", "echo"]), {})["UNISONO_GUARD"] == "on"
    assert "UNISONO_GUARD" not in prepare(parse(["--", "echo"]), {})


@pytest.mark.parametrize("line", [["--guard-file", "here.toml"], ["--guard-file=here.toml", "--guard"]])
def test_the_guard_file_travels_as_an_absolute_path_and_says_more_than_the_switch(line, tmp_path):
    Path("here.toml").write_text("[guard]\nnorm_spike = 20\n")
    assert prepare(parse([*line, "--", "echo"]), {})["UNISONO_GUARD"] == str(tmp_path / "here.toml")


@pytest.mark.parametrize("content", ["[guard", "[guard]\nnorm_spke = 3", "[guard]\nnorm_spike = 0.5", "", "[other]"])
def test_a_bad_guard_file_gives_one_line_and_2_and_nothing_is_started(content, capsys, tmp_path):
    Path("bad.toml").write_text(content)
    assert cli.main(["run", "--guard-file", "bad.toml", "--", "touch", "started"]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n"), "bad.toml" in err) == ("", 1, True)
    assert not (tmp_path / "started").exists()


def test_a_bad_guard_in_the_environment_is_refused_unless_another_is_given():
    environment = {"UNISONO_GUARD": "/nowhere/guard.toml"}
    with pytest.raises(UserError, match="nowhere"):
        prepare(parse(["--", "echo"]), environment)
    assert prepare(parse(["--guard", "--", "echo"]), environment)["UNISONO_GUARD"] == "on"
    assert prepare(parse(["--", "echo"]), {"UNISONO_GUARD": "on"})["UNISONO_GUARD"] == "on"
