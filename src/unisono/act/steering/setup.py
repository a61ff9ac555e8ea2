"""Steering as it was asked for: its options, checked on every worker alike, and DDP's one slot for a hook."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from torch import nn
from torch.nn.parallel import DistributedDataParallel

from unisono.act.steering.exact_route import ExactRoute
from unisono.act.steering.sketch_route import SketchRoute
from unisono.act.steering.steering import Steering
from unisono.act.weightings.spec import GRAMS, SCOPES, VARIABLE, asked
from unisono.act.weightings.weighting import Weighting, damping_of, window_of
from unisono.common.console import Console
from unisono.common.layer_groups import canonical_name
from unisono.exchange.collectives import SteeringCollectives
from unisono.exchange.same_request import check_same
from unisono.listen.models.wrapper import Wrapper


@dataclass(frozen=True)
class SteeringOptions:
    """How a user asked to steer."""

    weighting: Any
    gram: str = "sketch"
    scope: str = "model"
    forget_rejected: bool = False

    def __post_init__(self) -> None:
        if isinstance(self.weighting, type):
            raise TypeError(f"`weighting` should be an object. Found a class. Write: {self.weighting.__name__}()")
        if not callable(self.weighting):
            raise TypeError(
                "`weighting` should be one of unisono.weightings, or called with a Gram matrix return weights. "
                f"Found {type(self.weighting).__name__}. Write: unisono.weightings.AgreementFilter()"
            )
        if self.gram not in GRAMS or self.scope not in SCOPES:
            raise ValueError(
                "`gram` should be `sketch` or `exact`, `scope` should be `model` or `bucket`. "
                f"Found `gram={self.gram!r}, scope={self.scope!r}`."
            )
        if self.gram == "exact" and (self.window > 1 or self.damping is not None):
            raise ValueError('Windowed and Preconditioned need sketches. Found `gram="exact"`. Write: gram="sketch"')

    def manner(self) -> list[str]:
        """In words, for the record."""
        forgets = ["what is rejected is forgotten"] if self.forget_rejected else []
        return [f"{self.gram} gram", f"scope {self.scope}", *forgets]

    @property
    def window(self) -> int:
        return window_of(self.weighting)

    @property
    def damping(self) -> float | None:
        return damping_of(self.weighting)


def asked_options(weighting: Any, gram: str, scope: str, forget_rejected: bool) -> SteeringOptions | None:
    """What `attach` was asked for, or else `unisono run --weighting`; None: only listen."""
    if weighting is not None:
        return SteeringOptions(weighting, gram, scope, forget_rejected)
    text = os.environ.get(VARIABLE, "")
    if text:
        found = asked(text)
        return SteeringOptions(found.weighting(), found.gram, found.scope, forget_rejected or found.forget_rejected)
    if (gram, scope, forget_rejected) != ("sketch", "model", False):
        raise ValueError(
            "`gram`, `scope` and `forget_rejected` belong to steering. Found them without `weighting`. "
            "Write: weighting=unisono.weightings.AgreementFilter()"
        )
    return None


def steer(model: nn.Module, wrapper: Wrapper | None, options: SteeringOptions, first_step: int) -> Steering | None:
    """Waits for all workers: they steer the same way, or none does. None where there is nothing to steer."""
    inner = getattr(model, "_orig_mod", model)
    if wrapper is not None and len(wrapper.ranks()) == 1:
        Console().say("one worker only: nothing to weigh. For parts of its batch see unisono.microbatches")
        return None
    if not isinstance(inner, DistributedDataParallel):
        raise ValueError(
            f"Steering needs a model wrapped in DistributedDataParallel. Found {type(inner).__name__}. "
            "Wrap it so, or attach without `weighting`."
        )
    if wrapper is None:
        return None
    steering = steering_of(inner)
    if steering is not None:
        if not os.environ.get(VARIABLE):
            raise ValueError("A model can be steered once. Found one that is steered already. Attach to it once.")
        # `unisono run --weighting` was quicker than the script's own `attach`.
        Console().say(f"steered by {steering} already, as the command asks; what the script asks for is not used")
        return None
    return _steering(inner, wrapper.ranks(), options, first_step)


def _steering(model: DistributedDataParallel, ranks: list[int], options: SteeringOptions, first_step: int) -> Steering:
    named_parameters = _in_buckets(model)
    collectives = SteeringCollectives(model.process_group, named_parameters[0][1].device)
    _check_slot(model)
    check_same("steering", _wanted(options, [name for name, _ in named_parameters]), collectives.rank, ranks)
    route: ExactRoute | SketchRoute
    if options.gram == "exact":
        route = ExactRoute(collectives)
    else:
        route = SketchRoute(collectives, named_parameters, options.window, options.damping)
    complain = Console().complain if collectives.is_first else _silence
    per_bucket, forget = options.scope == "bucket", options.forget_rejected
    manner = options.manner()
    steering = Steering(model, collectives, route, options.weighting, manner, per_bucket, forget, first_step, complain)
    try:
        model.register_comm_hook(CommHookState(steering), unisono_steering)
    except RuntimeError as error:
        model._comm_hooks.pop()
        raise _taken("one of torch's own") from error
    for name in ("register_comm_hook", "_register_builtin_comm_hook"):
        setattr(model, name, _refuse_another)
    return steering


def _in_buckets(model: DistributedDataParallel) -> list[tuple[str, nn.Parameter]]:
    """Also what is frozen now: it may be thawed again."""
    ignored = getattr(model, "parameters_to_ignore", ())
    named = [(name, one) for name, one in model.module.named_parameters() if name not in ignored and one.numel()]
    return [(canonical_name(name), parameter) for name, parameter in named]


def _check_slot(model: DistributedDataParallel) -> None:
    hooks = [getattr(hook, "__name__", type(hook).__name__) for hook, _ in getattr(model, "_comm_hooks", ())]
    if hooks:
        raise _taken(f"`{hooks[0]}`")


def _taken(found: str) -> ValueError:
    return ValueError(
        f"Steering needs DDP's communication hook, of which there can be one. Found {found}. "
        "Remove that hook (compression, mixed_precision of DDP), or attach without `weighting`."
    )


def _wanted(options: SteeringOptions, names: Sequence[str]) -> str:
    weighting = repr(options.weighting) if isinstance(options.weighting, Weighting) else ""
    # Functions have an address, which is another one on every worker.
    weighting = re.sub(r" at 0x[0-9a-f]+", "", weighting)
    return repr((weighting, options.gram, options.scope, options.window, options.damping, list(names)))


def _silence(text: str) -> None:
    """What all workers would say is said by the first."""


def _refuse_another(*args: Any, **kwargs: Any) -> NoReturn:
    raise RuntimeError(
        "DDP takes one communication hook, and unisono steers with it. Found another one being registered. "
        "Remove it, or do without `weighting` (`--weighting`)."
    )


class CommHookState:
    """Copied or pickled with the model it steers nothing: the copy's gradients are its own."""

    def __init__(self, steering: Any = None) -> None:
        self.steering = steering

    def __reduce__(self) -> tuple[type[CommHookState], tuple[()]]:
        return CommHookState, ()


# Without annotations: DDP compares them with types, and here they would be text.
def unisono_steering(state, bucket):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN201
    return state.steering.bucket_arrived(bucket)


def steering_of(model: Any) -> Any:
    """What steers this model already, if anything does."""
    states = [state for _, state in getattr(model, "_comm_hooks", ())]
    return next(
        (state.steering for state in states if isinstance(state, CommHookState) and state.steering is not None), None
    )
