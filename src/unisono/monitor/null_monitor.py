"""What `attach` returns where there is nothing to do: it accepts every call and does nothing."""

from __future__ import annotations

from typing import Any


class NullMonitor:
    run_dir = None
    closed = True

    @property
    def findings(self) -> list[Any]:
        return []

    @property
    def decisions(self) -> list[Any]:
        return []

    def restore(self) -> None:
        """Nothing was kept."""

    def record_loss(self, loss: Any) -> Any:
        return loss

    def step(self) -> None:
        """Nothing listens."""

    def close(self) -> None:
        """Nothing to close."""

    def __enter__(self) -> NullMonitor:
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing to close."""
