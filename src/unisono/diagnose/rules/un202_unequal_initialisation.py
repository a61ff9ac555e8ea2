"""UN202: workers that start from different weights."""

from __future__ import annotations

from unisono.diagnose.rules.shared.rule import STATISTICAL, Rule
from unisono.diagnose.rules.shared.run_state import RunState, disagree, each, opposed
from unisono.records import FactsRecord


class UnequalInitialisation(Rule):
    """The workers start from different weights"""

    code, slug, severity = "UN202", "unequal-initialisation", "critical"
    pattern = "Seed Mismatch"
    source = "direction consistency manual, section 3; NCAR/miles-credit#153"
    meaning = (
        "The weights differed between workers before the first backward pass. All-reduce averages gradients, not "
        "weights, so they never become equal again: every worker trains a model of its own with gradients that belong "
        "to others. Found by comparing fingerprints of all weights before the first step."
    )
    correction = (
        "Equal seeds are not needed for equal weights: DDP copies rank 0's weights to all workers when it wraps the "
        "model. Where weights differ all the same, they were changed after that."
    )
    needs = "the first backward pass of every worker"
    causes = {
        "changed-after-wrapping": "weights were initialised or loaded after wrapping, differently on some workers",
        "init-sync-off": "DDP was told not to copy rank 0's weights (init_sync=False)",
    }
    remedies = {
        "changed-after-wrapping": (
            "initialise and load the model before DistributedDataParallel(model); or, after loading, on every rank: "
            "for tensor in model.state_dict().values(): dist.broadcast(tensor, src=0)",
        ),
        "init-sync-off": ("remove init_sync=False from DistributedDataParallel",),
    }
    explains = (*STATISTICAL, "UN301", "UN303", "UN304")
    cleared_after = 1

    def on_facts(self, record: FactsRecord, run_state: RunState) -> None:
        if record.topic != "initial":
            return
        weights_W = each(record, "weights", run_state.world)
        if not disagree(weights_W):
            self.passed(record.step)
            return
        first: dict[str, int] = {}
        twins_W = [None if one is None else first.setdefault(one, worker) for worker, one in enumerate(weights_W)]
        self.report(
            record.step,
            run_state,
            why=f"weights before the first step: {opposed(twins_W, run_state)}",
            causes={"changed-after-wrapping": 0.9, "init-sync-off": 0.3},
            held_W=weights_W,
        )
