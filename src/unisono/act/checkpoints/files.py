"""One part of a checkpoint as a file with its manifest: written, verified by reading it again, loaded."""

from __future__ import annotations

import hashlib
import io
import re
import zipfile
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, BinaryIO, cast

import torch
from torch import Tensor

from unisono.act.checkpoints import checksummed, plain_files
from unisono.act.checkpoints.plain_files import CheckpointError
from unisono.common.whole_file import replacing

MARK = "healthy.json"
LARGEST = 1 << 40
_MOST_MEMBERS = 1_000_000


@dataclass(frozen=True)
class Origin:
    """What all parts of one checkpoint have in common."""

    step: int
    attempt: int
    world: int


def step_folder(folder: Path, step: int) -> Path:
    return folder / f"step-{step:09d}"


def steps_in(folder: Path) -> list[int]:
    """Of all checkpoints that were begun, oldest first."""
    try:
        names = [path.name for path in folder.iterdir()]
    except OSError:
        return []
    return sorted(int(name.removeprefix("step-")) for name in names if re.fullmatch(r"step-[0-9]{9,18}", name))


def write(path: Path, content: dict[str, Any], origin: Origin, stopped: Callable[[], bool] = lambda: False) -> None:
    """Raises `OSError` or `CheckpointError`; then no file of that name is new. `stopped` ends it in the middle."""
    manifest = manifest_of(path)
    # An older file of that name must not meet the new manifest, nor the other way round.
    manifest.unlink(missing_ok=True)
    with replacing(path) as file:
        hashing = _Hashing(file, stopped)
        try:
            torch.save(content, cast("BinaryIO", hashing))
        except Exception as error:
            # torch hides what went wrong below it.
            raise hashing.error or error from None
    checksummed.write(
        manifest, {"file": path.name, "sha256": hashing.digest.hexdigest(), "bytes": hashing.size, **asdict(origin)}
    )


def load(path: Path, origin: Origin, *, from_disk: bool = False) -> dict[str, Any]:
    """The very bytes that were found to be intact are loaded. Raises `CheckpointError`."""
    told = checksummed.read(manifest_of(path))
    expected = {"file": path.name, **asdict(origin)}
    if told.keys() != expected.keys() | {"sha256", "bytes"} or any(told[key] != expected[key] for key in expected):
        raise _refused(path, "its manifest is of another file, step, attempt or number of workers")
    if type(told["bytes"]) is not int or not 0 < told["bytes"] <= LARGEST:
        raise _refused(path, "its manifest tells an impossible size")
    content = plain_files.read(path, told["bytes"], from_disk=from_disk)
    if len(content) != told["bytes"] or hashlib.sha256(content).hexdigest() != told["sha256"]:
        raise _refused(path, "its content is not what was written")
    return loaded(path, content)


def loaded(path: Path, content: bytes) -> dict[str, Any]:
    _check_archive(path, content)
    try:
        value = torch.load(io.BytesIO(content), weights_only=True, map_location="cpu")
    except Exception as error:
        raise _refused(path, f"torch cannot load it ({type(error).__name__})") from error
    if type(value) is not dict:
        raise _refused(path, f"it holds a `{type(value).__name__}`")
    for kind in ("parameters", "buffers"):
        named = value.get(kind, {})
        if type(named) is not dict or not all(_is_whole_tensor(tensor) for tensor in named.values()):
            raise _refused(path, f"its {kind} are not plain tensors")
    return value


def manifest_of(path: Path) -> Path:
    return path.with_suffix(".json")


class _Hashing:
    """A file to write to that knows the digest of what should be in it."""

    def __init__(self, file: BinaryIO, stopped: Callable[[], bool]) -> None:
        self._file = file
        self._stopped = stopped
        self.digest = hashlib.sha256()
        self.size = 0
        self.error: Exception | None = None

    def write(self, content: Any) -> int:
        try:
            if self._stopped():
                raise CheckpointError("A checkpoint should be written to its end. Found the run to end before.")
            self.digest.update(content)
            self._file.write(content)
        except Exception as error:
            self.error = self.error or error
            raise
        size = memoryview(content).nbytes
        self.size += size
        return size

    def flush(self) -> None:
        """When all has been written."""


def _check_archive(path: Path, content: bytes) -> None:
    """Nothing in it may be larger than the file itself, as where little is unpacked into much."""
    try:
        members = zipfile.ZipFile(io.BytesIO(content)).infolist()
    except Exception as error:
        raise _refused(path, "it is no archive of torch") from error
    packed = any(member.compress_type != zipfile.ZIP_STORED for member in members)
    if packed or len(members) > _MOST_MEMBERS or sum(member.file_size for member in members) > len(content):
        raise _refused(path, "it would unpack into more than it is")


def _is_whole_tensor(value: Any) -> bool:
    """Not a view that seems larger than its memory."""
    if not isinstance(value, Tensor) or value.layout != torch.strided:
        return isinstance(value, Tensor) and value.layout == torch.sparse_coo
    return value.numel() * value.element_size() <= value.untyped_storage().nbytes()


def _refused(path: Path, why: str) -> CheckpointError:
    return CheckpointError(f"`{path.name}` should be a checkpoint as it was written. Found in `{path.parent}`: {why}.")
