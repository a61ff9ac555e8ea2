"""Copies on the CPU that share nothing with what is trained."""

from __future__ import annotations

import copy
import io
from typing import Any

import torch
from torch import Tensor

from unisono.act.checkpoints.plain_files import CheckpointError


def copied(value: Any) -> Any:
    """Dictionaries, lists and tuples are rebuilt, tensors come to the CPU."""
    if isinstance(value, Tensor):
        return value.detach().to("cpu", copy=True)
    if type(value) is dict:
        return {key: copied(part) for key, part in value.items()}
    if type(value) in (list, tuple):
        return type(value)(copied(part) for part in value)
    return copy.deepcopy(value)


def plain(what: str, value: Any) -> Any:
    """A copy by way of the bytes that a file would hold: what cannot be read back is refused now, not when needed."""
    try:
        content = io.BytesIO()
        torch.save(value, content)
        content.seek(0)
        return torch.load(content, weights_only=True, map_location="cpu")
    except Exception as error:
        raise CheckpointError(
            f"The state of {what} should be made of tensors, numbers, text, lists and dictionaries. {_found(error)} "
            "Let its `state_dict` return such values (`.item()` or `.tolist()` of what numpy made)."
        ) from error


def _found(error: Exception) -> str:
    text = str(error)
    for sign in ("Unsupported global: GLOBAL ", "Unsupported class "):
        if sign in text:
            return f"Found `{text.partition(sign)[2].split(maxsplit=1)[0]}` in it."
    return f"Found that it cannot be read back ({type(error).__name__}: {text.partition(chr(10))[0][:200]})."
