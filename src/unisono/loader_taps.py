"""Where unisono listens in on data loading: what `DataLoader` hands out, and which dataset indices it asked for.

Indices are drawn ahead of the data when worker processes load it; they are queued and matched in order.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

from torch.utils.data import dataloader

Tell = Callable[..., None]
Replace = Callable[[Any, str, Callable[[Callable[..., Any]], Callable[..., Any]]], None]
ITERATOR: Any = getattr(dataloader, "_BaseDataLoaderIter", None)
_drawn: WeakKeyDictionary[Any, deque[Any]] = WeakKeyDictionary()


def install(replace: Replace, tell: Tell) -> None:
    """Does nothing where torch has other internals than we know: data is then read at the model alone."""
    if ITERATOR is not None and hasattr(ITERATOR, "_next_index"):
        replace(ITERATOR, "_next_index", _tap_next_index)
        replace(ITERATOR, "__next__", lambda original: _tap_next(tell, original))


def _tap_next_index(original: Callable[..., Any]) -> Callable[..., Any]:
    def _next_index(self: Any) -> Any:
        index = original(self)
        _drawn.setdefault(self, deque()).append(index)
        return index

    return _next_index


def _tap_next(tell: Tell, original: Callable[..., Any]) -> Callable[..., Any]:
    def __next__(self: Any) -> Any:  # noqa: N807 (it takes the place of the iterator's)
        tell("loading_begins", self)
        data = original(self)
        tell("loaded", self, data, _indices(self))
        return data

    return __next__


def _indices(iterator: Any) -> list[int] | None:
    """Of the batch just handed out; None where they are not known for certain."""
    drawn = _drawn.get(iterator)
    if not drawn:
        return None
    if getattr(iterator, "_num_yielded", 0) <= 1:
        # A new pass: what an abandoned one has drawn ahead is still queued.
        _forget_abandoned(iterator, drawn)
    index = drawn.popleft()
    ahead = getattr(iterator, "_send_idx", None)
    # Begun before we listened, or handed out in whatever order it arrives.
    if (ahead is not None and len(drawn) != ahead - iterator._num_yielded) or not getattr(iterator, "_in_order", True):
        return None
    indices = index if isinstance(index, list | tuple) else [index]
    return [int(one) for one in indices] if all(_is_whole(one) for one in indices) else None


def _forget_abandoned(iterator: Any, drawn: deque[Any]) -> None:
    ahead = getattr(iterator, "_send_idx", 1)
    while len(drawn) > ahead:
        drawn.popleft()


def _is_whole(index: Any) -> bool:
    return hasattr(index, "__index__")
