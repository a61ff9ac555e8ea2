"""Every option of the guard: what it should be, what was found, what to do."""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from unisono.act.guard.policy import Row
from unisono.common.errors import UserError
from unisono.common.spec import nearest
from unisono.diagnose.rules import RULES

if TYPE_CHECKING:
    from unisono.act.guard.options import Checkpoints, Guard

PLACES = ("memory", "disk")
SOURCES = ("majority", "first")
MOST_SPIKES = 10


def check_names(found: Iterable[str], known: Sequence[str]) -> None:
    for name in found:
        if name not in known:
            hint = nearest(name, known)
            raise UserError(f"an option of the guard should be one that exists. Found `{name}`. {hint}")


def check_path(file: Any) -> None:
    if file is not None and not isinstance(file, str | os.PathLike):
        raise UserError(
            f"`file` of the guard should be the path of a TOML file. Found {file!r}. Write: unisono.guard()"
        )


def check_guard(guard: Guard) -> None:
    for name in ("skip", "reseed", "dry_run"):
        _switch(name, getattr(guard, name))
    _number("norm_spike", guard.norm_spike, above=1)
    _number("loss_spike", guard.loss_spike, above=1, switches=(False,))
    _number("clip", guard.clip, above=0)
    _number("rollback", guard.rollback, above=1)
    _whole("resync", guard.resync)
    _whole("reset_momentum", guard.reset_momentum, most=MOST_SPIKES)
    _whole("budget", guard.budget, least=0, switches=(False,))
    _whole("per", guard.per, switches=())
    if guard.every is not None:
        _whole("every", guard.every, switches=())
    _codes(guard.halt)
    _rows(guard.rows)
    _source(guard)
    if guard.checkpoints is not None and type(guard.checkpoints).__name__ != "Checkpoints":
        raise UserError(
            f"`checkpoints` of the guard should be `unisono.Checkpoints(...)`. Found {guard.checkpoints!r}. "
            "Write: unisono.guard(rollback=True, checkpoints=unisono.Checkpoints(every=100))"
        )
    _needs_rollback(guard)


def _source(guard: Guard) -> None:
    if guard.resync_from not in SOURCES:
        names = " or ".join(f"`{name}`" for name in SOURCES)
        raise UserError(f"`resync_from` of the guard should be {names}. Found {guard.resync_from!r}.")
    resyncs = guard.resync or any("resync" in row.actions for row in guard.rows)
    if guard.resync_from != SOURCES[0] and not resyncs:
        raise UserError(
            "`resync_from` of the guard says whose replica counts in a resync. Found it without `resync`. Write: "
            f"unisono.guard(resync=500, resync_from={guard.resync_from!r})"
        )


def _needs_rollback(guard: Guard) -> None:
    """Checkpoints are kept for going back to, and there is nothing to go back to without them."""
    if guard.rollback:
        return
    if any("roll-back" in row.actions for row in guard.rows):
        raise UserError("a row that rolls back needs checkpoints. Found none. Write: unisono.guard(rollback=True, ...)")
    if guard.checkpoints is not None:
        raise UserError(
            "`checkpoints` of the guard are kept for going back to. Found them without `rollback`. Write: "
            "unisono.guard(rollback=True, checkpoints=...)"
        )


def check_checkpoints(kept: Checkpoints) -> None:
    for name in ("every", "keep", "quiet"):
        _whole(f"checkpoints.{name}", getattr(kept, name), switches=())
    if kept.where not in PLACES:
        raise UserError(f"`checkpoints.where` should be `memory` or `disk`. Found `{kept.where}`.")
    if (kept.save is None) != (kept.load is None):
        raise UserError("`checkpoints.save` and `checkpoints.load` should be given together. Found one of them.")
    for name in ("save", "load"):
        if getattr(kept, name) is not None and not callable(getattr(kept, name)):
            raise UserError(f"`checkpoints.{name}` should be a function of a step. Found {getattr(kept, name)!r}.")


@contextlib.contextmanager
def in_file(file: str | os.PathLike[str]) -> Iterator[None]:
    """Complaints name the file."""
    try:
        yield
    except UserError as error:
        raise UserError(f"in `{os.fspath(file)}`: {error}") from None


def _switch(name: str, value: Any) -> None:
    if not isinstance(value, bool):
        raise UserError(f"`{name}` of the guard should be True or False. Found {value!r}. Write: {name}=True")


def _number(name: str, value: Any, *, above: float, switches: Sequence[bool] = (False, True)) -> None:
    if isinstance(value, bool):
        fits = value in switches
    else:
        fits = isinstance(value, int | float) and math.isfinite(value) and value > above
    if not fits:
        words = _switches(switches)
        raise UserError(f"`{name}` of the guard should be a number above {above:g}{words}. Found {value!r}.")


def _whole(
    name: str, value: Any, *, least: int = 1, most: int = 10**9, switches: Sequence[bool] = (False, True)
) -> None:
    fits = value in switches if isinstance(value, bool) else isinstance(value, int) and least <= value <= most
    if not fits:
        end = f"from {least} up" if most == 10**9 else f"from {least} to {most}"
        raise UserError(f"`{name}` of the guard should be a whole number {end}{_switches(switches)}. Found {value!r}.")


def _switches(allowed: Sequence[bool]) -> str:
    return "".join(f" or {value}" for value in allowed)


def _codes(halt: Any) -> None:
    if isinstance(halt, bool):
        return
    known = [rule.code for rule in RULES]
    if isinstance(halt, str) or not isinstance(halt, Sequence) or not halt:
        raise UserError(
            f"`halt` of the guard should be True, False or a list of codes. Found {halt!r}. Write: ['UN410']"
        )
    unknown = [code for code in halt if code not in known]
    if unknown:
        raise UserError(
            f"`halt` of the guard should hold codes of findings, as in ['UN410']. Found {unknown[0]!r}. "
            "List them with: unisono explain"
        )


def _rows(rows: Any) -> None:
    wrong = [rows] if not isinstance(rows, Sequence) else [row for row in rows if not isinstance(row, Row)]
    if wrong:
        raise UserError(
            f"`rows` of the guard should be a list of `unisono.policy.Row`. Found {wrong[0]!r}. "
            "Write: rows=[Row('name', when, 'skip')]"
        )
