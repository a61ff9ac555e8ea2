"""A script under `unisono run` cannot tell the difference, nor can whoever started it."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from launch import clean_environment
from unisono.cli.commands.run import STARTUP_DIR
from unisono.show.analysis.checkup import examine

PYTHON = [sys.executable]
UNISONO = [sys.executable, "-m", "unisono", "run"]
FORMS = {"command": [*UNISONO, "--out", "kept", "--", *PYTHON], "script": [*UNISONO, "--out", "kept"]}

# Stands in for torch: importing the real one takes seconds, and the hook only cares for the name.
FAKE_TORCH = "print('torch is here')\n"


@pytest.fixture(autouse=True)
def workplace(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def start(command, **variables):
    environment = {**clean_environment(), **variables}
    return subprocess.run(command, env=environment, capture_output=True, stdin=subprocess.DEVNULL, timeout=60)


def write(path, text):
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Path(path).write_text(text)


def assert_same(plain, watched):
    assert watched.returncode == plain.returncode
    assert watched.stdout == plain.stdout
    assert watched.stderr == plain.stderr


def hooked_line(script):
    """What `unisono run` amounts to, without a `unisono` in front that would run the other `sitecustomize` as well."""
    return f'UNISONO_AUTO=1 PYTHONPATH="{STARTUP_DIR}:$PYTHONPATH" exec "{sys.executable}" {script}'


SCRIPTS = {
    "ends well": "print('fine')",
    "exit code 3": "import sys; sys.exit(3)",
    "exit with a text": "import sys; sys.exit('this is why')",
    "raises": "def f():\n    raise ValueError('no')\n\nf()",
    "does not parse": "print('x'",
    "killed": "import os, signal; os.kill(os.getpid(), signal.SIGKILL)",
    "terminated": "import os, signal; os.kill(os.getpid(), signal.SIGTERM)",
    "interrupted": "import os, signal; os.kill(os.getpid(), signal.SIGINT)",
    "arguments": "import sys; print(sys.argv, sys.flags)",
    "names": "import sys; print(__name__, __file__, __spec__, sys.modules['__main__'].__dict__.keys())",
    "path": "import sys; print(sys.path)",
    "bytes": "import sys; sys.stdout.buffer.write(bytes(range(256))); sys.stderr.write('e')",
    "modules": "import sys; print(sorted(set(sys.modules) - {'sitecustomize', '__future__'}))",
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("text", SCRIPTS.values(), ids=SCRIPTS.keys())
def test_a_script_behaves_as_before(text, form):
    write("script.py", text)
    line = ["script.py", "--out", "x", "-m", "--", "y z"]
    assert_same(start([*PYTHON, *line]), start([*FORMS[form], *line]))


@pytest.mark.parametrize("form", FORMS)
def test_a_module_behaves_as_before(form):
    write("pkg/__init__.py", "")
    write("pkg/train.py", "import sys; print(__name__, __package__, __file__, sys.argv, sys.path)\nraise SystemExit(4)")
    line = ["-m", "pkg.train", "--lr", "1"]
    assert_same(start([*PYTHON, *line]), start([*FORMS[form], *line]))


def test_a_line_of_code_behaves_as_before():
    line = ["-c", "import sys; print(sys.argv, sys.path, __name__)", "x"]
    assert_same(start([*PYTHON, *line]), start([*FORMS["command"], *line]))


def test_flags_of_the_interpreter_reach_the_script():
    write("script.py", "import sys; print(sys.flags, sys.warnoptions, sys.stdout.write_through)")
    flags = ["-u", "-X", "dev", "-W", "error", "-B"]
    plain = start([*PYTHON, *flags, "script.py"])
    assert_same(plain, start([*PYTHON, *flags, "-m", "unisono", "run", "--out", "kept", "script.py"]))


def test_signals_reach_the_script():
    write("script.py", "import signal\nprint('ready', flush=True)\nsignal.pause()")
    process = subprocess.Popen(
        [*FORMS["command"], "script.py"], env=clean_environment(), stdout=subprocess.PIPE, stdin=subprocess.DEVNULL
    )
    with process:
        assert process.stdout.readline() == b"ready\n"
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=20) == -signal.SIGTERM


def test_other_programs_keep_their_signals():
    line = ["bash", "-c", "trap -p PIPE; yes | head -n 1; echo ${PIPESTATUS[0]}"]
    assert_same(start(line), start([*UNISONO, "--out", "kept", "--", *line]))


def test_another_sitecustomize_still_runs():
    write("theirs/sitecustomize.py", "import sys; print('theirs', __name__, __file__); sys.flavour = 'theirs'")
    write("script.py", "import sys, sitecustomize; print(sys.flavour, sitecustomize, sys.path)")
    path = str(Path("theirs").absolute())
    plain = start([*PYTHON, "script.py"], PYTHONPATH=path)
    assert b"theirs sitecustomize" in plain.stdout
    assert_same(plain, start(["bash", "-c", hooked_line("script.py")], PYTHONPATH=path))


@pytest.mark.parametrize("error", ["raise ValueError('theirs is broken')", "import no_such_module"])
def test_a_broken_sitecustomize_is_reported_as_before(error):
    write("theirs/sitecustomize.py", error)
    write("script.py", "print('on we go')")
    path = str(Path("theirs").absolute())
    plain = start([*PYTHON, "script.py"], PYTHONPATH=path)
    assert b"on we go" in plain.stdout
    assert_same(plain, start(["bash", "-c", hooked_line("script.py")], PYTHONPATH=path))


def with_fake_torch(install):
    """A `torch` to import and an `autoattach` that says it was called; the rest of unisono is the real one."""
    write("fakes/torch/__init__.py", FAKE_TORCH)
    write("fakes/torch/half.py", "")
    write("fakes/fake_autoattach.py", install)
    redirect = "import sys\nimport fake_autoattach\nsys.modules['unisono.monitor.autoattach'] = fake_autoattach\n"
    write("fakes/sitecustomize.py", redirect)
    return str(Path("fakes").absolute())


INSTALL = "import sys\ndef install():\n    print('listening', hasattr(sys.modules['torch'], '__path__'))\n"


@pytest.mark.parametrize(
    "line", [["script.py"], ["-m", "script"], ["-c", "import torch.half"]], ids=["script", "module", "code"]
)
def test_unisono_is_let_in_after_torch(line):
    write("script.py", "import torch.half")
    watched = start([*FORMS["command"], *line], PYTHONPATH=with_fake_torch(INSTALL))
    assert watched.stdout == b"torch is here\nlistening True\n", watched.stderr


def test_torch_keeps_its_own_loader():
    code = "import sys, torch; print(type(torch.__loader__), type(torch.__spec__.loader), len(sys.meta_path))"
    path = with_fake_torch("def install(): pass")
    assert_same(start([*PYTHON, "-c", code], PYTHONPATH=path), start([*FORMS["command"], "-c", code], PYTHONPATH=path))


def test_spawned_processes_are_reached_too():
    write(
        "script.py",
        "import multiprocessing\n"
        "def work():\n    import torch\n"
        "if __name__ == '__main__':\n"
        "    process = multiprocessing.get_context('spawn').Process(target=work)\n"
        "    process.start(); process.join(); print(process.exitcode)\n",
    )
    watched = start([*FORMS["command"], "script.py"], PYTHONPATH=with_fake_torch(INSTALL))
    assert watched.stdout == b"torch is here\nlistening True\n0\n", watched.stderr


def test_a_failing_unisono_is_one_line_and_the_script_runs_on():
    path = with_fake_torch("def install(): raise RuntimeError('out of order')")
    watched = start([*FORMS["command"], "-c", "import torch; print('on we go')"], PYTHONPATH=path)
    assert watched.returncode == 0
    assert watched.stdout == b"torch is here\non we go\n"
    assert watched.stderr.count(b"\n") == 1
    assert b"unisono: not listening in process" in watched.stderr
    assert b"out of order" in watched.stderr


def test_a_torch_that_fails_fails_as_before():
    write("fakes/torch.py", "raise OSError('libtorch.so is missing')")
    path = str(Path("fakes").absolute())
    line = ["-c", "import torch"]
    plain, watched = start([*PYTHON, *line], PYTHONPATH=path), start([*FORMS["command"], *line], PYTHONPATH=path)
    assert (watched.returncode, watched.stdout) == (plain.returncode, plain.stdout) == (1, b"")
    assert b"OSError: libtorch.so is missing" in watched.stderr


def test_off_is_off():
    path = with_fake_torch(INSTALL)
    code = "import os, sys, torch; print(sorted(os.environ), len(sys.meta_path))"
    plain = start([*PYTHON, "-c", code], PYTHONPATH=path, UNISONO="off")
    assert_same(plain, start([*FORMS["command"], "-c", code], PYTHONPATH=path, UNISONO="off"))
    assert not Path("kept").exists()


def test_off_inside_is_off():
    watched = start([*FORMS["command"], "-c", "import torch"], PYTHONPATH=with_fake_torch(INSTALL), UNISONO_AUTO="0")
    assert b"listening" in watched.stdout
    quiet = ["env", "UNISONO=off", *PYTHON, "-c", "import torch"]
    watched = start([*UNISONO, "--out", "kept", "--", *quiet], PYTHONPATH=with_fake_torch(INSTALL))
    assert watched.stdout == b"torch is here\n"


@pytest.mark.parametrize(
    "line",
    [
        [],
        ["--"],
        ["--every", "0", "--", "true"],
        ["--", "no-such-command"],
        ["missing.py"],
        ["--frobnicate", "--", "true"],
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(line):
    refused = start([*UNISONO, *line])
    assert refused.returncode == 2
    assert refused.stdout == b""
    assert refused.stderr.startswith(b"unisono: error: ")
    assert refused.stderr.count(b"\n") == 1
    assert not Path("unisono-runs").exists()


FAILS_IN_BACKWARD = """
import os
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


class Bad(torch.autograd.Function):
    @staticmethod
    def forward(context, x):
        return x.clone()

    @staticmethod
    def backward(context, gradient):
        raise ValueError("bad gradient")


dist.init_process_group("gloo", init_method=f"file://{os.path.abspath('group')}-{os.getpid()}", rank=0, world_size=1)
model = DistributedDataParallel(torch.nn.Linear(2, 2))
Bad.apply(model(torch.ones(1, 2))).sum().backward()
"""


def test_an_error_in_backward_shows_no_frame_of_ours():
    write("fails.py", FAILS_IN_BACKWARD)
    plain = start([*PYTHON, "fails.py"])
    watched = start([*FORMS["command"], "fails.py"])
    lines = [line for line in watched.stderr.decode().splitlines() if not line.startswith("unisono: ")]
    assert watched.returncode == plain.returncode == 1
    assert lines == plain.stderr.decode().splitlines()
    assert b"unisono: one worker only" in watched.stderr, "unisono was not there"


def test_of_a_job_that_never_trains_the_header_says_so():
    assert start([*UNISONO, "--", *PYTHON, "-c", "pass"]).returncode == 0
    found = examine("unisono-runs/latest")
    assert (found.verdict, found.heard.level) == ("unheard", "nothing")
