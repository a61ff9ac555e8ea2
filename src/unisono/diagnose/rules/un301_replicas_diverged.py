"""UN301: weights that should be equal and are not."""

from __future__ import annotations

from unisono.diagnose.rules.shared.local_training import EXCUSE, LocalTraining
from unisono.diagnose.rules.shared.model_parts import Parts
from unisono.diagnose.rules.shared.rule import STATISTICAL, Number, Rule
from unisono.diagnose.rules.shared.run_state import RunState, minority, opposed, sharing
from unisono.records import AttemptRecord, ReplicasRecord, StepRecord

ROUNDING = 1e-5
"""Relative distance below which weights differ by rounding rather than by an update."""


class ReplicasDiverged(Rule):
    """The workers' weights are no longer equal"""

    code, slug, severity = "UN301", "replicas-diverged", "critical"
    pattern = "Precision Drift; Gradual Divergence"
    source = (
        "direction consistency manual, section 3; loss dispersion manual, section 4; huggingface/nanotron#242; "
        "pytorch/pytorch#112152"
    )
    meaning = (
        "After the same step the workers hold different weights, although data-parallel training promises equal ones. "
        "Each computes gradients for its own model, and the average fits none of them; a checkpoint holds only one of "
        "the models. Found by comparing fingerprints of the weights bit by bit; with three or more workers the "
        "majority says who is off."
    )
    correction = (
        "The manuals put this down to rounding in BF16 or FP16. Rounding alone does not make replicas drift: "
        "all-reduce hands every worker the same bits, and equal optimizers turn them into equal updates. Something "
        "else differs on the worker named. Broadcasting weights repairs the damage, but does not stop it."
    )
    needs = "one comparison of weights after a step of a wrapper that promises equal weights"
    causes = {
        "stale-or-missed-update": "a worker missed an update, or its weights were changed outside the optimizer",
        "precision-drift": "the same update is computed with different rounding on different devices or versions",
        "never-synchronised": "the workers train without synchronising, each its own model",
    }
    remedies = {
        "stale-or-missed-update": (
            "look for code that changes weights on some ranks only (loading, averaging, clipping or resetting weights "
            "inside `if rank == ...`) and run it on every rank",
            "to repair the run: on every rank, for tensor in model.state_dict().values(): "
            "dist.broadcast(tensor, src=0), and load the optimizer's state from one checkpoint",
        ),
        "precision-drift": (
            "use the same device model, driver and torch version on every rank, and "
            "torch.use_deterministic_algorithms(True); accumulate gradients in FP32, where rounding matters least",
            "as a stopgap, make replicas equal every few hundred steps: unisono.guard(resync=500), or on every rank "
            "for tensor in model.state_dict().values(): dist.broadcast(tensor, src=0)",
        ),
        "never-synchronised": (
            "wrap the model in DistributedDataParallel and train through the wrapper: loss_fn(model(batch)).backward() "
            "with model = DistributedDataParallel(model), not model.module",
        ),
    }
    explains = (*STATISTICAL, "UN304")

    def __init__(self) -> None:
        super().__init__()
        self._parts = Parts()
        self._local = LocalTraining()
        self._first_sight = ""
        self._measured = False

    def on_attempt(self, record: AttemptRecord, run_state: RunState) -> None:
        self._first_sight, self._measured = "", False
        self._parts.forget()
        self._local.forget()

    def on_step(self, record: StepRecord, run_state: RunState) -> None:
        if self._local.see(record):
            self.excuse(EXCUSE)
        if "weights" not in record.audits or self._local.recognised or run_state.local_training:
            return
        if record.weights_W:
            self._tell(record, run_state)
        elif self._parts.agree(record):
            self.passed(record.step)

    def _tell(self, record: StepRecord, run_state: RunState) -> None:
        good = self._parts.differ(record)
        evidence: dict[str, Number] = {}
        if not self._first_sight:
            before = "" if good is None else f", equal up to step {good}"
            self._first_sight = f"weights after step {record.step}: {opposed(record.weights_W, run_state)}{before}"
            evidence = {} if good is None else {"last_equal_step": good}
        self.report(
            record.step,
            run_state,
            why=self._first_sight,
            causes=_first_guess(record),
            held_W=record.weights_W,
            evidence=evidence,
            good=good,
        )

    def on_replicas(self, record: ReplicasRecord, run_state: RunState) -> None:
        if self.case is None or self._measured or not record.differing or self._local.recognised:
            return
        self._measured = True
        distance = max((far for far in record.distance_W if far is not None), default=None)
        parameters = ", ".join(record.parameters[:3]) + (", ..." if record.differing > 3 else "")
        evidence: dict[str, Number] = {"differing": record.differing, "compared": record.compared}
        self.report(
            record.step,
            run_state,
            why=f"{record.differing} of {record.compared} compared parameters differ ({parameters})"
            + ("" if distance is None else f", by {distance:.1g} of their norm"),
            causes=_by_distance(record, distance),
            workers=minority(record.weights_W),
            evidence=evidence
            | {"parameters": parameters}
            | ({} if distance is None else {"distance": float(f"{distance:.3g}")}),
            about="replicas",
        )


def _first_guess(record: StepRecord) -> dict[str, float]:
    """Before the distance is known."""
    if len(record.weights_W) > 2 and not sharing(record.weights_W):
        return {"never-synchronised": 0.85}
    if record.weight_spread is not None and record.weight_spread < ROUNDING / 10:
        return {"precision-drift": 0.5, "stale-or-missed-update": 0.45}
    return {"stale-or-missed-update": 0.5, "precision-drift": 0.3}


def _by_distance(record: ReplicasRecord, distance: float | None) -> dict[str, float]:
    if distance is None:
        return {}
    return {"precision-drift": 0.8} if distance < ROUNDING else {"stale-or-missed-update": 0.8}
