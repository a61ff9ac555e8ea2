"""`unisono run`: start a training script, unchanged, with unisono listening inside.

Both forms prepare the environment and then become the command (`exec`), so that output, exit code, signals, `sys.argv`
and tracebacks are the script's own. What listens is brought into every Python child by `startup/sitecustomize.py`.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import NoReturn

from unisono import weighting_text
from unisono.errors import UserError
from unisono.rules import RULES
from unisono.runfile import RUNS, planned_run_dir
from unisono.sinks import choosing as sinks

USAGE = """\
usage: unisono run [options] -- CMD...                 any launcher: torchrun, accelerate launch, srun, python
       torchrun ... -m unisono run [options] script.py [args...]
       torchrun ... -m unisono run [options] -m pkg.train [args...]

Runs a training script, unchanged, with unisono listening inside. The exit code is the command's.

options:
  --out DIR    the run directory; one that exists is continued (default: unisono-runs/<time>-<script>)
  --every N    listen to gradients at every Nth step (default: chosen by cost)
  --ignore CODE[,CODE...]
               keep quiet about these findings, as in UN105; they are still counted
  --sink NAME[:OPTION=VALUE,...]
               also hand numbers and findings to tensorboard, wandb, mlflow, prometheus, opentelemetry or webhook
  --weighting NAME[:OPTION=VALUE,...]
               steer: leave out workers that disagree, as in agreement:max_distance=0.95 (default: only listen)
  -h, --help   show this text

UNISONO=off in the environment runs the command alone. The interpreter options -I, -E and -S hide unisono from a script.
"""

STARTUP_DIR = Path(__file__).resolve().parent.parent / "startup"
VARIABLES = {
    "--out": "UNISONO_RUN_DIR",
    "--every": "UNISONO_EVERY",
    "--ignore": "UNISONO_IGNORE",
    "--sink": sinks.VARIABLE,
    "--weighting": weighting_text.VARIABLE,
}
CHECKS = {"--sink": sinks.checked, "--weighting": weighting_text.checked}
SEPARATORS = {"--ignore": ",", "--sink": sinks.SEPARATOR}
"""Of options that may be given more than once."""

# Each of these is set by some launcher in the processes it starts; a directory chosen here would be one per rank.
RANK_VARIABLES = ("RANK", "LOCAL_RANK", "SLURM_STEP_ID", "OMPI_COMM_WORLD_RANK", "PMI_RANK")
LAUNCHER_MODULES = ("torch.distributed.run", "torch.distributed.launch", "accelerate.commands.launch", "unisono")


@dataclass(frozen=True, slots=True)
class Request:
    """What was asked for: our options, and the command (after `--`) or the script (without) they apply to."""

    options: Mapping[str, str] = field(default_factory=dict)
    command: tuple[str, ...] = ()
    script: tuple[str, ...] = ()
    help: bool = False


def main(argv: Sequence[str]) -> int:
    """Becomes the command. Returns only to show the usage; raises `UserError` for bad input."""
    request = parse(argv)
    if not request.help:
        become(request.command or python_command(request.script), prepare(request, os.environ))
    print(USAGE, end="")
    return 0


def parse(argv: Sequence[str]) -> Request:
    """Split `[options] -- CMD...` or `[options] script args...`. What follows the script is its own, dashes and all."""
    options: dict[str, str] = {}
    rest = list(argv)
    while rest and rest[0].startswith("-") and rest[0] not in ("--", "-m"):
        name, equals, value = rest.pop(0).partition("=")
        if name in ("-h", "--help"):
            return Request(help=True)
        if name not in VARIABLES:
            raise UserError(
                f"`unisono run` takes the options {', '.join(VARIABLES)}. Found `{name}`. "
                "Options of the command belong behind `--`: unisono run -- CMD..."
            )
        if not equals:
            if not rest or rest[0] == "--":
                raise UserError(f"`{name}` of `unisono run` needs a value. Found none. Write: {name} VALUE")
            value = rest.pop(0)
        value = checked(name, value)
        again = name in SEPARATORS and name in options
        options[name] = options[name] + SEPARATORS[name] + value if again else value
    if rest[:1] == ["--"]:
        return Request(options, command=checked_command(rest[1:]))
    return Request(options, script=checked_script(rest))


def checked(name: str, value: str) -> str:
    """The option's value in the form the environment carries."""
    if name == "--out":
        if not value:
            raise UserError("`--out` should name the run directory. Found an empty name. Write: --out DIR")
        return os.path.abspath(value)
    if name == "--ignore":
        return ",".join(checked_codes(value))
    if name in CHECKS:
        return CHECKS[name](value)
    if not re.fullmatch(r"0*[1-9][0-9]{0,8}", value):
        raise UserError(f"`--every` should be a whole number of steps from 1 up. Found `{value}`. Write: --every 10")
    return str(int(value))


