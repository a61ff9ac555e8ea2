"""UN602: what the guard has done."""

from __future__ import annotations

from unisono.records import NoteRecord
from unisono.rules._rule import Rule
from unisono.rules._scene import Scene


class GuardActed(Rule):
    """The guard has acted"""

    code, slug, severity = "UN602", "guard-acted", "info"
    source = "gradient norm manual, sections 3 and 4"
    meaning = (
        "The guard skipped, clipped, reset, synchronised or rolled back, as it was asked to. Nothing needs to be done "
        "about a single act; many of them point to a fault that should be found."
    )
    needs = "a guard, which is off unless asked for"
    causes = {"guarded-step": "a step met a condition of the guard"}
    remedies = {
        "guarded-step": (
            "if the guard acts often, look for the cause among the other findings: `unisono diagnose RUN`",
        )
    }

    def __init__(self) -> None:
        super().__init__()
        self._acts = 0

    def on_note(self, record: NoteRecord, scene: Scene) -> None:
        if record.about != "acted":
            return
        self._acts += 1
        self.report(
            record.step,
            scene,
            why=record.text,
            causes={"guarded-step": 0.9},
            ranks=[rank for rank in record.ranks if rank is not None],
            evidence={"acts": self._acts},
        )
