"""The wheel, installed where there is nothing of this repository: beside torch and numpy alone, and without torch."""

import json
import shutil
import subprocess
import sys
import venv
from importlib.metadata import distribution
from pathlib import Path
from zipfile import ZipFile

import pytest

import unisono
from launch import SCRIPTS, launch

pytest.importorskip("build", reason="build, which makes the wheel, is not installed")
requirements = pytest.importorskip("packaging.requirements")

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]
CONSTRAINTS = ROOT / "constraints.txt"


class Environment:
    """A fresh virtual environment; pip stays outside of it."""

    def __init__(self, folder, *borrowed):
        venv.create(folder / "venv", symlinks=True)
        self.folder, self.bin = folder, folder / "venv" / "bin"
        if borrowed:
            (site,) = folder.glob("venv/lib/python*/site-packages")
            (site / "borrowed.pth").write_text(str(borrow(borrowed, folder / "borrowed")))

    def install(self, requirement):
        command = [sys.executable, "-m", "pip", "--python", self.bin / "python", "install", "-q", "-c", CONSTRAINTS]
        done = launch([*command, requirement], cwd=self.folder, timeout=300)
        assert done.returncode == 0, done

    def run(self, program, *arguments):
        done = launch([self.bin / program, *arguments], cwd=self.folder, timeout=300)
        assert done.returncode == 0, done
        return done.stdout.decode()

    def says(self, code):
        return self.run("python", "-c", f"import importlib.util; {code}").split()


def borrow(names, folder):
    """Links to these packages and to what they need, outside of the environment: pip uninstalls nothing there."""
    folder.mkdir()
    for found in closure(names):
        tops = {file.parts[0] for file in found.files} - {"..", "__pycache__"}
        for top in tops:
            if not (folder / top).exists():
                (folder / top).symlink_to(found.locate_file(top))
    return folder


def closure(names):
    wanted, known = list(names), {}
    while wanted:
        name = wanted.pop()
        if name not in known:
            known[name] = distribution(name)
            needed = map(requirements.Requirement, known[name].requires or ())
            wanted += [need.name for need in needed if need.marker is None or need.marker.evaluate({"extra": ""})]
    return known.values()


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    folder = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert [path.name for path in folder.glob("*.tar.gz")] == [f"unisono-{unisono.__version__}.tar.gz"]
    (made,) = folder.glob("*.whl")
    return made


@pytest.fixture(scope="module")
def beside_torch(wheel, tmp_path_factory):
    environment = Environment(tmp_path_factory.mktemp("beside-torch"), "torch", "numpy")
    environment.install(f"{wheel}[report]")
    return environment


@pytest.fixture(scope="module")
def without_torch(wheel, tmp_path_factory):
    environment = Environment(tmp_path_factory.mktemp("without-torch"))
    environment.install(str(wheel))
    return environment


@pytest.fixture(scope="module")
def faulty_run(beside_torch):
    told = beside_torch.run("unisono", "demo", "--workers", "2", "--out", "demo")
    assert "UN101" in told
    return beside_torch.folder / "demo" / "duplicated-data"


def test_it_is_what_was_installed_and_torch_is_not_replaced(beside_torch):
    homes = beside_torch.says("import torch, unisono; print(torch.__file__, unisono.__file__)")
    assert homes[0].startswith(str(beside_torch.folder / "borrowed"))
    assert homes[1].startswith(str(beside_torch.folder / "venv"))
    assert beside_torch.says("print(importlib.util.find_spec('pytest'))") == ["None"]
    assert beside_torch.run("unisono", "--version").split()[-1] == unisono.__version__


@pytest.mark.skipif(not any(map(shutil.which, ("cc", "gcc", "clang"))), reason="there is no C compiler")
def test_the_compiled_fold_is_inside_and_is_used(wheel, beside_torch):
    assert not wheel.name.endswith("-none-any.whl")
    assert "unisono/sketch/_fold.so" in ZipFile(wheel).namelist()
    assert beside_torch.says("from unisono.sketch import native; print(native.available())") == ["True"]


def test_the_first_steps_of_a_job_are_judged(beside_torch):
    for name in ("loader.py", "weights.py"):
        shutil.copy(SCRIPTS / name, beside_torch.folder)
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    job = [beside_torch.bin / "python", *launcher, "loader.py"]
    told = beside_torch.run("unisono", "smoke", "--steps", "60", "--out", "smoke", "--", *job)
    assert "healthy" in told
    assert (beside_torch.folder / "smoke" / "run.jsonl").exists()


def test_a_run_is_diagnosed_and_shown(beside_torch, faulty_run):
    told = json.loads(beside_torch.run("unisono", "diagnose", faulty_run, "--json"))
    assert (told["verdict"], told["findings"][0]["code"]) == ("critical", "UN101")
    beside_torch.run("unisono", "report", faulty_run, "-o", "page.html")
    assert "UN101" in (beside_torch.folder / "page.html").read_text()


def test_without_torch_runs_can_be_read(without_torch, faulty_run):
    assert without_torch.says("import unisono, unisono.records; print(importlib.util.find_spec('torch'))") == ["None"]
    assert "usage: unisono" in without_torch.run("unisono", "--help")
    assert "UN101" in without_torch.run("unisono", "diagnose", faulty_run)
