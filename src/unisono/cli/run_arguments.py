"""The line of `unisono run`: our options first, then what is to be run, untouched."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from unisono.act.guard import options as guard_options
from unisono.act.weightings import spec as weighting_text
from unisono.common.errors import UserError
from unisono.diagnose import manuals
from unisono.diagnose.rules import RULES
from unisono.show.sinks import choosing as sinks

USAGE = """\
usage: unisono run [options] -- CMD...                 any launcher: torchrun, accelerate launch, srun, python
       torchrun ... -m unisono run [options] script.py [args...]
       torchrun ... -m unisono run [options] -m pkg.train [args...]

Runs a training script, unchanged, with unisono listening inside. The exit code is the command's.

options:
  --out DIR    the run directory; one that exists is continued (default: unisono-runs/<time>-<script>)
  --every N    listen to gradients at every Nth step (default: the first 100, then chosen by cost)
  --ignore CODE[,CODE...]
               keep quiet about these findings, as in UN105; they are still counted
  --thresholds manuals
               in the end, also say what the manuals' own thresholds would have said
  --sink NAME[:OPTION=VALUE,...]
               also hand numbers and findings to tensorboard, wandb, mlflow, prometheus, opentelemetry or webhook
  --weighting NAME[:OPTION=VALUE,...]
               steer: leave out workers that disagree, as in agreement:max_distance=0.95 (default: only listen)
  --guard      skip steps that are not finite or extreme, on all workers (default: only listen)
  --guard-file FILE
               guard as a TOML file says, as `unisono calibrate RUN --write FILE` writes it
  -h, --help   show this text

UNISONO=off in the environment runs the command alone. The interpreter options -I, -E and -S hide unisono from a script.
"""

VARIABLES = {
    "--out": "UNISONO_RUN_DIR",
    "--every": "UNISONO_EVERY",
    "--ignore": "UNISONO_IGNORE",
    "--thresholds": manuals.VARIABLE,
    "--sink": sinks.VARIABLE,
    "--weighting": weighting_text.VARIABLE,
    "--guard": guard_options.VARIABLE,
    "--guard-file": guard_options.VARIABLE,
}
SWITCHES = {"--guard": guard_options.ON}
"""Options without a value, and what the environment carries for them."""

CHECKS = {
    "--thresholds": manuals.thresholds_named,
    "--sink": sinks.checked,
    "--weighting": weighting_text.checked,
    "--guard-file": guard_options.checked_file,
}
INHERITED = {
    sinks.VARIABLE: sinks.checked,
    weighting_text.VARIABLE: weighting_text.checked,
    guard_options.VARIABLE: guard_options.checked_variable,
}
"""What the environment may hold already."""

SEPARATORS = {"--ignore": ",", "--sink": sinks.SEPARATOR}
"""Of options that may be given more than once."""


@dataclass(frozen=True, slots=True)
class RunRequest:
    """What was asked for: our options, and the command (after `--`) or the script (without) they apply to."""

    options: Mapping[str, str] = field(default_factory=dict)
    command: tuple[str, ...] = ()
    script: tuple[str, ...] = ()
    help: bool = False


def parse(argv: Sequence[str]) -> RunRequest:
    """Split `[options] -- CMD...` or `[options] script args...`. What follows the script is its own, dashes and all."""
    options: dict[str, str] = {}
    rest = list(argv)
    while rest and rest[0].startswith("-") and rest[0] not in ("--", "-m"):
        name, equals, value = rest.pop(0).partition("=")
        if name in ("-h", "--help"):
            return RunRequest(help=True)
        if name not in VARIABLES:
            raise UserError(
                f"`unisono run` takes the options {', '.join(VARIABLES)}. Found `{name}`. "
                "Options of the command belong behind `--`: unisono run -- CMD..."
            )
        if name in SWITCHES:
            options[name] = switched_on(name, equals)
            continue
        if not equals:
            if not rest or rest[0] == "--":
                raise UserError(f"`{name}` of `unisono run` needs a value. Found none. Write: {name} VALUE")
            value = rest.pop(0)
        value = checked(name, value)
        again = name in SEPARATORS and name in options
        options[name] = options[name] + SEPARATORS[name] + value if again else value
    if {"--guard", "--guard-file"} <= set(options):
        del options["--guard"]  # the file says more
    if rest[:1] == ["--"]:
        return RunRequest(options, command=checked_command(rest[1:]))
    return RunRequest(options, script=checked_script(rest))


def switched_on(name: str, equals: str) -> str:
    if equals:
        raise UserError(f"`{name}` of `unisono run` takes no value. A guard file is given with: --guard-file FILE")
    return SWITCHES[name]


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
