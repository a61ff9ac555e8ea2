"""What unisono says of one small run, byte by byte: a change of these texts is meant, or it is a mistake."""

import difflib
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

GOLDEN = Path(__file__).parents[2] / "golden"
RENEW = "If that is meant: python tests/golden/renew.py, and look at what git diff shows."


@pytest.fixture(scope="module")
def said_now(tmp_path_factory):
    """From a folder and a terminal of other kinds than those in which the files were written."""
    folder = tmp_path_factory.mktemp("golden")
    environment = os.environ | {"COLUMNS": "57", "TZ": "Asia/Kathmandu"}
    subprocess.run([sys.executable, GOLDEN / "renew.py", "--into", folder], cwd=folder, env=environment, check=True)
    return folder


def compare(name, folder):
    expected, found = ((place / name).read_bytes() for place in (GOLDEN, folder))
    changes = difflib.unified_diff(
        expected.decode().splitlines(), found.decode().splitlines(), "was", "is", lineterm=""
    )
    assert expected == found, "\n".join([f"{name} has changed. {RENEW}", *changes])


@pytest.mark.parametrize("name", ["diagnose.json", "diagnose.txt"])
def test_the_diagnosis_is_as_it_was(name, said_now):
    compare(name, said_now)


@pytest.mark.skipif(sys.version_info >= (3, 13), reason="later Pythons set the help of options in another way")
def test_the_help_of_every_command_is_as_it_was(said_now):
    compare("help.txt", said_now)


def test_the_page_is_as_it_was(said_now):
    bokeh = pytest.importorskip("bokeh")
    drawn_by = re.search(r"bokeh (\S+)", (GOLDEN / "page.sha256").read_text())[1]
    if bokeh.__version__ != drawn_by:
        pytest.skip(f"the page was drawn by Bokeh {drawn_by}, and {bokeh.__version__} is installed")
    compare("page.sha256", said_now)
