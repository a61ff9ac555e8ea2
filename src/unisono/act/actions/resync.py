"""Makes replicas equal again, bit by bit: who differs from the majority, or from a given worker, takes over its state.

All workers call it at the same point. What differs and who gives is worked out from what was gathered, so that all take
part in the same collectives or fail with the same error. Without a majority the first worker's replica counts.

W = workers, K = kinds, H = numbers of the first message, I = items of a kind.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from unisono.act.actions.resync_inventory import KINDS, Inventory
from unisono.act.actions.resync_transfer import gathered, send_object, send_tensors
from unisono.exchange.collectives import Collectives

NAMES_KEPT = 8


@torch.no_grad()
def resync(
    group: Any, module: nn.Module, optimizers: Sequence[Any], buffers: bool = True, giver: int | None = None
) -> ResyncResult:
    """
    A collective of `group`; training must stand still.

    :param module: Of DDP, buffers that it broadcasts itself are left alone.
    :param buffers: Whether the others count.
    :param optimizers: Shares of a ZeroRedundancyOptimizer's state are left alone.
    :param giver: The worker whose replica counts, whatever the majority's is.
    """
    inventory = Inventory(module, optimizers, buffers)
    collectives = Collectives(group, inventory.device)
    head = [*inventory.forms(), *inventory.whole_prints(), int(inventory.divided)]
    form_KW, print_KW, (divided_W,) = _apart(gathered(collectives, head))
    _check_form(form_KW, dist.get_process_group_ranks(collectives.group))
    left_alone = _left_alone(form_KW, divided_W)
    # To the vote, what is left alone is equal.
    print_KW = [
        [0] * collectives.world if kind in left_alone else row for kind, row in zip(KINDS, print_KW, strict=True)
    ]
    source, giver_K = givers(print_KW) if giver is None else (giver, [giver] * len(KINDS))
    repair = _Repair(collectives, inventory)
    for kind, gives, print_W in zip(KINDS, giver_K, print_KW, strict=True):
        if len(set(print_W)) > 1:
            repair.make_equal(kind, gives)
    overwritten = repair.told() if repair.differ_WI else ()
    return ResyncResult(
        source, len(inventory.parameters), len(inventory.buffers), overwritten, tuple(left_alone.values())
    )


def _apart(head_WH: Tensor) -> tuple[list[list[int]], list[list[int]], list[list[int]]]:
    head_HW: list[list[int]] = head_WH.T.tolist()
    kinds = len(KINDS)
    return head_HW[:kinds], head_HW[kinds : 2 * kinds], head_HW[2 * kinds :]


def _check_form(form_KW: list[list[int]], ranks: Sequence[int]) -> None:
    for kind, form_W in zip(KINDS, form_KW, strict=True):
        others = [rank for rank, form in zip(ranks, form_W, strict=True) if form != form_W[0]]
        if others and kind != "buffers":
            raise RuntimeError(
                f"To resync, every worker should have the same {kind}. Found other ones (number, names or shapes) on "
                f"rank {others[0]} than on rank {ranks[0]}. No worker was changed."
            )


def _left_alone(form_KW: list[list[int]], divided_W: list[int]) -> dict[str, str]:
    """Kinds that are not compared, and why."""
    found = {}
    if len(set(form_KW[KINDS.index("buffers")])) > 1:
        # Such as tables that grow with the longest input seen.
        found["buffers"] = "buffers have other shapes on some workers and were left alone"
    if 2 * sum(divided_W) > len(divided_W):
        found["optimizers"] = "optimizer state seems to be shared out among workers and was left alone"
    return found


class _Repair:
    def __init__(self, collectives: Collectives, inventory: Inventory) -> None:
        self._collectives, self._inventory = collectives, inventory
        self.differ_WI: dict[str, list[list[bool]]] = {}
        self._giver: dict[str, int] = {}
        self._largest = dict.fromkeys(KINDS, 0.0)

    def make_equal(self, kind: str, giver: int) -> None:
        print_WI = gathered(self._collectives, self._inventory.prints(kind))
        differ_WI = print_WI != print_WI[giver]
        self.differ_WI[kind], self._giver[kind] = differ_WI.tolist(), giver
        wanted = differ_WI.any(0).nonzero().flatten().tolist()
        mine = [self.differ_WI[kind][self._collectives.rank][index] for index in wanted]
        if kind == "optimizers":
            self._send_memory(giver, wanted, mine)
        else:
            everything = list(self._inventory.tensors(kind).values())
            tensors = [everything[index] for index in wanted]
            self._largest[kind] = send_tensors(self._collectives, giver, tensors, mine)

    def _send_memory(self, giver: int, wanted: Sequence[int], mine: Sequence[bool]) -> None:
        chosen = [self._inventory.remembered[index] for index in wanted]
        received = send_object(self._collectives, giver, lambda: [each.packed() for each in chosen], wanted=any(mine))
        for place, differs in enumerate(mine):
            if differs:
                chosen[place].take_over(received[place])

    def told(self) -> tuple[Overwritten, ...]:
        """What became of whom; every worker knows how far away it was."""
        largest_WK = gathered(self._collectives, list(self._largest.values()), torch.float64).tolist()
        found = []
        for worker, largest_K in enumerate(largest_WK):
            for giver in sorted(set(self._giver.values())):
                pairs = zip(KINDS, largest_K, strict=True)
                largest = {kind: value for kind, value in pairs if self._took(worker, kind, giver)}
                if largest:
                    found.append(self._overwritten(worker, giver, largest))
        return tuple(found)

    def _took(self, worker: int, kind: str, giver: int) -> bool:
        return self._giver.get(kind) == giver and any(self.differ_WI[kind][worker])

    def _overwritten(self, worker: int, giver: int, largest: dict[str, float]) -> Overwritten:
        """
        :param largest: The largest difference, of all kinds that this worker took from the giver.
        """
        names = {
            kind: [
                name for name, differs in zip(self._inventory.names(kind), differ_WI[worker], strict=True) if differs
            ]
            for kind, differ_WI in self.differ_WI.items()
            if kind in largest
        }
        return Overwritten(
            worker=worker,
            by=giver,
            parameters=len(names.get("parameters", ())),
            buffers=len(names.get("buffers", ())),
            states=len(names.get("optimizers", ())),
            largest=largest.get("parameters", 0.0),
            largest_in_buffers=largest.get("buffers", 0.0),
            names=tuple(islice(chain.from_iterable(names.values()), NAMES_KEPT)),
        )


def givers(print_KW: Sequence[Sequence[int]]) -> tuple[int, list[int]]:
    """
    The worker whom the others take all kinds from, and the one they take each kind from.

    The first is the lowest one that is in the largest camp in as many kinds as possible. Where a kind has a largest
    camp without it, that kind comes from the lowest of the camp.
    """
    camps = [_largest_camp(print_W) for print_W in print_KW]
    workers = range(len(print_KW[0]))
    source = max(workers, key=lambda worker: (sum(worker in camp for camp in camps), -worker))
    return source, [source if not camp or source in camp else min(camp) for camp in camps]


def _largest_camp(print_W: Sequence[int]) -> frozenset[int]:
    """Nobody, where two camps are as large as each other."""
    (first, size), *others = Counter(print_W).most_common(2)
    if others and others[0][1] == size:
        return frozenset()
    return frozenset(worker for worker, found in enumerate(print_W) if found == first)


MOST_SAID = 4


@dataclass(frozen=True, slots=True)
class Overwritten:
    """What one worker took from another."""

    worker: int
    by: int
    parameters: int = 0
    buffers: int = 0
    states: int = 0
    """Parameters of which the optimizer's memory was replaced, and optimizers of which the settings were."""

    largest: float = 0.0
    """The largest absolute difference in parameters; infinite where a value was not finite on one of the two."""

    largest_in_buffers: float = 0.0
    """Apart: some of them count, and differ by whole numbers."""

    names: tuple[str, ...] = ()
    """The first of what differed."""


