"""`unisono smoke`: the first steps of a new job, a verdict, stop."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path

from unisono.cli.bounded_run import Trial, try_out
from unisono.cli.commands.run import chosen_run_dir, prepare
from unisono.cli.run_arguments import RunRequest, parse
from unisono.cli.run_header import script_name
from unisono.common.errors import UserError
from unisono.common.terminal import colour, width
from unisono.show.text.findings import as_text

USAGE = """\
usage: unisono smoke [--steps N] [options] -- CMD...

Runs the command as `unisono run` does, stops it after its first steps, and says whether they were healthy. The exit
code is 0 if they were, 1 if there is a warning or worse, and 3 if too little was heard to say so or the command failed
by itself. It takes 32 heard steps to call a job healthy.

The verdict goes to stdout, everything that the command prints to stderr. The command gets SIGTERM and 15 seconds.

options:
  --steps N    steps to record before the command is stopped (default: 100)
  --out DIR    the run directory; one that exists is continued (default: unisono-runs/<time>-<script>)
  --every N    listen to gradients at every Nth step (default: chosen by cost)
  --thresholds manuals
               also say what the manuals' own thresholds would have said
  --weighting NAME[:OPTION=VALUE,...]
               steer: leave out workers that disagree, as in agreement:max_distance=0.95 (default: only listen)
  --guard      skip steps that are not finite or extreme, on all workers (default: only listen)
  --guard-file FILE
               guard as a TOML file says
  -h, --help   show this text
"""
STEPS = 100


def main(argv: Sequence[str]) -> int:
    own, dashes, command = _split(argv)
    if {"-h", "--help"} & set(own):
        print(USAGE, end="")
        return 0
    steps, own = _steps(own)
    request = _parsed([*own, *dashes, *command])
    if os.environ.get("UNISONO", "").lower() == "off":
        raise UserError("`unisono smoke` has to listen. Found UNISONO=off in the environment. Unset it.")
    environment = prepare(request, os.environ)
    run_dir = environment.get("UNISONO_RUN_DIR") or chosen_run_dir(script_name(request.command))
    trial = try_out(request.command, environment | {"UNISONO_RUN_DIR": run_dir}, Path(run_dir), steps)
    print(_told(trial))
    print(f"run: {run_dir}")
    return trial.exit_code


def _split(argv: Sequence[str]) -> tuple[list[str], list[str], list[str]]:
    own = list(argv)
    at = own.index("--") if "--" in own else len(own)
    return own[:at], own[at : at + 1], own[at + 1 :]


def _steps(own: list[str]) -> tuple[int, list[str]]:
    """The number of steps, and the options that are those of `run`."""
    steps, rest = str(STEPS), []
    words = iter(own)
    for word in words:
        name, equals, value = word.partition("=")
        if name == "--steps":
            steps = value if equals else next(words, "")
        else:
            rest.append(word)
    if not re.fullmatch(r"0*[1-9][0-9]{0,8}", steps):
        raise UserError(f"`--steps` should be a whole number from 1 up. Found `{steps}`. Write: --steps {STEPS}")
    return int(steps), rest


def _parsed(line: list[str]) -> RunRequest:
    if "--" not in line:
        raise UserError("`unisono smoke` needs a command behind `--`. Write: unisono smoke -- torchrun ... train.py")
    try:
        return parse(line)
    except UserError as error:
        raise UserError(str(error).replace("unisono run", "unisono smoke")) from None


def _told(trial: Trial) -> str:
    reports = [as_text(checkup, width(), colour()) for checkup in trial.checkups]
    if len(reports) > 1:
        reports = [f"{checkup.run}: {text}" for checkup, text in zip(trial.checkups, reports, strict=True)]
    return "\n\n".join([*filter(None, [trial.failure]), *reports])
