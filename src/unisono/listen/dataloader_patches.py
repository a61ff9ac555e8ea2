"""Where unisono listens in on data loading: what `DataLoader` hands out, and which dataset indices it asked for.

Indices are drawn ahead of the data when worker processes load it; they are queued and matched in order.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

from torch.utils.data import dataloader

Replace = Callable[[Any, str, Callable[[Callable[..., Any]], Callable[..., Any]]], None]
ITERATOR: Any = getattr(dataloader, "_BaseDataLoaderIter", None)
_drawn: WeakKeyDictionary[Any, deque[Any]] = WeakKeyDictionary()


def install(replace: Replace, loading_begins: Callable[..., None], loaded: Callable[..., None]) -> None:
    """Does nothing where torch has other internals than we know: data is then read at the model alone."""
    # What was queued when somebody last listened does not fit any more.
    _drawn.clear()
    if ITERATOR is not None and hasattr(ITERATOR, "_next_index"):
        replace(ITERATOR, "_next_index", lambda original: _patch_next_index(loading_begins, original))
        replace(ITERATOR, "__next__", lambda original: _patch_next(loaded, original))


def _patch_next_index(loading_begins: Callable[..., None], original: Callable[..., Any]) -> Callable[..., Any]:
    def _next_index(self: Any) -> Any:
        index = original(self)
        _drawn.setdefault(self, deque()).append(index)
        if getattr(self, "_num_workers", 0) == 0:
            # The sampler has drawn what it needs; what is drawn from now on is the dataset's.
            loading_begins(self)
        return index

    return _next_index


def _patch_next(loaded: Callable[..., None], original: Callable[..., Any]) -> Callable[..., Any]:
    def __next__(self: Any) -> Any:  # noqa: N807 (it takes the place of the iterator's)
        try:
            data = original(self)
        except StopIteration:
            raise
        except Exception:
            _pop(self)
            raise
        loaded(self, data, _indices(self))
        return data

    return __next__


def _pop(iterator: Any) -> Any:
    """The indices of the batch just handed out, or of the one that could not be."""
    drawn = _drawn.get(iterator)
    return drawn.popleft() if drawn else None


def _indices(iterator: Any) -> list[int] | None:
    """Of the batch just handed out; None where they are not known for certain."""
    try:
        if getattr(iterator, "_num_yielded", 0) <= 1:
            _forget_abandoned(iterator)
        index = _pop(iterator)
        return _whole_numbers(index, iterator._auto_collation) if _is_in_step(iterator) else None
    except Exception:  # whatever a sampler yields, the batch has to reach the script
        return None


def _is_in_step(iterator: Any) -> bool:
    """Not so when it was begun before we listened, or hands batches out in whatever order they arrive."""
    ahead, queued = getattr(iterator, "_send_idx", None), len(_drawn.get(iterator, ()))
    return getattr(iterator, "_in_order", True) and (ahead is None or queued == ahead - iterator._num_yielded)


def _forget_abandoned(iterator: Any) -> None:
    """A new pass: what an abandoned one has drawn ahead is still queued."""
    drawn = _drawn.get(iterator, deque())
    while len(drawn) > getattr(iterator, "_send_idx", 1):
        drawn.popleft()


def _whole_numbers(index: Any, batched: bool) -> list[int] | None:
    """A sampler may yield lists, arrays or tensors. A tuple is a batch only where the loader makes batches."""
    plain = index.tolist() if hasattr(index, "tolist") else index
    several = isinstance(plain, list) or (batched and isinstance(plain, tuple))
    numbers = list(plain) if several else [plain]
    if not all(hasattr(number, "__index__") for number in numbers):
        return None
    return [int(number) for number in numbers]
