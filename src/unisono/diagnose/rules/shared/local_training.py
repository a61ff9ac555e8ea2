"""Local SGD: workers that train on their own for a while and then average their weights, on purpose."""

from __future__ import annotations

from unisono.diagnose.rules.shared.model_parts import Parts
from unisono.records import StepRecord

EXCUSE = (
    "the workers take steps of their own and their weights become equal again without a synchronised backward pass: "
    "this is local SGD, and differences in between belong to it"
)


def is_unsynchronised(record: StepRecord) -> bool:
    """The optimizer stepped although no worker's backward passes were synchronised."""
    return 0 in record.syncs_W and not any(record.syncs_W) and not record.skipped


class LocalTraining:
    """Recognises local SGD that is written by hand: weights that are equal again although nothing was synchronised."""

    def __init__(self) -> None:
        self._parts = Parts()
        self.recognised = False

    def forget(self) -> None:
        self._parts.forget()
        self.recognised = False

    def see(self, record: StepRecord) -> bool:
        """Whether it was recognised at this step."""
        if self._parts.differed and not self.recognised and "start" in record.audits and not record.start_W:
            self.recognised = True
            return True
        if not is_unsynchronised(record):
            if record.heard and not record.skipped and self._parts.differed:
                self._parts.forget()
            return False
        if self.recognised or "weights" not in record.audits:
            return False
        if record.weights_W:
            self._parts.differ(record)
            return False
        had_differed = self._parts.differed
        self.recognised = self._parts.agree(record) and had_differed
        return self.recognised
