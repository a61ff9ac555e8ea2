"""`unisono run`: start a training script, unchanged, with unisono listening inside.

Both forms prepare the environment and then become the command (`exec`), so that output, exit code, signals, `sys.argv`
and tracebacks are the script's own. What listens is brought into every Python child by `startup/sitecustomize.py`.
"""

from __future__ import annotations

import os
import re
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NoReturn

from unisono.cli.run_arguments import INHERITED, USAGE, VARIABLES, RunRequest, parse
from unisono.cli.run_header import BEGAN, begin_run_file, script_name
from unisono.common.errors import UserError
from unisono.records.runfile import RUNS, new_run_dir

STARTUP_DIR = Path(__file__).resolve().parents[2] / "monitor" / "startup"
# Each of these is set by some launcher in the processes it starts; a directory chosen here would be one per rank.
RANK_VARIABLES = ("RANK", "LOCAL_RANK", "SLURM_STEP_ID", "OMPI_COMM_WORLD_RANK", "PMI_RANK")


def main(argv: Sequence[str]) -> int:
    """Becomes the command. Returns only to show the usage; raises `UserError` for bad input."""
    request = parse(argv)
    if not request.help:
        become(request.command or python_command(request.script), prepare(request, os.environ))
    print(USAGE, end="")
    return 0


def python_command(script: Sequence[str]) -> tuple[str, ...]:
    return (sys.executable, *interpreter_flags(sys.orig_argv, sys.argv[1:]), *script)


def interpreter_flags(whole_line: Sequence[str], own_arguments: Sequence[str]) -> list[str]:
    """The interpreter's options, taken from the line as typed: `sys.flags` does not know torchrun's `-u`."""
    *flags, program = whole_line[1 : len(whole_line) - len(own_arguments)]
    if program.startswith("-"):
        flags.append(program.partition("m")[0])
    elif flags and re.fullmatch(r"-[a-zA-Z?]*m", flags[-1]) and not re.search(r"[WX]", flags[-1]):
        flags[-1] = flags[-1][:-1]
    return [flag for flag in flags if flag != "-"]


def prepare(request: RunRequest, environment: Mapping[str, str]) -> dict[str, str]:
    """The environment in which the startup hook finds its settings. Begins the run, so that it fails early."""
    prepared = dict(environment)
    if environment.get("UNISONO", "").lower() == "off":
        return prepared
    given = {VARIABLES[name] for name in request.options}
    for variable, check in INHERITED.items():
        if variable not in given and (inherited := environment.get(variable)):
            check(inherited)
    prepared["UNISONO_AUTO"] = "1"
    prepared["PYTHONPATH"] = with_startup(environment.get("PYTHONPATH", ""))
    prepared |= {VARIABLES[name]: value for name, value in request.options.items()}
    if run_dir := prepared.get("UNISONO_RUN_DIR"):
        make_run_dir(run_dir)
    elif request.command and not any(variable in environment for variable in RANK_VARIABLES):
        # Chosen once and before the launcher, so that its restarts continue the same run.
        run_dir = prepared["UNISONO_RUN_DIR"] = chosen_run_dir(script_name(request.command))
    if run_dir and environment.get("RANK", "0") == "0":
        length = begin_run_file(Path(run_dir), script_name(request.command or request.script))
        prepared[BEGAN] = str(length)
    return prepared


def with_startup(python_path: str) -> str:
    """Ours first. An empty entry would mean the current directory, so none is left behind."""
    others = [entry for entry in python_path.split(os.pathsep) if entry != str(STARTUP_DIR)]
    return os.pathsep.join([str(STARTUP_DIR), *others] if python_path else [str(STARTUP_DIR)])


def chosen_run_dir(name: str) -> str:
    try:
        return os.path.abspath(new_run_dir(RUNS, name))
    except OSError as error:
        raise UserError(
            f"`{RUNS}` should be a directory that can be written to. Found {os.path.abspath(RUNS)} "
            f"({error.strerror}). Name another place with --out DIR."
        ) from error


def make_run_dir(run_dir: str) -> None:
    try:
        Path(run_dir).mkdir(mode=0o700, parents=True, exist_ok=True)
        writable = os.access(run_dir, os.W_OK | os.X_OK)
    except OSError as error:
        raise UserError(
            f"the run directory should be a directory that can be made. Found `{run_dir}` ({error.strerror}). "
            "Name another with --out DIR."
        ) from error
    if not writable:
        raise UserError(
            f"the run directory should be writable. Found `{run_dir}`, which is not. Name another with --out DIR."
        )


def become(command: Sequence[str], environment: Mapping[str, str]) -> NoReturn:
    sys.stdout.flush()
    sys.stderr.flush()
    # Python ignores these, and `exec` would hand that on to programs that rely on them.
    for name in ("SIGPIPE", "SIGXFSZ"):
        signal.signal(getattr(signal, name), signal.SIG_DFL)
    try:
        os.execvpe(command[0], list(command), dict(environment))  # noqa: S606 (a shell would change the arguments)
    except OSError as error:
        raise UserError(
            f"the command of `unisono run` should be a program that can be started. Found `{command[0]}` "
            f"({error.strerror}). Check that it runs without unisono."
        ) from error
