"""Where the workers meet to decide: collectives on training's own group, which wait and fail as all-reduce does.

Only the first worker decides, and all take its word. Each deciding alone from the same numbers would be quicker, but
processors that round differently would then disagree at the limit, and some would take a step that others skip.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from unisono.exchange.guard_messages import RankReport, RoundResult, rank_report, round_result

FAILED = -1.0
"""In place of a length: the first worker could not decide."""


class GuardCollectives:
    """:param group: None where there is one worker, who meets nobody."""

    def __init__(self, group: Any, device: torch.device) -> None:
        self.group = group
        self.rank, self.world = (0, 1) if group is None else (dist.get_rank(group), dist.get_world_size(group))
        self._first = 0 if group is None else dist.get_global_rank(group, 0)
        self.by_nccl = group is not None and device.type == "cuda" and "nccl" in str(dist.get_backend(group)).lower()
        self._wire = device if self.by_nccl else torch.device("cpu")

    @property
    def is_first(self) -> bool:
        return self.rank == 0

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
        header = self._broadcast([FAILED, *header[1:]] if error is not None else header)
        if error is not None:
            raise error
        if header[0] == FAILED:
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
        sent = torch.tensor(numbers, dtype=torch.float64, device=self._wire)
        rows = [torch.empty_like(sent) for _ in range(self.world)] if self.is_first else None
        dist.gather(sent, rows, dst=self._first, group=self.group)
        return [] if rows is None else torch.stack(rows).tolist()

    def _all(self, numbers: list[float]) -> list[list[float]]:
        if self.group is None:
            return [numbers]
        sent = torch.tensor(numbers, dtype=torch.float64, device=self._wire)
        rows = [torch.empty_like(sent) for _ in range(self.world)]
        dist.all_gather(rows, sent, group=self.group)
        return torch.stack(rows).tolist()

    def _broadcast(self, numbers: list[float]) -> list[float]:
        sent = torch.tensor(numbers, dtype=torch.float64, device=self._wire)
        dist.broadcast(sent, self._first, group=self.group)
        return sent.tolist()

    def _broadcast_bytes(self, content: bytes, length: int) -> bytes:
        sent = torch.zeros(length, dtype=torch.uint8, device=self._wire)
        if self.is_first:
            sent.copy_(torch.frombuffer(bytearray(content), dtype=torch.uint8))
        dist.broadcast(sent, self._first, group=self.group)
        return bytes(sent.cpu().tolist())
