"""What the guard has decided so far, with a hash that is the same on every worker as long as the list is."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from hashlib import blake2b

from unisono.act.guard.policy import Decision
from unisono.records import DecisionRecord

HASH_BYTES = 6
"""A float64 holds such a number exactly."""

KEPT = 1_000


class DecisionLog:
    def __init__(self, attempt: int) -> None:
        self.decisions: deque[DecisionRecord] = deque(maxlen=KEPT)
        self.chain = 0
        self._attempt = attempt

    def enter(self, decision: Decision, sent: bytes) -> DecisionRecord:
        """:param sent: The decision as every worker has received it."""
        link = blake2b(sent, digest_size=HASH_BYTES, key=self.chain.to_bytes(HASH_BYTES, "big")).digest()
        self.chain = int.from_bytes(link, "big")
        back = "roll-back" in decision.actions
        record = DecisionRecord(
            attempt=self._attempt,
            step=decision.step,
            time=decision.time,
            id=f"{self._attempt}-{decision.step}-{decision.number}",
            action=", ".join(decision.actions),
            reason=decision.reason,
            row=decision.row,
            ranks=tuple(decision.ranks),
            evidence=dict(decision.evidence),
            dry=decision.dry,
            to_step=int(decision.argument) if back and decision.argument is not None else None,
            digest=link.hex(),
        )
        self.decisions.append(record)
        return record

    def add_outcome(self, record: DecisionRecord, outcome: str, ranks: Sequence[int]) -> DecisionRecord:
        """Known when the action is over."""
        told = replace(record, outcome=outcome, ranks=tuple(ranks) or record.ranks)
        self.decisions[self.decisions.index(record)] = told
        return told

    def strike(self, record: DecisionRecord) -> None:
        """It came to nothing, on every worker."""
        self.decisions.remove(record)
