"""What an optimizer remembers of a parameter, or its settings: compared, packed, and put in place of another worker's.

Compared and sent are tensors, numbers and texts, in dictionaries and lists. What else an optimizer keeps is left as it
is: it has no fingerprint that is the same in every process.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from unisono.sketch.fingerprint import fingerprint, hash_of

_PLAIN: tuple[Any, ...] = (bool, int, float, complex, str)
_TENSOR, _PLACE = "unisono.tensor", "unisono.place"


def print_of(memory: Any) -> int | Tensor:
    found = list(_leaves(memory, ""))
    words = [(path, None if isinstance(value, Tensor) else _plain(value)) for path, value in found]
    return fingerprint([value for _, value in found if isinstance(value, Tensor)], seed=hash_of(words))


def _leaves(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for key in sorted(value, key=str):
            yield from _leaves(value[key], f"{path}/{key}")
    elif isinstance(value, list | tuple):
        for place, each in enumerate(value):
            yield from _leaves(each, f"{path}/{place}")
    elif not _is_odd(value):
        yield path, value


def _is_odd(value: Any) -> bool:
    return not (value is None or isinstance(value, (Tensor, dict, list, tuple, *_PLAIN)))


def _plain(value: Any) -> Any:
    """Without what others have made of Python's own types: numpy's float64 is a float, too."""
    return next((kind(value) for kind in _PLAIN if isinstance(value, kind)), None)


def packed(value: Any) -> Any:
    """In a form that can be saved, and loaded with `weights_only=True`."""
    if isinstance(value, Tensor):
        # A copy: of a part of something larger, all of it would be saved.
        return {_TENSOR: value.detach().clone().cpu(), _PLACE: value.device.type}
    if isinstance(value, dict):
        return {_plain(key): packed(each) for key, each in value.items() if not _is_odd(each)}
    if isinstance(value, list | tuple):
        # Tuples that have names for their places do not load.
        return (list if isinstance(value, list) else tuple)(packed(each) for each in value)
    return _plain(value)


def taken_over(own: Any, received: Any, device: torch.device) -> Any:
    """
    What was received, in the place of what this worker has: tensors are filled where they fit, and stay who they are.

    :param device: Of the parameter; what lay on the host on the other worker lies there on this one.
    """
    if isinstance(received, dict) and _TENSOR in received:
        value = received[_TENSOR]
        if isinstance(own, Tensor) and (own.shape, own.dtype, own.layout) == (value.shape, value.dtype, value.layout):
            own.data.copy_(value)
            return own
        return value.to("cpu" if received[_PLACE] == "cpu" else device)
    if isinstance(received, dict):
        mine = own if isinstance(own, dict) else {}
        new = {key: taken_over(mine.get(key), each, device) for key, each in received.items()}
        return new | {key: value for key, value in mine.items() if _is_odd(value)}
    if isinstance(received, list | tuple):
        fits = isinstance(own, list | tuple) and len(own) == len(received)
        pairs = zip(own if fits else [None] * len(received), received, strict=True)
        return type(received)(taken_over(mine, each, device) for mine, each in pairs)
    return received
