"""`unisono.attach`: one line that makes unisono listen to a model."""

from __future__ import annotations

import os
import re
import weakref
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from unisono.act.guard.options import Guard
from unisono.act.steering.setup import asked_options, steer
from unisono.act.steering.steering import Steering
from unisono.common.console import Console
from unisono.common.schedule import DEFAULT, Schedule, every
from unisono.common.terminal import short
from unisono.diagnose.rules import RULES
from unisono.listen.models.ddp import DDPWrapper
from unisono.listen.models.wrapper import PlainModule, Wrapper
from unisono.monitor.guard_setup import asked_guard, set_up
from unisono.monitor.monitor import Monitor, NullMonitor
from unisono.monitor.settings import Settings
from unisono.records.finding import Finding
from unisono.show.sinks.choosing import VARIABLE, chosen
from unisono.show.sinks.sink import Sink

OLDEST_TORCH = (2, 6)
_monitors_of_group: Counter[tuple[int, ...]] = Counter()
_monitors: weakref.WeakKeyDictionary[nn.Module, Monitor] = weakref.WeakKeyDictionary()
"""Each module's latest one."""

_called = False


def has_been_called() -> bool:
    """Whether somebody has asked to listen in this process."""
    return _called


def attach(
    model: nn.Module,
    optimizer: Any = None,
    *,
    loader: Any = None,
    run_dir: str | os.PathLike[str] | None = None,
    schedule: Schedule | None = None,
    weighting: Any = None,
    gram: str = "sketch",
    scope: str = "model",
    forget_rejected: bool = False,
    guard: Guard | None = None,
    state: Any = (),
    sinks: str | Sink | Sequence[str | Sink] | None = None,
    ignore: Sequence[str] = (),
    on_finding: Callable[[Finding], None] | None = None,
    first_step: int = 0,
) -> Monitor | NullMonitor:
    """
    Listens to every worker of a DistributedDataParallel model before all-reduce. Call it on every rank.

    :param optimizer: Checked to hold the model's parameters; several as a list. Without a torch optimizer, end each
        step with `monitor.step()`.
    :param loader: Your data loader, where it is not torch's own: its sampler's settings are compared between ranks.
    :param run_dir: The run's directory; one that exists is continued as a new attempt.
    :param schedule: When gradients are heard; by default every step up to 100, then within 1 % of the step time up to
        500, then within 0.5 %.
    :param weighting: One of `unisono.weightings`: all-reduce leaves the weighted sum it asks for instead of the mean.
        Without it, unisono only listens.
    :param gram: Of steering: `sketch`, or `exact` inner products of all gradients at the price of a slower all-reduce.
    :param scope: Of steering: one decision for the whole `model`, or one per `bucket` of DDP, while backward goes on.
    :param forget_rejected: Of steering: buffers, such as BatchNorm's statistics, of a rejected worker go back to what
        they were before the step.
    :param guard: `unisono.guard(...)`: act on a bad step, on all workers together. Without it, unisono only listens.
    :param state: Of the guard: objects with `state_dict` that belong into a checkpoint, as a scheduler or a sampler.
    :param sinks: Where numbers and findings go besides the run file: names, as in `["tensorboard"]`, or objects of
        `unisono.sinks`. Used on rank 0, each on a thread of its own.
    :param ignore: Codes of findings to keep quiet about, as in `["UN105"]`; they are still counted.
    :param on_finding: Called with each new finding, on rank 0, from unisono's own thread.
    :param first_step: The number of the first step, when training resumes.
    """
    global _called
    _called = True
    if os.environ.get("UNISONO", "").lower() == "off":
        return NullMonitor()
    _check_torch()
    if not isinstance(model, nn.Module):
        raise TypeError(f"`model` should be a torch module. Found {type(model).__name__}. Attach to the wrapped model.")
    optimizers = _listed(optimizer)
    for one in optimizers:
        _check_optimizer(model, one)
    ignored = _ignored(ignore)
    chosen_sinks = chosen(sinks, os.environ.get(VARIABLE, ""))
    steering_options = asked_options(weighting, gram, scope, forget_rejected)
    options, states = asked_guard(guard, state)
    wrapper = _wrapper_of(model)
    if options is not None and wrapper is None:
        raise ValueError(
            "The guard needs a model wrapped in DistributedDataParallel, with something to train. Found none. "
            "Wrap it so, or attach without `guard`."
        )
    steering = None if steering_options is None else steer(model, wrapper, steering_options, first_step)

    def settings() -> Settings:
        chosen_schedule = schedule or _scheduled(None if options is None else options.every)
        guarding = "" if options is None else options.words()
        return Settings(chosen_schedule, run_dir, first_step, loader, ignored, on_finding, chosen_sinks, guarding)

    try:
        if wrapper is None:
            return NullMonitor()
        again = _wrapped_again(wrapper, steering, options)
        monitor = again or _listen(model, wrapper, settings, steering, must=options is not None)
        if options is not None and isinstance(monitor, Monitor):
            try:
                set_up(model, wrapper, options, optimizers, states, monitor)
            except Exception:
                # Nobody gets to hold it, so nobody could close it.
                monitor.retire()
                raise
        return monitor
    finally:
        if steering is not None:
            steering.begin()


