"""Collectives of steering, guard and resync, on training's own group, which wait and fail as all-reduce does.

Only the first worker decides, and all follow. Each deciding alone from the same numbers would be quicker, but
processors that round differently would then disagree at the limit, and some would take a step that others skip.

W = workers, N = numbers of a vector, S = numbers of a worker's slice of it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from unisono.exchange.guard_messages import RankReport, RoundResult, rank_report, round_result

PIECE = 1 << 16
NO_WEIGHTS = math.inf
"""In place of weights: the first worker could not decide."""

NO_RESULT = -1.0
"""In place of a length: the first worker could not decide."""


class Collectives:
    """:param group: None where there is one worker only."""

    def __init__(self, group: Any, device: torch.device) -> None:
        self.group = group
        self.rank, self.world = (0, 1) if group is None else (dist.get_rank(group), dist.get_world_size(group))
        self._first = 0 if group is None else dist.get_global_rank(group, 0)
        self.by_nccl = group is not None and device.type == "cuda" and "nccl" in str(dist.get_backend(group)).lower()
        # Gloo knows some collectives for host memory only.
        self.wire = device if self.by_nccl else torch.device("cpu")

    @property
    def is_first(self) -> bool:
        return self.rank == 0

    def broadcast(self, numbers: Tensor) -> Tensor:
        """The first worker's, on every worker."""
        sent = numbers.to(self.wire)
        dist.broadcast(sent, self._first, group=self.group)
        return sent


@dataclass(slots=True)
class Slices:
    """This worker's slice of everybody's vector, on its way."""

    work: Any
    slice_WS: Tensor

    def arrived(self) -> Tensor:
        self.work.wait()
        return self.slice_WS


class SteeringCollectives(Collectives):
    def swap(self, vector_N: Tensor) -> Slices:
        """Begins to hand every worker its slice of this one's vector."""
        padding = -len(vector_N) % self.world
        sent = torch.nn.functional.pad(vector_N.to(self.wire), (0, padding))
        received = torch.empty_like(sent)
        work = dist.all_to_all_single(received, sent, group=self.group, async_op=True)
        return Slices(work, received.view(self.world, -1))

    def gram(self, slices: Sequence[Tensor], square: float | Tensor) -> tuple[Tensor, Tensor] | None:
        """The Gram matrix of everybody's vectors and their own squares, on the first worker; None elsewhere."""
        message = torch.zeros(self.world + 1, self.world, dtype=torch.float64, device=self.wire)
        for slice_WS in slices:
            for piece in slice_WS.split(PIECE, dim=1):
                # In float64, which neither autocast nor TF32 touch: backward may run under either.
                wide = piece.double()
                message[:-1] += wide @ wide.T
        message[-1, self.rank] = square
        dist.reduce(message, self._first, group=self.group)
        return (message[:-1].cpu(), message[-1].cpu()) if self.is_first else None

    def weights(self, decide: Callable[[], Sequence[float]]) -> list[float]:
        """What the first worker decides, on every worker. Where it cannot, all fail."""
        weight_W = torch.full((self.world,), NO_WEIGHTS, dtype=torch.float64)
        error: Exception | None = None
        if self.is_first:
            try:
                weight_W = torch.tensor(decide(), dtype=torch.float64)
            except Exception as raised:
                error = raised
        weight_W = self.broadcast(weight_W)
        if error is not None:
            raise error
        found: list[float] = weight_W.tolist()
        if NO_WEIGHTS in found:
            raise RuntimeError("The weighting failed on the first worker; its error is said there. No step was taken.")
        return found

    def add_up(self, buffer_N: Tensor, weight: float) -> Any:
        """Begins to sum everybody's weighted vector, in place."""
        if weight == 0:
            # Not multiplied: what is not finite stays so.
            buffer_N.zero_()
        elif self.by_nccl and buffer_N.is_floating_point():
            # Multiplies on the way, without a pass over memory of its own.
            scaled = dist._make_nccl_premul_sum(weight)  # type: ignore[attr-defined]
            return dist.all_reduce(buffer_N, op=scaled, group=self.group, async_op=True)
        else:
            buffer_N.mul_(weight)
        return dist.all_reduce(buffer_N, group=self.group, async_op=True)

    def put_together(self, buffer_N: Tensor, slice_S: Tensor) -> None:
        """Fills a vector with everybody's slices of it."""
        whole = torch.empty(self.world * len(slice_S), dtype=slice_S.dtype, device=self.wire)
        gather = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)  # its name from torch 2.13 on
        gather(whole, slice_S, group=self.group)
        buffer_N.copy_(whole[: len(buffer_N)])


