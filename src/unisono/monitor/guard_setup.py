"""Checks what was asked for, on every worker alike, and puts a guard together."""

from __future__ import annotations

import os
import zlib
from collections.abc import Sequence
from pathlib import Path
from socket import gethostname
from typing import Any
from weakref import WeakKeyDictionary

from torch import nn
from torch.nn.parallel import DistributedDataParallel

from unisono.act.actions.halt import halt
from unisono.act.checkpoints import CheckpointStore, DiskStore, MemoryStore, UserStore, check_states
from unisono.act.guard.decider import Decider
from unisono.act.guard.decision_log import DecisionLog
from unisono.act.guard.decision_round import DecisionRound
from unisono.act.guard.device_round import is_possible
from unisono.act.guard.executor import Executor
from unisono.act.guard.guarded_state import GuardedState
from unisono.act.guard.hooks import GuardHooks
from unisono.act.guard.options import VARIABLE, Guard, from_environment
from unisono.act.guard.restart import GuardRestart
from unisono.act.steering.setup import steering_of
from unisono.exchange.collectives import GuardCollectives
from unisono.exchange.same_request import check_same
from unisono.listen.models.wrapper import Wrapper
from unisono.monitor.monitor import Monitor

CHECKPOINTS = "checkpoints"
_hooks_by_model: WeakKeyDictionary[nn.Module, GuardHooks] = WeakKeyDictionary()


def asked_guard(options: Any, state: Any) -> tuple[Guard | None, list[Any]]:
    """What `attach` was asked for, or else `unisono run --guard`; None: only listen."""
    if options is not None and not isinstance(options, Guard):
        raise TypeError(
            f"`guard` should be made by unisono.guard. Found {type(options).__name__}. Write: guard=unisono.guard()"
        )
    states = list(state) if isinstance(state, list | tuple) else [state]
    for one in states:
        if not (hasattr(one, "state_dict") and hasattr(one, "load_state_dict")):
            raise TypeError(
                "`state` should hold objects with `state_dict` and `load_state_dict`, such as a scheduler or a "
                f"sampler. Found {type(one).__name__}. Leave it out, or give it these two methods."
            )
    check_states(states)
    options = options or from_environment(os.environ.get(VARIABLE))
    if states and (options is None or not options.rollback):
        raise ValueError(
            "`state` belongs to the guard's checkpoints. Found it without them. Write: "
            "guard=unisono.guard(rollback=True)"
        )
    return options, states


def set_up(
    model: nn.Module,
    wrapper: Wrapper,
    options: Guard,
    optimizers: Sequence[Any],
    states: Sequence[Any],
    monitor: Monitor,
) -> None:
    """Waits for all workers: they guard the same way, or none does."""
    inner = getattr(model, "_orig_mod", model)
    if guard_hooks_of(inner) is not None:
        if not os.environ.get(VARIABLE):
            raise ValueError("A model can be guarded once. Found one that is guarded already. Attach to it once.")
        # `unisono run --guard` was quicker than the script's own `attach`.
        monitor.reporter.complain("guarded already, as the command asks; what the script asks for is not used")
        return
    _refuse_what_cannot_be(inner)
    ranks = wrapper.ranks()
    guarded_state = GuardedState(wrapper, inner, optimizers, states)
    group = inner.process_group if isinstance(inner, DistributedDataParallel) and len(ranks) > 1 else None
    collectives = GuardCollectives(group, guarded_state.device)
    if group is not None:
        check_same("guard", _wanted(options, wrapper), collectives.rank, ranks)
    run = collectives.tell(
        {"run_dir": monitor.run_dir, "attempt": monitor.reporter.attempt} if collectives.is_first else None
    )
    store, restart = _checkpoints(options, run, collectives, ranks, monitor)
    policy = options.policy()
    executor = Executor(
        collectives,
        ranks,
        guarded_state,
        store,
        1 if options.checkpoints is None else options.checkpoints.every,
        policy.callbacks(),
        lambda: halt(monitor.close, collectives.wait_for_all),
        monitor.reporter.complain,
        0 if options.resync_from == "first" else None,
    )
    decision_round = DecisionRound(
        collectives,
        guarded_state,
        executor,
        Decider(ranks, options, policy, lambda: monitor.findings),
        DecisionLog(run["attempt"]),
        monitor.reporter,
        may_be_late=options.leaves_it_to_the_device() and is_possible(collectives, guarded_state.device),
    )
    guard_hooks = GuardHooks(wrapper, guarded_state, executor, decision_round, restart, steering_of(inner))
    _hooks_by_model[inner] = guard_hooks
    monitor.guarded_by(guard_hooks)
    guard_hooks.begin()


def guard_hooks_of(model: nn.Module) -> GuardHooks | None:
    """Who guards it now. One whose monitor was closed has to go when all attach again."""
    guard_hooks = _hooks_by_model.get(model)
    if guard_hooks is not None and guard_hooks.leaving:
        guard_hooks.release()
    return None if guard_hooks is None or guard_hooks.released else guard_hooks


def _refuse_what_cannot_be(model: Any) -> None:
    delayed = getattr(model, "_delay_all_reduce_all_params", False)
    if delayed or getattr(model, "_use_python_reducer", False):
        raise ValueError(
            "The guard needs DistributedDataParallel to reduce gradients in backward by itself. Found "
            f"{'delayed parameters' if delayed else 'compiled autograd, which reduces them in Python'}. "
            "Do without that, or attach without `guard`."
        )


def _checkpoints(
    options: Guard, run: dict[str, Any], collectives: GuardCollectives, ranks: list[int], monitor: Monitor
) -> tuple[CheckpointStore | None, GuardRestart | None]:
    wanted = options.checkpoints
    if not options.rollback or wanted is None:
        return None, None
    if wanted.save is not None and wanted.load is not None:
        return UserStore(wanted.save, wanted.load, wanted.keep, wanted.quiet), None
    if wanted.where == "memory":
        return MemoryStore(wanted.keep, wanted.quiet), None
    folder = Path(run["run_dir"], CHECKPOINTS)
    first = collectives.first_with(zlib.crc32(gethostname().encode()))
    replica, rank = f"replica-{ranks[first]}.pt", ranks[collectives.rank]
    store = DiskStore(
        folder,
        rank,
        replica_writer=first == collectives.rank,
        replica_name=replica,
        keep=wanted.keep,
        quiet=wanted.quiet,
        world=collectives.world,
        attempt=run["attempt"],
        complain=monitor.reporter.complain,
    )
    return store, GuardRestart(folder, rank, replica, collectives, store, monitor.reporter.say)


def _wanted(options: Guard, wrapper: Wrapper) -> str:
    return f"{options.described()} {[name for name, _ in wrapper.named_parameters()]}"
