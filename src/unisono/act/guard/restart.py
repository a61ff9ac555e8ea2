"""After a restart: all workers go back to the newest healthy checkpoint that every one of them can read."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from unisono.act.checkpoints import DiskStore, Snapshot, find_healthy, load, put_back
from unisono.act.guard.guarded_state import GuardedState
from unisono.common.terminal import short
from unisono.exchange.collectives import GuardCollectives

WHOLE_STEP = "whole_step"


class GuardRestart:
    def __init__(
        self,
        folder: Path,
        rank: int,
        replica: str,
        collectives: GuardCollectives,
        store: DiskStore,
        say: Callable[[str], None],
    ) -> None:
        self._folder, self._rank, self._replica, self._collectives = folder, rank, replica, collectives
        self._store, self._say = store, say

    def restore(self, guarded_state: GuardedState) -> int | None:
        if not guarded_state.optimizers:
            raise ValueError(
                "A checkpoint holds the optimizer's state, too. Found no optimizer. Write: unisono.attach(model, "
                "optimizer, guard=...)"
            )
        readable = find_healthy(self._folder, self._rank, [self._replica], self._collectives.world)
        step = self._collectives.choose(readable)
        if self._collectives.is_first:
            found = "no healthy checkpoint" if step is None else f"going on after step {step:,}, from the checkpoint"
            self._say(f"{found} in {short(self._folder)}")
        if step is not None:
            snapshot = load(self._folder, step, self._rank, [self._replica], self._collectives.world)
            put_back(guarded_state.subject(), _without_scaler(snapshot, guarded_state))
            self._store.adopt(step)
            if not snapshot.own.get(WHOLE_STEP) and self._collectives.is_first:
                self._say(
                    f"the checkpoint is of the moment after the optimizer's step {step}: what your loop does after "
                    "that, such as scheduler.step(), is still to be done. End each step with monitor.step() to have "
                    "whole ones"
                )
        return step


def _without_scaler(snapshot: Snapshot, guarded_state: GuardedState) -> Snapshot:
    """A scaler is met when it scales its first loss: it is given its state then."""
    if guarded_state.scaler is None:
        guarded_state.scaler_state = snapshot.replica["scaler"]
        return Snapshot(snapshot.step, {**snapshot.replica, "scaler": None}, snapshot.own)
    return snapshot
