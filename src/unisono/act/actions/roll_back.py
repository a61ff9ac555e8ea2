"""Goes back to a healthy checkpoint: looked at first, where all workers can still agree, and put back later."""

from __future__ import annotations

from unisono.act.checkpoints import CheckpointError, CheckpointStore, Snapshot, Subject, check_fits, put_back


def look_at(store: CheckpointStore | None, subject: Subject, step: int) -> tuple[Snapshot | None, str]:
    """The checkpoint, read and compared with what is trained; or None, and why it cannot be used."""
    try:
        if store is None:
            return None, "none is kept"
        if not store.captures:
            return Snapshot(step), ""
        snapshot = store.fetch(step)
        check_fits(subject, snapshot)
    except CheckpointError as error:
        return None, str(error)
    return snapshot, ""


def go_back(store: CheckpointStore, subject: Subject, snapshot: Snapshot) -> None:
    if store.captures:
        put_back(subject, snapshot)
    else:
        # The script loads its own.
        store.fetch(snapshot.step)
