"""All that a worker's next steps depend on, as plain copies on the CPU, and the way back."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from unisono.act.checkpoints import model_part, optimizer_part
from unisono.act.checkpoints import rng_streams as streams
from unisono.act.checkpoints.copies import plain
from unisono.act.checkpoints.plain_files import CheckpointError

FORM = 1
"""Of what a snapshot holds; another number is refused."""

_REPLICA = {"step": int, "parameters": dict, "optimizers": dict}
_OWN = {"step": int, "buffers": dict, "extras": dict, "optimizers": dict, "states": list, "random": dict}


@dataclass
class Subject:
    """What is trained by one worker."""

    module: nn.Module
    optimizers: list[Any]
    states: Sequence[Any] = ()
    """Scheduler, sampler and the like: objects with `state_dict` and `load_state_dict`."""

    scaler: Any | None = None


@dataclass
class Snapshot:
    step: int
    replica: dict[str, Any] = field(default_factory=dict)
    """Equal on all workers: one copy for a host is enough."""

    own: dict[str, Any] = field(default_factory=dict)
    """This worker's: random streams, state objects, buffers (batch norms differ), its share of a sharded optimizer."""


def capture(subject: Subject, step: int) -> Snapshot:
    """Raises `CheckpointError` where something could not be read back from a file."""
    states = [plain(_named(state, number), _state_of(state, number)) for number, state in enumerate(subject.states)]
    replica: dict[str, Any] = {
        "form": FORM,
        "step": step,
        "parameters": model_part.parameters_of(subject.module),
        "optimizers": {},
        "scaler": plain("the GradScaler", subject.scaler.state_dict()) if subject.scaler is not None else None,
    }
    own: dict[str, Any] = {
        "form": FORM,
        "step": step,
        "buffers": model_part.buffers_of(subject.module),
        "extras": model_part.extras_of(subject.module),
        "optimizers": {},
        "states": states,
        "random": streams.capture(),
    }
    for number, optimizer in enumerate(subject.optimizers):
        place = own if optimizer_part.differs_by_rank(optimizer) else replica
        place["optimizers"][number] = optimizer_part.capture(optimizer, number)
    return Snapshot(step, replica, own)


def check_states(states: Sequence[Any]) -> None:
    """Whether they could be saved: better known at once than when the first checkpoint is due."""
    for number, state in enumerate(states):
        plain(_named(state, number), _state_of(state, number))


def check_fits(subject: Subject, snapshot: Snapshot) -> None:
    """Raises `CheckpointError` where it is of something else."""
    replica, own = _whole(snapshot)
    _check(subject, replica, own, {**replica["optimizers"], **own["optimizers"]})


def put_back(subject: Subject, snapshot: Snapshot) -> None:
    """Either all of it or nothing: everything is compared first, and a failure on the way is undone."""
    replica, own = _whole(snapshot)
    optimizers = {**replica["optimizers"], **own["optimizers"]}
    _check(subject, replica, own, optimizers)
    _all_or_none(_loads(subject, replica, own, optimizers))
    model_part.put_back_parameters(subject.module, replica["parameters"])
    model_part.put_back_buffers(subject.module, own["buffers"])
    # Last, because all that came before may have drawn numbers.
    streams.put_back(own["random"])


def _whole(snapshot: Snapshot) -> tuple[dict[str, Any], dict[str, Any]]:
    for part, wanted in ((snapshot.replica, _REPLICA), (snapshot.own, _OWN)):
        if not isinstance(part, dict) or part.get("form") != FORM:
            raise _incomplete("one of another form")
        for key, kind in wanted.items():
            if not isinstance(part.get(key), kind):
                raise _incomplete(f"no `{key}`")
        if part["step"] != snapshot.step:
            raise _incomplete(f"a part of step {part['step']} in the one of step {snapshot.step}")
    return snapshot.replica, snapshot.own


