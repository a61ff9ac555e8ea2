"""UN601: a worker whose gradient steering keeps leaving out."""

from __future__ import annotations

from unisono.records import NoteRecord
from unisono.rules._rule import Rule
from unisono.rules._scene import Scene


class WorkerRejected(Rule):
    """The agreement filter keeps rejecting a worker"""

    code, slug, severity = "UN601", "worker-rejected", "warning"
    source = "gradient agreement filtering (arXiv 2412.18052), failure signatures"
    meaning = (
        "Steering by agreement keeps leaving out the gradient of the workers named, or finds no two workers that "
        "agree. Their computation is wasted, and what they would have taught the model is lost."
    )
    needs = "steering by a weighting, which is off unless asked for"
    causes = {
        "data-conflicts": "that worker's data differs from the others' (labels, domain, corrupted part)",
        "distance-too-strict": "the largest distance allowed is too small for the noise of these batches",
    }
    remedies = {
        "data-conflicts": ("compare that rank's samples and labels with the others': `unisono batches RUN`",),
        "distance-too-strict": ("raise max_distance of AgreementFilter, or use larger batches",),
    }

    def on_note(self, record: NoteRecord, scene: Scene) -> None:
        if record.about == "rejected":
            self.report(
                record.step,
                scene,
                why=record.text,
                causes={"data-conflicts": 0.5, "distance-too-strict": 0.5},
                ranks=[rank for rank in record.ranks if rank is not None],
            )
