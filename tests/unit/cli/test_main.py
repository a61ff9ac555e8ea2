import io
import os
import pkgutil
import subprocess
import sys

import pytest

from unisono import __version__
from unisono.cli import commands
from unisono.cli import main as cli
from unisono.cli.commands import export as export_command
from unisono.common.terminal import plain
from unisono.records import RunRecord, StepRecord, to_line

HEADER = to_line(RunRecord(1, "r", 1.5, "", ""))


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch):
    """A folder with a good run, and with everything that is not one."""
    monkeypatch.chdir(tmp_path)
    for name in ("run", "empty", "newer", "text", "out"):
        os.mkdir(name)
    (tmp_path / "run/run.jsonl").write_text(HEADER + "\n" + to_line(StepRecord(1, 0, 1.5, loss_W=(0.5,))) + "\n")
    (tmp_path / "newer/run.jsonl").write_text(HEADER.replace('"format":1', '"format":2'))
    (tmp_path / "text/run.jsonl").write_text("\x1b[31mhello\n")
    (tmp_path / "file").write_text("")
    (tmp_path / "loop").symlink_to("loop")
    os.mkfifo(tmp_path / "fifo")
    return tmp_path


def call(*arguments):
    try:
        return cli.main(arguments)
    except SystemExit as leaving:
        return leaving.code


EXPORT = ("export", "run", "--to", "csv")
BAD_INPUT = {
    "no command": (),
    "unknown command": ("banana",),
    "empty command": ("",),
    "misspelt command": ("exprot",),
    "command with newline": ("ex\nport",),
    "command with escape": ("\x1b[31mexport",),
    "command not UTF-8": ("\udcff",),
    "abbreviated command": ("exp",),
    "unknown option": ("--banana",),
    "unknown option before command": ("--banana", *EXPORT, "t.csv"),
    "abbreviated option": ("--vers",),
    "two dashes": ("--",),
    "one dash": ("-",),
    "nothing to export": ("export",),
    "no format": ("export", "run", "t.csv"),
    "no format given": ("export", "run", "t.csv", "--to"),
    "unknown format": ("export", "run", "--to", "xml", "t.xml"),
    "empty format": ("export", "run", "--to", "", "t.csv"),
    "number as format": ("export", "run", "--to", "nan", "t.csv"),
    "format in capitals": ("export", "run", "--to", "CSV", "t.csv"),
    "abbreviated --to": ("export", "run", "--t", "csv", "t.csv"),
    "no file": EXPORT,
    "one file too many": (*EXPORT, "t.csv", "u.csv"),
    "unknown option of the command": (*EXPORT, "t.csv", "--banana"),
    "option as run": ("export", "-run", "--to", "csv", "t.csv"),
    "missing run": ("export", "none", "--to", "csv", "t.csv"),
    "empty run name": ("export", "", "--to", "csv", "t.csv"),
    "run with newline": ("export", "no\nne", "--to", "csv", "t.csv"),
    "run with spaces": ("export", " no ne ", "--to", "csv", "t.csv"),
    "run with NUL": ("export", "a\0b", "--to", "csv", "t.csv"),
    "run not UTF-8": ("export", "\udcff", "--to", "csv", "t.csv"),
    "run in unicode": ("export", "läufe/é", "--to", "csv", "t.csv"),
    "run name too long": ("export", "x" * 5000, "--to", "csv", "t.csv"),
    "empty directory": ("export", "empty", "--to", "csv", "t.csv"),
    "empty file": ("export", "file", "--to", "csv", "t.csv"),
    "below a file": ("export", "file/run", "--to", "csv", "t.csv"),
    "newer format": ("export", "newer", "--to", "csv", "t.csv"),
    "not a run": ("export", "text", "--to", "csv", "t.csv"),
    "link in a circle": ("export", "loop", "--to", "csv", "t.csv"),
    "pipe": ("export", "fifo", "--to", "csv", "t.csv"),
    "device": ("export", "/dev/null", "--to", "csv", "t.csv"),
    "empty output": (*EXPORT, ""),
    "output is a directory": (*EXPORT, "out"),
    "output in no directory": (*EXPORT, "none/t.csv"),
    "output below a file": (*EXPORT, "file/t.csv"),
    "output is a pipe": (*EXPORT, "fifo"),
    "output in a circle": (*EXPORT, "loop"),
    "output with NUL": (*EXPORT, "a\0b"),
    "output name too long": (*EXPORT, "x" * 5000),
    "output is the run": (*EXPORT, "run/run.jsonl"),
}


