"""What DDP holds of steering: its communication hook and the hook's state."""

from __future__ import annotations

from typing import Any


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
