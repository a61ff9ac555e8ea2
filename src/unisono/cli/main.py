"""The command line: finds the command, and turns every outcome into an exit code."""

from __future__ import annotations

import argparse
import contextlib
import errno
import io
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from itertools import takewhile
from typing import Any, NoReturn

from unisono import __version__
from unisono.cli.commands import COMMANDS
from unisono.common.errors import UserError
from unisono.common.spec import nearest
from unisono.common.terminal import plain

STDOUT_FAILS = (errno.ENOSPC, errno.EIO, errno.EBADF, errno.EFBIG, errno.EDQUOT)
"""A device that is full, broken or closed."""

NAMES = [name for group in COMMANDS.values() for name in group]


class Parser(argparse.ArgumentParser):
    """Complains in one line, through `UserError`."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.allow_abbrev = False

    def error(self, message: str) -> NoReturn:
        raise UserError(f"{message}. See: {self.prog} --help")

    def _print_message(self, message: str, file: Any = None) -> None:
        """Without keeping to itself that it could not be written."""
        if message and file is not None:
            file.write(message)

    def exit(self, status: int = 0, message: str | None = None) -> NoReturn:
        _flush()
        super().exit(status, message)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command. Returns 2 for what the user can mend, 130 for Ctrl-C, else what the command says."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        _never_fail_on_encoding()
        code = _dispatch(arguments)
        _flush()
    except BrokenPipeError:
        _discard_output()
        return 0
    except KeyboardInterrupt:
        return 130
    except Exception as error:
        if arguments[:1] == ["--debug"]:
            raise
        if _is_of_stdout(error):
            _discard_output()
        with contextlib.suppress(OSError):
            print(f"unisono: error: {plain(_explained(error))}", file=sys.stderr)
        return 2
    return code


def _dispatch(arguments: list[str]) -> int:
    own_options = list(takewhile(lambda argument: argument.startswith("-"), arguments))
    _top_parser().parse_args(own_options)
    rest = arguments[len(own_options) :]
    if not rest:
        raise UserError(f"a command is missing. Choose from: {', '.join(NAMES)}. See: unisono --help")
    name = _known(rest[0])
    command = import_module(f"unisono.cli.commands.{name}")
    if hasattr(command, "main"):
        return int(command.main(rest[1:]))
    parser = Parser(prog="unisono")
    command.add_parser(parser.add_subparsers())
    return int(command.run(parser.parse_args(rest)))


def _top_parser() -> Parser:
    parser = Parser(
        prog="unisono",
        usage="unisono [--debug] COMMAND ...",
        description=_overview(),
        epilog="`unisono COMMAND --help` explains one command.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"unisono {__version__}")
    parser.add_argument("--debug", action="store_true", help="show the traceback of an error")
    return parser


def _overview() -> str:
    lines = ["Listens to every data-parallel worker before all-reduce and writes down what it hears."]
    for group, commands in COMMANDS.items():
        lines += ["", f"{group}:", *(f"  {name:<10} {summary}" for name, summary in commands.items())]
    return "\n".join(lines)


def _known(name: str) -> str:
    if name in NAMES:
        return name
    raise UserError(f"there is no command `{name}`. {nearest(name, NAMES)} See: unisono --help")


def _explained(error: Exception) -> str:
    if isinstance(error, UserError):
        return str(error)
    if _is_of_stdout(error):
        return f"stdout should take what is printed. Found {error}. Make room, or send it elsewhere."
    return f"unexpected {type(error).__name__}: {error}. Show where with: unisono --debug COMMAND ..."


def _is_of_stdout(error: Exception) -> bool:
    """Whoever opens a file names it in his errors; stdout was open already, and it takes no more."""
    return isinstance(error, OSError) and error.filename is None and error.errno in STDOUT_FAILS


def _never_fail_on_encoding() -> None:
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


def _flush() -> None:
    if sys.stdout is not None:
        sys.stdout.flush()


# Python flushes once more at exit; that must not meet the closed pipe or the full device again.
def _discard_output() -> None:
    with contextlib.suppress(OSError, ValueError), open(os.devnull, "w") as nowhere:
        os.dup2(nowhere.fileno(), sys.stdout.fileno())