class GuardCollectives(Collectives):
    def hold(self, report: RankReport, decide: Callable[[list[RankReport]], RoundResult]) -> RoundResult:
        reports = [rank_report(numbers) for numbers in self._gather(report.numbers())]
        return self._follow(lambda: decide(reports))

    def choose(self, mine: Sequence[int]) -> int | None:
        """The largest number that every worker has among its own."""
        length = int(max(count[0] for count in self._all([float(len(mine))])))
        rows = self._all([*map(float, mine), *[-1.0] * (length - len(mine))]) if length else [[]]
        common = set.intersection(*({int(number) for number in row if number >= 0} for row in rows))
        return max(common) if common else None

    def those_who(self, yes: bool) -> list[int]:
        """The workers who say so."""
        return [worker for worker, row in enumerate(self._all([float(yes)])) if row[0]]

    def first_with(self, number: int) -> int:
        """The first worker that says the same number."""
        return [int(row[0]) for row in self._all([float(number)])].index(number)

    def tell(self, facts: dict[str, Any] | None) -> dict[str, Any]:
        """What the first worker says, on every worker."""
        if self.group is None:
            return facts or {}
        text = json.dumps(facts).encode() if self.is_first else b""
        length = self._broadcast([float(len(text))])[0]
        heard: dict[str, Any] = json.loads(self._broadcast_bytes(text, int(length)))
        return heard

    def wait_for_all(self) -> None:
        """Until every worker has come here."""
        self._all([0.0])

    def _follow(self, decide: Callable[[], RoundResult]) -> RoundResult:
        """What the first worker decides, on every worker. Where it cannot, all fail."""
        if self.group is None:
            return decide()
        result, error = RoundResult(0, quiet=False), None
        if self.is_first:
            try:
                result = decide()
            except Exception as raised:
                error = raised
        header = result.numbers()
        header = self._broadcast([NO_RESULT, *header[1:]] if error is not None else header)
        if error is not None:
            raise error
        if header[0] == NO_RESULT:
            raise RuntimeError("The guard failed on the first worker; its error is said there. No step was taken.")
        return self.with_decision(header, result.decision)

    def with_decision(self, header: Sequence[float], decision: bytes) -> RoundResult:
        """:param decision: Known to the first worker, and sent where there is one."""
        length = int(header[0])
        if length and self.group is not None:
            decision = self._broadcast_bytes(decision, length)
        return round_result(header, decision if length else b"")

    def gather_on_device(self, numbers_N: Tensor) -> Tensor:
        """A row for each worker. Nobody waits."""
        if self.group is None:
            return numbers_N.unsqueeze(0)
        rows = [torch.empty_like(numbers_N) for _ in range(self.world)]
        dist.all_gather(rows, numbers_N, group=self.group)
        return torch.stack(rows)

    def _gather(self, numbers: list[float]) -> list[list[float]]:
        """Everybody's numbers, on the first worker; nobody's elsewhere."""
        if self.group is None:
            return [numbers]
        sent = torch.tensor(numbers, dtype=torch.float64, device=self.wire)
        rows = [torch.empty_like(sent) for _ in range(self.world)] if self.is_first else None
        dist.gather(sent, rows, dst=self._first, group=self.group)
        return [] if rows is None else torch.stack(rows).tolist()

    def _all(self, numbers: list[float]) -> list[list[float]]:
        if self.group is None:
            return [numbers]
        sent = torch.tensor(numbers, dtype=torch.float64, device=self.wire)
        rows = [torch.empty_like(sent) for _ in range(self.world)]
        dist.all_gather(rows, sent, group=self.group)
        return torch.stack(rows).tolist()

    def _broadcast(self, numbers: list[float]) -> list[float]:
        return self.broadcast(torch.tensor(numbers, dtype=torch.float64)).tolist()

    def _broadcast_bytes(self, content: bytes, length: int) -> bytes:
        sent = torch.zeros(length, dtype=torch.uint8)
        if self.is_first:
            sent.copy_(torch.frombuffer(bytearray(content), dtype=torch.uint8))
        return bytes(self.broadcast(sent).cpu().tolist())
