"""Checks what was asked for, on every worker alike, and takes DDP's one slot for a communication hook."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from unisono.console import Console
from unisono.integrations.wrapper import PlainModule, Wrapper
from unisono.steering.exact_route import ExactRoute
from unisono.steering.meeting import Meeting
from unisono.steering.sketch_route import MOMENTS, SketchRoute
from unisono.steering.steering import Steering
from unisono.weighting_text import GRAMS, SCOPES, VARIABLE, asked
from unisono.weightings import Weighting


@dataclass(frozen=True)
class Course:
    """How a user asked to steer."""

    weighting: Any
    gram: str = "sketch"
    scope: str = "model"
    forget_rejected: bool = False

    def __post_init__(self) -> None:
        if not callable(self.weighting):
            raise TypeError(
                "`weighting` should be one of unisono.weightings, or called with a Gram matrix return weights. "
                f"Found {type(self.weighting).__name__}."
            )
        if isinstance(self.weighting, type):
            raise TypeError(f"`weighting` should be an object. Found a class. Write: {self.weighting.__name__}()")
        if self.gram not in GRAMS or self.scope not in SCOPES:
            raise ValueError(
                "`gram` should be `sketch` or `exact`, `scope` should be `model` or `bucket`. "
                f"Found `gram={self.gram!r}, scope={self.scope!r}`."
            )
        if self.gram == "exact" and (self.window > 1 or self.damping is not None):
            raise ValueError('Windowed and Preconditioned need sketches. Found `gram="exact"`. Write: gram="sketch"')

    @property
    def window(self) -> int:
        return self.weighting.window if isinstance(self.weighting, Weighting) else 1

    @property
    def damping(self) -> float | None:
        return self.weighting.damping if isinstance(self.weighting, Weighting) else None


def asked_course(weighting: Any, gram: str, scope: str, forget_rejected: bool) -> Course | None:
    """What `attach` was asked for, or else `unisono run --weighting`; None: only listen."""
    if weighting is not None:
        return Course(weighting, gram, scope, forget_rejected)
    text = os.environ.get(VARIABLE, "")
    if not text:
        return None
    found = asked(text)
    return Course(found.weighting(), found.gram, found.scope, forget_rejected)


def steer(model: nn.Module, wrapper: Wrapper | None, optimizer: Any, course: Course) -> Steering | None:
    """A collective: called on every worker, it raises on all of them or on none. None with one worker only."""
    inner = getattr(model, "_orig_mod", model)
    if isinstance(wrapper, PlainModule) or (wrapper is not None and len(wrapper.ranks()) == 1):
        Console().say("one worker only: nothing to weigh. For parts of its batch see unisono.microbatches")
        return None
    if wrapper is None or not isinstance(inner, DistributedDataParallel):
        raise ValueError(
            f"Steering needs a model wrapped in DistributedDataParallel. Found {type(inner).__name__}. "
            "Wrap it so, or attach without `weighting`."
        )
    return _steering(inner, wrapper.named_parameters(), optimizer, course)


def _steering(
    model: DistributedDataParallel, named_parameters: Sequence[tuple[str, nn.Parameter]], optimizer: Any, course: Course
) -> Steering:
    _check_slot(model)
    _check_moments(optimizer, course)
    meeting = Meeting(model.process_group, named_parameters[0][1].device)
    complain = Console().complain if meeting.is_first else _silence
    _check_same(course, [name for name, _ in named_parameters], meeting)
    route: ExactRoute | SketchRoute
    if course.gram == "exact":
        route = ExactRoute(meeting)
    else:
        route = SketchRoute(meeting, named_parameters, course.window, course.damping, optimizer)
    steering = Steering(
        model, meeting, route, course.weighting, course.scope == "bucket", course.forget_rejected, complain
    )
    for name in ("register_comm_hook", "_register_builtin_comm_hook"):
        setattr(model, name, _refuse_another)
    return steering


def _check_slot(model: DistributedDataParallel) -> None:
    hooks = [getattr(hook, "__name__", type(hook).__name__) for hook, _ in getattr(model, "_comm_hooks", ())]
    if hooks:
        raise ValueError(
            f"Steering needs DDP's communication hook, of which there can be one. Found `{hooks[0]}`. "
            "Remove that hook (compression, mixed_precision of DDP), or attach without `weighting`."
        )


def _check_moments(optimizer: Any, course: Course) -> None:
    if course.damping is not None and not hasattr(optimizer, "state"):
        raise ValueError(
            f"Preconditioned needs the optimizer's second moments ({' or '.join(MOMENTS)}). Found no optimizer. "
            "Write: unisono.attach(model, optimizer, ...)"
        )


def _check_same(course: Course, names: list[str], meeting: Meeting) -> None:
    """Workers that steer differently would wait for each other until training's time limit."""
    asked = (course.gram, course.scope, course.window, course.damping, names)
    asked_W: list[Any] = [None] * meeting.world
    dist.all_gather_object(asked_W, asked, group=meeting.group)
    others = [rank for rank, found in enumerate(asked_W) if found != asked_W[0]]
    if others:
        raise ValueError(
            f"Every worker should steer the same way. Found worker {others[0]} with other settings or parameters than "
            "worker 0. Call attach with the same arguments everywhere."
        )


def _silence(text: str) -> None:
    """What all workers would say is said by the first."""


def _refuse_another(*args: Any, **kwargs: Any) -> NoReturn:
    raise RuntimeError(
        "DDP takes one communication hook, and unisono steers with it. Found another one being registered. "
        "Remove it, or do without `weighting` (`--weighting`)."
    )
