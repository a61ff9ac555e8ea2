"""Comparisons that take one part of the model at a time."""

from __future__ import annotations

from unisono.records import StepRecord


class Parts:
    """Which parts of the model were last seen equal, and when.

    One equal part does not clear a difference in another one: that takes a comparison of everything, or of all parts.
    """

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        self._whole_equal: int | None = None
        self._equal: dict[int, int] = {}
        self._count = 0
        self._since: set[int] = set()
        self._differing: set[int] = set()
        self.differed = False

    @property
    def partial(self) -> bool:
        """Some parts differ while others do not."""
        return bool(self._differing and self._since - self._differing)

    def differ(self, record: StepRecord) -> int | None:
        """The last step at which all that was compared now was equal."""
        known = [step for step in (self._whole_equal, self._last_equal(record)) if step is not None]
        self.differed = True
        if record.parts > 1:
            self._differing.add(record.part)
            self._since.discard(record.part)
        else:
            self._since.clear()
        return max(known, default=None)

    def _last_equal(self, record: StepRecord) -> int | None:
        """Of comparisons by parts."""
        if record.parts > 1:
            return self._equal.get(record.part)
        return min(self._equal.values()) if self._equal and len(self._equal) == self._count else None

    def agree(self, record: StepRecord) -> bool:
        """Whether nothing is known to differ any more."""
        if record.parts > 1:
            self._equal[record.part] = record.step
            self._count = record.parts
        else:
            self._whole_equal = record.step
        return not self.differed or self._agree_again(record)

    def _agree_again(self, record: StepRecord) -> bool:
        if record.parts > 1:
            self._since.add(record.part)
            self._differing.discard(record.part)
            if len(self._since) < record.parts:
                return False
        self._since.clear()
        self._differing.clear()
        self.differed = False
        return True
