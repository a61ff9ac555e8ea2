"""A guard's options in a TOML file: tables `[guard]`, `[guard.checkpoints]` and `[listening]`."""

from __future__ import annotations

import os
from importlib import import_module
from pathlib import Path
from typing import Any

from unisono.common.errors import UserError

ON = "on"
TABLES = ("guard", "listening")


def read_guard_file(file: str | os.PathLike[str]) -> dict[str, Any]:
    """The options of `[guard]`, and of `[listening]` what the guard keeps: `every`. Not checked further."""
    content, where = _parsed(file), f"in `{os.fspath(file)}`"
    for name, table in content.items():
        if name not in TABLES:
            raise UserError(
                f"a guard file should hold the tables `[guard]` and `[listening]`. Found `{name}` {where}. "
                "Put options of the guard under `[guard]`."
            )
        if not isinstance(table, dict):
            raise UserError(f"`{name}` of a guard file should be a table. Found {table!r} {where}.")
    if "guard" not in content:
        raise UserError(
            f"a guard file should have a table `[guard]`. Found none {where}. "
            "Write one with: unisono calibrate RUN --write FILE"
        )
    listening = content.get("listening", {})
    unknown = [name for name in listening if name != "every"]
    if unknown:
        raise UserError(f"`[listening]` of a guard file should only hold `every`. Found `{unknown[0]}` {where}.")
    kept = content["guard"].get("checkpoints", {})
    if not isinstance(kept, dict):
        raise UserError(
            f"`checkpoints` of a guard file should be a table. Found {kept!r} {where}. Write: [guard.checkpoints]"
        )
    return {**content["guard"], **listening}


def _parsed(file: str | os.PathLike[str]) -> dict[str, Any]:
    toml = _parser()
    try:
        content: dict[str, Any] = toml.loads(Path(file).read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(
            f"a guard file should be a file that can be read. Found `{os.fspath(file)}` ({error.strerror}). "
            "Check the path."
        ) from None
    except RecursionError:
        raise UserError(f"a guard file should be TOML. Found `{os.fspath(file)}`: it is nested too deeply.") from None
    except ValueError as error:  # also what is no UTF-8
        raise UserError(f"a guard file should be TOML. Found `{os.fspath(file)}`: {error}.") from None
    return content


def _parser() -> Any:
    """Python has one of its own since 3.11."""
    for name in ("tomllib", "tomli"):
        try:
            return import_module(name)
        except ModuleNotFoundError:
            continue
    raise UserError("a guard file needs Python 3.11 or the package `tomli`. Found neither. Write: pip install tomli")