def _listed(optimizer: Any) -> list[Any]:
    several = isinstance(optimizer, list | tuple)
    return list(optimizer) if several else [] if optimizer is None else [optimizer]


def _listen(
    model: nn.Module, wrapper: Wrapper, settings: Callable[[], Settings], steering: Steering | None, must: bool
) -> Monitor | NullMonitor:
    """:param must: Without it nothing could act."""
    ranks = tuple(wrapper.ranks())
    nth = _monitors_of_group[ranks]
    _monitors_of_group[ranks] += 1
    try:
        asked = settings()
        monitor = Monitor(wrapper, asked, nth, steering)
    except Exception as error:
        if must:
            raise
        # Whatever is wrong here may be wrong on one rank only: raising would leave the others waiting for it.
        Console().say(f"cannot listen ({type(error).__name__}: {error}); training is not affected")
        return NullMonitor()
    _introduce(monitor, len(ranks), steering, asked.guard)
    # The monitor must not keep the model alive: gloo's tear-down deadlocks when a DDP object outlives its group.
    # It outlives the wrapper itself: a script that throws it away trains on, unsynchronised.
    module = getattr(getattr(model, "_orig_mod", model), "module", model)
    weakref.finalize(module, monitor.retire).atexit = False
    _monitors[module] = monitor
    return monitor


def _wrapped_again(wrapper: Wrapper, steering: Steering | None, guard: Guard | None) -> Monitor | None:
    """The monitor that listens to the module inside, if the script has wrapped that anew: one module, one run."""
    model = wrapper.wrapped() if isinstance(wrapper, DDPWrapper) and steering is None and guard is None else None
    monitor = None if model is None else _monitors.get(model.module)
    return monitor if model is not None and monitor is not None and monitor.wrapped_again(model) else None


def _wrapper_of(model: nn.Module) -> Wrapper | None:
    """What to listen to, or None with a line that says why not."""
    console = Console()
    inner = getattr(model, "_orig_mod", model)
    if not [parameter for parameter in inner.parameters() if parameter.requires_grad]:
        console.say("the model has no trainable parameters; not listening")
        return None
    if isinstance(inner, DistributedDataParallel):
        return DDPWrapper(inner)
    rank, world = (dist.get_rank(), dist.get_world_size()) if _is_distributed() else (0, 1)
    if world == 1 and not isinstance(inner, nn.parallel.DataParallel):
        return PlainModule(inner)
    if rank == 0:
        # Sharded models too: the gradients their parameters show have already been averaged.
        console.say(
            f"not listening: attach to a model wrapped in DistributedDataParallel. Found {type(inner).__name__}"
        )
    return None


def _is_distributed() -> bool:
    return dist.is_available() and dist.is_initialized()


def _introduce(monitor: Monitor, world: int, steering: Steering | None, guard: str) -> None:
    if monitor.rank != 0:
        return
    guarded = f"guarding ({guard}), " if guard else ""
    where = f"{guarded}recording in {short(Path(monitor.run_dir or '.'))}"
    if world == 1:
        Console().say(f"one worker only, nothing to compare: local signals, {where}")
    else:
        steered = "" if steering is None else f", steering by {steering}"
        Console().say(f"listening to {world} workers{steered}, {where}")


def _scheduled(asked: int | None) -> Schedule:
    interval = os.environ.get("UNISONO_EVERY")
    if interval and not interval.isdecimal():
        raise ValueError(f"`UNISONO_EVERY` should be a number of steps. Found `{interval}`. Unset it or correct it.")
    chosen = int(interval) if interval else asked
    return DEFAULT if chosen is None else every(chosen)


def _ignored(codes: Sequence[str]) -> tuple[str, ...]:
    if isinstance(codes, str):
        codes = [codes]
    codes = [*codes, *filter(None, os.environ.get("UNISONO_IGNORE", "").split(","))]
    known = {rule.code for rule in RULES}
    unknown = [code for code in codes if code not in known]
    if unknown:
        raise ValueError(
            f"`ignore` should hold codes of findings, as in `UN105`. Found `{unknown[0]}`. See: unisono explain"
        )
    return tuple(codes)


def _check_torch() -> None:
    found = tuple(int(part) for part in re.findall(r"\d+", str(torch.__version__))[:2])
    if found < OLDEST_TORCH:
        oldest = ".".join(map(str, OLDEST_TORCH))
        raise RuntimeError(f"unisono needs torch {oldest} or newer. Found torch {torch.__version__}. Update torch.")


def _check_optimizer(model: nn.Module, optimizer: Any) -> None:
    groups = getattr(optimizer, "param_groups", None)
    if groups is None:
        raise TypeError(
            f"`optimizer` should have `param_groups`, as torch optimizers do. Found {type(optimizer).__name__}. "
            "Leave it out and end each step with `monitor.step()`."
        )
    held = {id(parameter) for group in groups for parameter in group["params"]}
    if not any(id(parameter) in held for parameter in model.parameters()):
        raise ValueError(
            "`optimizer` should hold parameters of `model`. Found none of them. Was it built before the model was "
            "replaced or moved?"
        )
