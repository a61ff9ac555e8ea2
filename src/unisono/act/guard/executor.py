"""Carries out what was decided, on this worker, while all others do the same."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from unisono.act.actions.clip import clip
from unisono.act.actions.reseed import reseed
from unisono.act.actions.reset_momentum import reset_momentum
from unisono.act.actions.resync import resync
from unisono.act.actions.roll_back import go_back, look_at
from unisono.act.actions.skip import Skipping
from unisono.act.checkpoints import CheckpointError, CheckpointStore, Snapshot, capture
from unisono.act.guard.guarded_state import GuardedState
from unisono.act.guard.policy import Decision
from unisono.act.guard.restart import WHOLE_STEP
from unisono.exchange.collectives import GuardCollectives
from unisono.listen.buffer_snapshot import BufferSnapshot

NOTHING = "all workers hold the same"
BUFFERS_STAY = (
    "buffers could not be put back: the skipped step stays in them, such as in BatchNorm's statistics. Forward passes "
    "are seen where the model is wrapped in DistributedDataParallel and not compiled"
)


class Executor:
    def __init__(
        self,
        collectives: GuardCollectives,
        ranks: list[int],
        guarded_state: GuardedState,
        store: CheckpointStore | None,
        every: int,
        callbacks: Mapping[str, Callable[[Decision], Any]],
        halt: Callable[[], None],
        complain: Callable[[str], None],
        giver: int | None = None,
    ) -> None:
        """:param giver: The worker whose replica counts in a resync; None: the majority's."""
        self.skipped = False
        """The newest synchronised pass is to leave no trace."""

        self.overwritten: list[int] = []
        """Ranks that the last resync made equal to the others."""

        self.skipping = Skipping()
        self.buffers = BufferSnapshot()
        self.store = store
        self._collectives, self._ranks, self._guarded_state = collectives, ranks, guarded_state
        self._every, self._callbacks, self._halt, self._complain = every, callbacks, halt, complain
        self._giver = giver
        self._target: Snapshot | None = None
        """What to go back to when the step is over."""

        self._by_name: dict[str, Callable[[Decision], str]] = {
            "skip": self._skip,
            "clip": self._clip,
            "reset-momentum": self._reset_momentum,
            "resync": self._resync,
            "roll-back": self._roll_back,
            "reseed": self._reseed,
            "callback": self._call_back,
            "halt": self._stop,
        }

    def carry_out(self, decision: Decision, but: Sequence[str] = ()) -> str:
        """What came of it, in words. A halt does not return.

        :param but: What has been done already.
        """
        outcomes = [self._by_name[action](decision) for action in decision.actions if action not in but]
        return "; ".join(outcome for outcome in outcomes if outcome)

    def _skip(self, decision: Decision) -> str:
        self.skipped = True
        self.skipping.silence(self._guarded_state.all_parameters())
        module = self._guarded_state.module
        if self.buffers.empty and module.training and next(module.buffers(), None) is not None:
            self._complain(BUFFERS_STAY)
        self.buffers.put_back()
        return ""

    def _clip(self, decision: Decision) -> str:
        clip(self._guarded_state.parameters, 1.0 if decision.argument is None else decision.argument)
        return ""

    def _reset_momentum(self, decision: Decision) -> str:
        reset_momentum(self._guarded_state.optimizers)
        return ""

    def _resync(self, decision: Decision) -> str:
        if self._collectives.group is None:
            return NOTHING
        # Statistics that each worker keeps for itself are no fault, unless they were found to be one.
        done = resync(
            self._collectives.group,
            self._guarded_state.model,
            self._guarded_state.optimizers,
            buffers=decision.counted,
            giver=self._giver,
        )
        self.overwritten = sorted({self._ranks[each.worker] for each in done.overwritten})
        return done.sentence(self._ranks) if done.overwritten else NOTHING

    def _roll_back(self, decision: Decision) -> str:
        """Looked at by all, together, before anybody goes back: each at the end of its step, on its own."""
        step = int(decision.argument or 0)
        snapshot, problem = look_at(self.store, self._guarded_state.subject(), step)
        refused = self._collectives.those_who(snapshot is None)
        if problem:
            # Said here alone: the outcome is the same text on every worker.
            self._complain(f"the checkpoint of step {step} does not fit here ({problem})")
        if refused:
            ranks = ", ".join(str(self._ranks[worker]) for worker in refused)
            return f"not rolled back: the checkpoint of step {step} does not fit on rank {ranks}"
        self._target = snapshot
        return ""

    def _reseed(self, decision: Decision) -> str:
        reseed(decision.step, self._collectives.rank)
        return ""

    def _call_back(self, decision: Decision) -> str:
        # Several rows may act side by side: a decision tells of all of them.
        for name, function in self._callbacks.items():
            if f", {name}, " in f", {decision.row}, ":
                function(decision)
        return ""

    def _stop(self, decision: Decision) -> str:
        self._halt()
        return ""

    @property
    def going_back(self) -> bool:
        return self._target is not None

    def step_over(self, step: int, said: bool) -> None:
        """Checkpoints are taken and put back at the same point of a step, so that a replay is exact.

        :param said: The script has said so: nothing of the step is still to come, as a scheduler's step would be.
        """
        if self.store is None:
            return
        if self._target is not None:
            target, self._target = self._target, None
            go_back(self.store, self._guarded_state.subject(), target)
        elif not self.skipped and step % self._every == 0 and self.store.has_room():
            self._keep(self.store, step, said)

    def _keep(self, store: CheckpointStore, step: int, said: bool) -> None:
        """Without one that cannot be taken, training goes on; it becomes healthy only where all workers have it."""
        try:
            snapshot = capture(self._guarded_state.subject(), step) if store.captures else Snapshot(step)
            snapshot.own[WHOLE_STEP] = said
            store.keep(snapshot)
        except CheckpointError as error:
            self._complain(f"no checkpoint could be taken ({error})")

    def optimizers_changed(self) -> None:
        """Checkpoints of other optimizers fit no more."""
        if self.store is not None and self.store.captures:
            self.store.trouble(-1)

    def release(self) -> None:
        """Nothing is waited for: called while Python collects garbage. What is being written is finished by itself."""
        self.store = None
