"""Names of parameters: without wrappers, and gathered into layer groups."""

from __future__ import annotations

from collections.abc import Sequence

MOST_GROUPS = 64
_WRAPPERS = frozenset({"_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"})


def canonical_name(name: str) -> str:
    """The name a parameter has in the bare model, however it was compiled, sharded, checkpointed or replicated."""
    *path, leaf = name.split(".")
    path = [part for part in path if part not in _WRAPPERS]
    # Only in front: further inside, `module` is a name the user chose.
    if path[:1] == ["module"]:
        path = path[1:]
    return ".".join([*path, leaf])


def layer_groups(names: Sequence[str]) -> tuple[list[str], list[int]]:
    """The layer groups of canonical names, in order of first appearance, and the group index of each name."""
    groups = [_group(name) for name in names]
    order = {group: index for index, group in enumerate(dict.fromkeys(groups))}
    bins = [index * MOST_GROUPS // max(len(order), MOST_GROUPS) for index in range(len(order))]
    return _bin_names(list(order), bins), [bins[order[group]] for group in groups]


def _group(name: str) -> str:
    parts = name.split(".")
    for depth, part in enumerate(parts, start=1):
        if part.isdecimal():
            return ".".join(parts[:depth])
    return ".".join(parts[:-1]) or name


def _bin_names(groups: list[str], bins: list[int]) -> list[str]:
    members: dict[int, list[str]] = {}
    for group, index in zip(groups, bins, strict=True):
        members.setdefault(index, []).append(group)
    return [part[0] if len(part) == 1 else f"{part[0]} … {part[-1]}" for part in members.values()]
