"""Small JSON files that notice when a single bit of them changes."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from unisono.act.checkpoints import plain_files
from unisono.act.checkpoints.plain_files import CheckpointError
from unisono.common.whole_file import replacing

LARGEST = 4096


def write(path: Path, fields: Mapping[str, Any]) -> None:
    content = _with_checksum(fields)
    with replacing(path) as file:
        file.write(content)


def read(path: Path) -> dict[str, Any]:
    content = plain_files.read(path, LARGEST)
    try:
        fields = json.loads(content)
        fields.pop("seal")
        intact = _with_checksum(fields) == content
    # A file from elsewhere may be nested deeply enough for a RecursionError.
    except Exception as error:
        raise _broken(path) from error
    if not intact:
        raise _broken(path)
    return dict(fields)


def _with_checksum(fields: Mapping[str, Any]) -> bytes:
    body = json.dumps(fields, sort_keys=True, separators=(",", ":"))
    return json.dumps({**fields, "seal": hashlib.sha256(body.encode()).hexdigest()}, separators=(",", ":")).encode()


def _broken(path: Path) -> CheckpointError:
    return CheckpointError(f"`{path.name}` should be as it was written. Found it changed or cut in `{path.parent}`.")
