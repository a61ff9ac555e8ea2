"""Healthy checkpoints on the disk: which of them this worker can use, and using one."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from unisono.act.checkpoints import checksummed, files, model_part, plain_files
from unisono.act.checkpoints.plain_files import CheckpointError
from unisono.act.checkpoints.snapshot import Snapshot


def find_healthy(folder: Path, rank: int, replicas: Sequence[str] = (), world: int | None = None) -> list[int]:
    """Steps of all that are marked healthy and verify here, oldest first; `world`: only those of so many workers."""
    return [step for step in files.steps_in(folder) if _verifies(folder, step, rank, replicas, world)]


def load(folder: Path, step: int, rank: int, replicas: Sequence[str] = (), world: int | None = None) -> Snapshot:
    """Tries `replicas` first. Raises `CheckpointError` unless it is marked healthy, intact and finite."""
    origin = origin_of(folder, step)
    if world not in (None, origin.world):
        raise CheckpointError(f"A checkpoint should be of {world} workers. Found {origin.world} for step {step}.")
    return load_parts(folder, origin, rank, replicas)


def origin_of(folder: Path, step: int) -> files.Origin:
    """As the mark of a healthy checkpoint tells."""
    place = files.step_folder(folder, step)
    plain_files.check_folder(folder)
    plain_files.check_folder(place)
    mark = checksummed.read(place / files.MARK)
    if mark.keys() != {"step", "attempt", "world"} or mark["step"] != step:
        raise CheckpointError(f"`{files.MARK}` should be of step {step}. Found one of another step in `{place}`.")
    return files.Origin(**mark)


def load_parts(folder: Path, origin: files.Origin, rank: int, replicas: Sequence[str]) -> Snapshot:
    """Whether or not it is marked."""
    place = files.step_folder(folder, origin.step)
    own = files.load(place / own_name(rank), origin)
    reasons: list[str] = []
    for name in _candidates(place, replicas):
        try:
            snapshot = Snapshot(origin.step, files.load(place / name, origin), own)
            check_finite(snapshot)
            return snapshot
        except CheckpointError as error:
            reasons.append(str(error))
    found = " ".join(reasons) or "none"
    raise CheckpointError(f"`{place}` should hold a replica that is intact. Found {found}")


def check_finite(snapshot: Snapshot) -> None:
    spoilt = model_part.not_finite(snapshot.replica, snapshot.own)
    if spoilt:
        raise CheckpointError(
            f"A healthy checkpoint should be finite. Found that {spoilt} of step {snapshot.step} is not."
        )


def own_name(rank: int) -> str:
    return f"rank-{rank}.pt"


def _verifies(folder: Path, step: int, rank: int, replicas: Sequence[str], world: int | None) -> bool:
    try:
        load(folder, step, rank, replicas, world)
    except CheckpointError:
        return False
    return True


def _candidates(place: Path, preferred: Sequence[str]) -> list[str]:
    try:
        present = sorted(path.name for path in place.glob("replica-*.pt"))
    except OSError:
        present = []
    return [*(name for name in preferred if name in present), *(name for name in present if name not in preferred)]