def checked_codes(value: str) -> list[str]:
    codes = [code.strip().upper() for code in value.split(",")]
    unknown = [code for code in codes if code not in {rule.code for rule in RULES}]
    if unknown:
        raise UserError(
            f"`--ignore` should hold codes of findings, as in `--ignore UN105`. Found `{unknown[0]}`. "
            "List them with: unisono explain"
        )
    return codes


def checked_command(command: Sequence[str]) -> tuple[str, ...]:
    if not command:
        raise UserError("`unisono run --` needs a command. Found none. Write: unisono run -- torchrun ... train.py")
    if shutil.which(command[0]) is None:
        raise UserError(
            f"the command of `unisono run` should be a program on PATH. Found `{command[0]}`, which is not. "
            "Check the spelling, or put `python` before a script."
        )
    return tuple(command)


def checked_script(script: Sequence[str]) -> tuple[str, ...]:
    if not script:
        raise UserError(
            "`unisono run` needs a command or a script. Found neither. Write: unisono run -- torchrun ... train.py"
        )
    if script[0] == "-m":
        if len(script) == 1:
            raise UserError("`-m` of `unisono run` needs a module. Found none. Write: unisono run -m pkg.train")
        return tuple(script)
    if not Path(script[0]).exists():
        hint = f" A command belongs behind `--`: unisono run -- {script[0]} ..." if shutil.which(script[0]) else ""
        raise UserError(
            f"the script of `unisono run` should be a file. Found `{script[0]}`, which is not in {os.getcwd()}."
            + (hint or " Check the path.")
        )
    return tuple(script)


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


def prepare(request: Request, environment: Mapping[str, str]) -> dict[str, str]:
    """The environment in which the startup hook finds its settings. Makes the run directory, so that it fails early."""
    prepared = dict(environment)
    if environment.get("UNISONO", "").lower() == "off":
        return prepared
    for name, check in CHECKS.items():
        if name not in request.options and (inherited := environment.get(VARIABLES[name])):
            check(inherited)
    prepared["UNISONO_AUTO"] = "1"
    prepared["PYTHONPATH"] = with_startup(environment.get("PYTHONPATH", ""))
    prepared |= {VARIABLES[name]: value for name, value in request.options.items()}
    if run_dir := prepared.get("UNISONO_RUN_DIR"):
        make_run_dir(run_dir)
    elif request.command and not any(variable in environment for variable in RANK_VARIABLES):
        # Chosen once and before the launcher, so that its restarts continue the same run.
        prepared["UNISONO_RUN_DIR"] = chosen_run_dir(script_name(request.command))
    return prepared


def with_startup(python_path: str) -> str:
    """Ours first. An empty entry would mean the current directory, so none is left behind."""
    others = [entry for entry in python_path.split(os.pathsep) if entry != str(STARTUP_DIR)]
    return os.pathsep.join([str(STARTUP_DIR), *others] if python_path else [str(STARTUP_DIR)])


def chosen_run_dir(name: str) -> str:
    try:
        return os.path.abspath(planned_run_dir(RUNS, name))
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


def script_name(command: Sequence[str]) -> str:
    """What the run is called: the first Python file, else the first module that is no launcher, else the command."""
    for argument in command:
        if argument.endswith(".py") and not argument.startswith("-"):
            return Path(argument).stem
    for option, module in pairwise(command):
        if option == "-m" and module not in LAUNCHER_MODULES:
            return module
    return Path(command[0]).name


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