def _check(subject: Subject, replica: dict[str, Any], own: dict[str, Any], optimizers: dict[int, Any]) -> None:
    model_part.check_parameters(subject.module, replica["parameters"])
    model_part.check_buffers(subject.module, own["buffers"])
    model_part.check_extras(subject.module, own["extras"])
    if len(optimizers) != len(subject.optimizers):
        raise _other("optimizers", len(optimizers), len(subject.optimizers))
    for number, optimizer in enumerate(subject.optimizers):
        optimizer_part.check(optimizer, optimizers.get(number), number)
    if len(own["states"]) != len(subject.states):
        raise _other("state objects", len(own["states"]), len(subject.states))
    if (replica.get("scaler") is None) != (subject.scaler is None):
        raise _other("GradScalers", int(replica.get("scaler") is not None), int(subject.scaler is not None))
    streams.check(own["random"])


Load = tuple[str, Callable[[], None], Callable[[], None]]
"""What is loaded, how, and how that is undone."""


def _loads(subject: Subject, replica: dict[str, Any], own: dict[str, Any], optimizers: dict[int, Any]) -> list[Load]:
    """Schedulers before optimizers: some of them write learning rates when they are loaded."""
    loads: list[Load] = []
    for number, (state, saved) in enumerate(zip(subject.states, own["states"], strict=True)):
        before = plain(_named(state, number), _state_of(state, number))
        loads.append((_named(state, number), _loading(state, saved), _loading(state, before)))
    for number, optimizer in enumerate(subject.optimizers):
        held = optimizer_part.capture(optimizer, number)
        load = _call(optimizer_part.put_back, optimizer, optimizers[number])
        loads.append((f"optimizer {number}", load, _call(optimizer_part.put_back, optimizer, held)))
    # A scaler that is switched off has an empty state, which it refuses to load.
    if subject.scaler is not None and replica["scaler"]:
        now = plain("the GradScaler", subject.scaler.state_dict())
        loads.append(("the GradScaler", _loading(subject.scaler, replica["scaler"]), _loading(subject.scaler, now)))
    extras, module = model_part.extras_of(subject.module), subject.module
    load_extras, undo = (_call(model_part.put_back_extras, module, values) for values in (own["extras"], extras))
    return [*loads, ("extra state of the model", load_extras, undo)]


def _all_or_none(loads: list[Load]) -> None:
    undo: list[Callable[[], None]] = []
    for what, load, restore in loads:
        undo.append(restore)
        try:
            load()
        except Exception as error:
            for back in reversed(undo):
                back()
            raise CheckpointError(
                f"The state of {what} should be loadable. Found that it refused it ({type(error).__name__}: {error}). "
                "Nothing was changed. Use a checkpoint that the same objects have written."
            ) from error


def _loading(target: Any, saved: Any) -> Callable[[], None]:
    # A copy: the object may keep what it is given, and change it.
    return lambda: target.load_state_dict(copy.deepcopy(saved))


def _call(function: Callable[..., None], *arguments: Any) -> Callable[[], None]:
    return lambda: function(*arguments)


def _named(state: Any, number: int) -> str:
    return f"state object {number} (`{type(state).__name__}`)"


def _state_of(state: Any, number: int) -> Any:
    if not (callable(getattr(state, "state_dict", None)) and callable(getattr(state, "load_state_dict", None))):
        raise CheckpointError(
            f"A state object should have `state_dict` and `load_state_dict`. Found {_named(state, number)}, which has "
            "not. Wrap it in an object that has both."
        )
    return state.state_dict()


def _other(what: str, saved: int, here: int) -> CheckpointError:
    return CheckpointError(
        f"A checkpoint should fit what is trained. Found {saved} {what} in it, and {here} here. "
        "Give the same objects, in the same order."
    )


def _incomplete(found: str) -> CheckpointError:
    return CheckpointError(f"A checkpoint should be complete. Found {found}. Use another one.")