@dataclass(frozen=True, slots=True)
class ResyncResult:
    """Workers are numbered as in the group."""

    source: int
    parameters: int
    """As many as were compared."""

    buffers: int
    overwritten: tuple[Overwritten, ...] = ()
    left_alone: tuple[str, ...] = ()
    """Reasons why something was not compared."""

    def sentence(self, ranks: Sequence[int]) -> str:
        """
        :param ranks: The launcher's numbers of the workers.
        """
        said = [self._about(each, ranks) for each in self.overwritten[:MOST_SAID]]
        more = len({each.worker for each in self.overwritten} - {each.worker for each in self.overwritten[:MOST_SAID]})
        said += [f"{more} more overwritten"] if more else []
        return ". ".join([*(said or ["all replicas are equal"]), *self.left_alone])

    def _about(self, each: Overwritten, ranks: Sequence[int]) -> str:
        parts = (
            _tensors(each.parameters, self.parameters, "parameters", each.largest),
            _tensors(each.buffers, self.buffers, "buffers", each.largest_in_buffers),
            "optimizer state" if each.states else "",
        )
        return f"rank {ranks[each.worker]} was overwritten by rank {ranks[each.by]}: {'; '.join(filter(None, parts))}"


def _tensors(count: int, total: int, kind: str, largest: float) -> str:
    apart = f"largest difference {largest:.1e}" if math.isfinite(largest) else "some values were not finite"
    return f"{count} of {total} {kind}, {apart}" if count else ""
