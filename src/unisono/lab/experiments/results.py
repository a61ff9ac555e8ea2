"""What an experiment has found so far: a JSON list of runs, written anew whenever one ends, to go on with later."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from unisono.common.errors import UserError
from unisono.common.whole_file import output_path, whole_file

Run = dict[str, Any]


class Results:
    """
    :param identity: The fields that tell runs apart.
    """

    def __init__(self, path: Path, identity: tuple[str, ...]) -> None:
        self.path, self._identity = output_path(path), identity
        self.runs = _read(self.path)

    def has(self, run: Mapping[str, Any]) -> bool:
        return any(self._key(done) == self._key(run) for done in self.runs)

    def add(self, run: Run) -> None:
        self.runs = [done for done in self.runs if self._key(done) != self._key(run)] + [run]
        lines = ",\n".join(json.dumps(done, allow_nan=False) for done in self.runs)
        with whole_file(self.path) as file:
            file.write_text(f"[\n{lines}\n]\n", encoding="utf-8")

    def _key(self, run: Mapping[str, Any]) -> tuple[Any, ...]:
        return tuple(run.get(name) for name in self._identity)


def _read(path: Path) -> list[Run]:
    if not path.exists():
        return []
    try:
        runs = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"`--out` should be a file of this experiment, or a new one. Found {path}: {error}.") from None
    if not (isinstance(runs, list) and all(isinstance(run, dict) for run in runs)):
        raise UserError(f"`--out` should be a file of this experiment, or a new one. Found other JSON in {path}.")
    return runs
