"""What a data loader says of itself: its sampler, its sizes, its settings. Read when a pass over the data begins."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from torch.utils.data import Subset

NUMBERS = {
    "sampler rank": ("rank", "process_index"),
    "sampler replicas": ("num_replicas", "num_processes"),
    "sampler seed": ("seed", "initial_seed"),
    "sampler epoch": ("epoch",),
}
"""By the names that torch's and accelerate's samplers give them."""

ORDERS = {"RandomSampler": "yes", "SequentialSampler": "no"}
REPEATS = ("num_repeats", "repeats", "repetitions", "num_repetitions")
"""Of samplers that hand the same sample to several workers on purpose, each with another augmentation."""

FLAGS = {"shuffle": ("shuffle",), "replacement": ("replacement",), "drop last": ("drop_last",)}


def loader_facts(iterator: Any) -> dict[str, str]:
    """Of a torch loader, from the iterator of a pass."""
    facts = {"workers": str(iterator._num_workers), "dataset kind": "iterable" if _is_iterable(iterator) else "map"}
    facts |= _sampler_facts(iterator._index_sampler)
    # A sampler's own code may make its batches when it is asked how many there are. Torch's samplers ask the dataset.
    if not _is_iterable(iterator) and all(_is_torchs(sampler) for sampler in _samplers(iterator._index_sampler)):
        lengths = {"length": _length(iterator._index_sampler), "dataset": _length(iterator._dataset)}
        facts |= {title: str(length) for title, length in lengths.items() if length is not None}
    return facts


def _is_torchs(sampler: Any) -> bool:
    return type(sampler).__module__.startswith(("torch.utils.data.", "accelerate."))


def sampler_of(iterator: Any) -> Any:
    """The innermost one: a script may build a new loader around the same sampler in every epoch."""
    return list(_samplers(iterator._index_sampler))[-1]


def sampler_facts(loader: Any) -> dict[str, str]:
    """Of any other loader that has a sampler, or of a sampler itself."""
    found = [getattr(loader, name, None) for name in ("batch_sampler", "sampler")]
    sampler = next((one for one in found if one is not None), loader)
    return _sampler_facts(sampler) | {"number": "0", "pass": "0"}


def _sampler_facts(sampler: Any) -> dict[str, str]:
    chain = list(_samplers(sampler))
    facts = {"sampler": type(chain[-1]).__name__}
    for title, names in NUMBERS.items():
        number = _first(chain, names)
        if isinstance(number, int) and not isinstance(number, bool):
            facts[title] = str(number)
    for title, names in FLAGS.items():
        flag = _first(chain, names)
        if isinstance(flag, bool):
            facts[title] = "yes" if flag else "no"
    if type(chain[-1]).__name__ in ORDERS:
        facts["shuffle"] = ORDERS[type(chain[-1]).__name__]
    repeats = _first(chain, REPEATS)
    if isinstance(repeats, int) and repeats > 1:
        facts["repeats"] = str(repeats)
    size = _first(chain, ("batch_size",))
    if isinstance(size, int):
        facts["batch size"] = str(size)
    return facts


def resolved(dataset: Any, indices: Sequence[int]) -> tuple[int, list[int]]:
    """Positions in a subset as indices of the dataset underneath, and which that is: ranks may split it differently."""
    while isinstance(dataset, Subset):
        indices = [int(dataset.indices[index]) for index in indices]
        dataset = dataset.dataset
    return id(dataset), list(indices)


def _samplers(sampler: Any) -> Iterator[Any]:
    """The batch sampler, and what it draws from."""
    for _ in range(4):
        yield sampler
        inner = [getattr(sampler, name, None) for name in ("sampler", "batch_sampler")]
        sampler = next((one for one in inner if one is not None), None)
        if sampler is None:
            return


def _is_iterable(iterator: Any) -> bool:
    return getattr(iterator, "_dataset_kind", 0) == 1


def _first(owners: Sequence[Any], names: Sequence[str]) -> Any:
    for owner in reversed(owners):
        for name in names:
            if hasattr(owner, name):
                return getattr(owner, name)
    return None


def _length(sized: Any) -> int | None:
    try:
        return len(sized)
    except Exception:  # a dataset's own code
        return None
