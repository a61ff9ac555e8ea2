"""`unisono report`: where the page goes, and what is said when it cannot be made."""

import subprocess
import sys

import pytest

import invented_runs as invented
from unisono.cli.main import main

pytest.importorskip("bokeh")


@pytest.fixture
def run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return invented.run(tmp_path / "run", count=30)


def test_the_page_goes_into_the_run_directory(run, capsys):
    assert main(["report", "run"]) == 0
    assert (run / "report.html").read_text().startswith("<!doctype html>")
    told = capsys.readouterr().out.splitlines()
    assert told[0].startswith("healthy: 30 steps, 4 workers")
    assert told[1] == "report: run/report.html"


def test_or_where_it_is_asked_for(run, capsys):
    assert main(["report", "run/run.jsonl", "-o", "page.html"]) == 0
    assert capsys.readouterr().out.endswith("report: page.html\n")
    assert not (run / "report.html").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["report", "nowhere"], "Found nothing at `nowhere`"),
        (["report", "run", "-o", "no/where.html"], "Make it first"),
        (["report", "run", "-o", "run"], "should be a regular file"),
        (["report", "run", "-o", ""], "should have a name"),
        (["report"], "required"),
    ],
)
def test_bad_input_is_told_in_one_line(run, capsys, arguments, message):
    assert main(arguments) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.startswith("unisono: error: ")
    assert error.count("\n") == 1


@pytest.mark.parametrize("arguments", [["report", "run"], ["compare", "run", "other"], ["compare", "other", "run"]])
def test_a_run_is_never_replaced_by_its_page(run, capsys, arguments):
    invented.run(run.parent / "other", count=20)
    before = (run / "run.jsonl").read_bytes()
    (run.parent / "link.html").symlink_to(run / "run.jsonl")
    for target in ("run/run.jsonl", "link.html"):
        assert main([*arguments, "-o", target]) == 2
        assert "should not replace " in capsys.readouterr().err
    assert (run / "run.jsonl").read_bytes() == before


def test_a_wrong_place_is_told_before_the_run_is_read(run, capsys):
    (run / "run.jsonl").write_text("damaged\n")
    assert main(["report", "run", "-o", "no/where.html"]) == 2
    assert "Make it first" in capsys.readouterr().err


def test_a_run_without_records_leaves_no_page(run, capsys):
    (run / "run.jsonl").write_text("damaged\n")
    assert main(["report", "run"]) == 2
    assert not (run / "report.html").exists()


WITHOUT = """
import sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {missing!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Missing())
import importlib.util
real = importlib.util.find_spec
importlib.util.find_spec = lambda name, package=None: None if name in {missing!r} else real(name, package)
from unisono.cli.main import main
sys.exit(main(sys.argv[1:]))
"""


def without(missing, *arguments):
    code = WITHOUT.format(missing=missing)
    return subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True)


def test_it_works_without_torch(run):
    done = without(("torch",), "report", "run")
    assert done.returncode == 0, done.stderr
    assert (run / "report.html").exists()


@pytest.mark.parametrize(
    "arguments", [["report", "run"], ["live", "run"], ["compare", "run", "run/..", "-o", "x.html"]]
)
def test_without_bokeh_it_says_what_to_install(run, arguments):
    invented.run(run.parent, count=20)
    done = without(("bokeh",), *arguments)
    assert done.returncode == 2
    assert 'pip install "unisono[report]"' in done.stderr
    assert done.stderr.count("\n") == 1
