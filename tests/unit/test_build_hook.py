"""Building with and without a C compiler."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from zipfile import ZipFile

import pytest

import unisono

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "unisono" / "sketch" / "fold.c"


@pytest.fixture(scope="module")
def hook():
    pytest.importorskip("hatchling", reason="hatchling, which builds the package, is not installed")
    spec = importlib.util.spec_from_file_location("hatch_build", ROOT / "hatch_build.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("compiler", "said"),
    [("false", "exit code 1"), ("/nowhere/cc", "No such file"), ("sh -c 'echo bad >&2; exit 3'", "bad")],
)
def test_without_a_compiler_there_is_no_library_and_a_reason(hook, tmp_path, monkeypatch, compiler, said) -> None:
    monkeypatch.setenv("CC", compiler)
    library = tmp_path / "_fold.so"
    library.write_text("from an older build")
    trouble = hook.compile_library(SOURCE, library)
    assert said in trouble
    assert "\n" not in trouble
    assert list(tmp_path.iterdir()) == []


def build(hook, version: str) -> tuple[dict[str, object], list[str]]:
    warnings: list[str] = []
    made = hook.NativeBuildHook(
        str(ROOT), {}, None, None, "", "wheel", SimpleNamespace(display_warning=warnings.append)
    )
    data: dict[str, object] = {"force_include": {}, "pure_python": True}
    made.initialize(version, data)
    made.finalize(version, data, "")
    return data, warnings


def test_a_wheel_without_the_library_is_pure(hook, monkeypatch) -> None:
    monkeypatch.setenv("CC", "false")
    data, warnings = build(hook, "standard")
    assert data == {"force_include": {}, "pure_python": True}
    assert warnings == ["unisono is built without its native fold: false: exit code 1"]


def test_a_whole_build_without_a_compiler_gives_a_wheel_for_any_platform(hook, tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("CC", "/nowhere/cc")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    (wheel,) = tmp_path.iterdir()
    assert wheel.name == f"unisono-{unisono.__version__}-py3-none-any.whl"
    assert not [name for name in ZipFile(wheel).namelist() if name.endswith(".so")]


def test_a_wheel_with_the_library_is_bound_to_its_platform(hook, tmp_path, monkeypatch) -> None:
    compiler = tmp_path / "cc"
    compiler.write_text('#!/bin/sh\nwhile [ "$1" != -o ]; do shift; done\ntouch "$2"\n')
    compiler.chmod(0o755)
    monkeypatch.setenv("CC", str(compiler))
    data, warnings = build(hook, "standard")
    assert list(data["force_include"].values()) == ["unisono/sketch/_fold.so"]
    assert (data["pure_python"], warnings) == (False, [])
    assert re.fullmatch(r"py3-none-\w+", data["tag"])