@pytest.mark.parametrize("arguments", BAD_INPUT.values(), ids=BAD_INPUT)
def test_bad_input_gives_one_line_and_2(arguments, capsys, place):
    before = sorted(os.listdir(place))
    assert call(*arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("unisono: error: ")
    assert err.count("\n") == 1
    assert err[:-1].isprintable()
    assert "unexpected" not in err
    assert sorted(os.listdir(place)) == before


def test_export_writes_the_table(place, capsys):
    assert call(*EXPORT, "t.csv") == 0
    assert (place / "t.csv").read_text().count("\n") == 2
    assert capsys.readouterr() == ("", "")


def test_the_nearest_command_is_suggested(capsys):
    call("exprot")
    assert "Did you mean `export`?" in capsys.readouterr().err


def test_version(capsys):
    assert call("--version") == 0
    assert capsys.readouterr().out == f"unisono {__version__}\n"


def test_help_names_every_command_in_its_group(capsys):
    assert call("--help") == 0
    out = capsys.readouterr().out
    for group, entries in commands.COMMANDS.items():
        assert f"\n{group}:\n" in out
        assert all(f"  {name:<10} {summary}" in out for name, summary in entries.items())


def test_every_command_has_a_module_and_every_module_a_line():
    assert sorted(cli.NAMES) == sorted(module.name for module in pkgutil.iter_modules(commands.__path__))


def test_each_command_explains_itself(capsys):
    for name in cli.NAMES:
        assert call(name, "--help") == 0
        assert f"unisono {name}" in capsys.readouterr().out


def test_a_command_with_main_gets_its_line_untouched(monkeypatch):
    seen = []
    monkeypatch.setattr(export_command, "main", lambda rest: seen.append(rest) or 7, raising=False)
    assert call("export", "--out", "x", "--", "--debug", "-m") == 7
    assert seen == [["--out", "x", "--", "--debug", "-m"]]


def failing_export(monkeypatch, error):
    def fail(_args):
        raise error

    monkeypatch.setattr(export_command, "run", fail)
    return call(*EXPORT, "t.csv")


def test_ctrl_c_gives_130(monkeypatch, capsys):
    assert failing_export(monkeypatch, KeyboardInterrupt()) == 130
    assert capsys.readouterr().err == ""


def test_a_mistake_of_ours_is_one_line_too(monkeypatch, capsys):
    assert failing_export(monkeypatch, KeyError("x\n\x1b[31my")) == 2
    assert capsys.readouterr().err.startswith("unisono: error: unexpected KeyError")


def test_debug_shows_the_traceback():
    with pytest.raises(ValueError, match="Found nothing"):
        cli.main(["--debug", "export", "none", "--to", "csv", "t.csv"])


def test_text_from_files_cannot_steer_the_terminal():
    assert plain("a\x1b[31mb\nc\x9bd\u202ee\x07") == "a[31mb cde"


@pytest.mark.parametrize("environment", [{}, {"PYTHONUNBUFFERED": "1"}, {"LANG": "C", "PYTHONIOENCODING": "ascii"}])
def test_a_closed_pipe_is_no_error(environment):
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "unisono", "--help"]
    whole_environment = os.environ | {"PYTHONUNBUFFERED": ""} | environment
    result = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, env=whole_environment)
    os.close(writer)
    assert (result.returncode, result.stderr) == (0, b"")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="this system has no full device")
@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("arguments", [["--help"], ["explain", "UN101"], ["diagnose", "--help"]])
def test_a_full_device_is_told_in_one_line(arguments, unbuffered):
    environment = os.environ | {"PYTHONUNBUFFERED": unbuffered}
    with open("/dev/full", "w") as full:
        command = [sys.executable, "-m", "unisono", *arguments]
        result = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, env=environment)
    assert result.returncode == 2
    assert result.stderr == (
        "unisono: error: stdout should take what is printed. Found [Errno 28] No space left on device. Make room, or "
        "send it elsewhere.\n"
    )


def test_an_output_without_unicode_is_no_error(monkeypatch):
    output = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stdout", output)
    monkeypatch.setattr(export_command, "run", lambda _args: print("é\udcff") or 0)
    assert call(*EXPORT, "t.csv") == 0
    assert output.buffer.getvalue() == b"\\xe9\\udcff\n"


def test_no_stdout_at_all_is_no_error():
    assert (
        subprocess.run(["sh", "-c", f"{sys.executable} -m unisono --version >&-"], stderr=subprocess.DEVNULL).returncode
        == 0
    )


def test_the_command_line_loads_only_what_it_needs():
    script = "import sys, unisono.cli.main; print(*sys.modules)"
    modules = subprocess.check_output([sys.executable, "-c", script], text=True).split()
    assert "unisono.cli.main" in modules
    assert not {"torch", "pyarrow", "unisono.records.export", "unisono.records.runfile"} & set(modules)
