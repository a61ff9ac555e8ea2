"""UN302: optimizers that step on gradients that are not the same on all workers."""

from __future__ import annotations

from unisono.diagnose.rules.shared.local_training import EXCUSE, LocalTraining, is_unsynchronised
from unisono.diagnose.rules.shared.model_parts import Parts
from unisono.diagnose.rules.shared.rule import STATISTICAL, Rule
from unisono.diagnose.rules.shared.run_state import RunState, minority, opposed, sharing
from unisono.records import AttemptRecord, FactsRecord, ReplicasRecord, StepRecord, Twins

ENOUGH_STEPS = 2
REPLACED = {"parameters-replaced": 0.95}
MOST = 0.9
"""Share of the parameters below which only some of them are said to differ."""


class GradientsNotSynchronised(Rule):
    """The workers step on different gradients"""

    code, slug, severity = "UN302", "gradients-not-synchronised", "critical"
    source = (
        "karpathy/build-nanogpt#30; modelscope/FunASR#3472; NVIDIA/Megatron-LM#1685; NCAR/miles-credit#153; "
        "pytorch/pytorch#69031, #104336, #12603"
    )
    meaning = (
        "When the optimizer steps, all workers must hold the same averaged gradient. Here they do not: an all-reduce "
        "did not happen, came before the last backward pass, left out some parameters, or a worker changed its "
        "gradient afterwards. Every worker then trains a model of its own, and nothing crashes. Found by counting "
        "synchronised backward passes and comparing fingerprints of the gradients, after all-reduce and in the "
        "optimizer."
    )
    needs = "one comparison of gradients in a step of a wrapper that synchronises them"
    causes = {
        "no-sync-leak": "the last backward pass before the optimizer ran without synchronisation (no_sync)",
        "wrapper-stripped": "the DDP wrapper was thrown away, and the model inside it trains on alone",
        "parameters-replaced": "the parameters were moved, cast or replaced after wrapping; DDP's hooks were lost",
        "forward-through-module": "the forward pass goes past DDP, so that its backward is not synchronised",
        "parameter-outside-forward": "some parameters are used outside the forward pass of the wrapped model",
        "clipping-on-some-ranks": "some workers change their gradient between backward() and optimizer.step()",
        "transfer-corrupted": "the all-reduce gave some workers other numbers than the rest",
    }
    remedies = {
        "no-sync-leak": (
            "run forward and backward of the last micro-batch before optimizer.step() outside model.no_sync(): with n "
            "micro-batches per step, use no_sync() only if (index + 1) % n != 0",
            "DDP decides in forward: set model.require_backward_grad_sync, or enter no_sync(), before calling "
            "model(batch), not between forward and backward",
        ),
        "wrapper-stripped": (
            "wrap the model once, before the first step, keep the object that DistributedDataParallel(model) returned, "
            "and train through it: do not replace it by its .module; for saving use model.module.state_dict()",
        ),
        "parameters-replaced": (
            "call .to(), .double(), .float(), .cpu() or .cuda() before DistributedDataParallel(model), never on the "
            "wrapped model; where it has to be done later, wrap and build the optimizer anew after it",
        ),
        "forward-through-module": (
            "call the wrapper, model(batch), for the forward pass that is trained, not model.module(batch) or the "
            "module that was wrapped",
        ),
        "parameter-outside-forward": (
            "compute everything that is trained inside the wrapped model's forward(), return it, and call backward() "
            "once on the summed loss; do not call layers through model.module",
        ),
        "clipping-on-some-ranks": (
            "call clip_grad_norm_, and everything else that changes gradients, on every rank with the same arguments; "
            "keep only the printing inside `if rank == 0`",
        ),
        "transfer-corrupted": (
            "run with NCCL_DEBUG=WARN and exchange the host or the network card of the rank named",
            "train without a communication hook of your own, to rule it out",
        ),
    }
    explains = (*STATISTICAL, "UN301", "UN303", "UN304")

    def __init__(self) -> None:
        super().__init__()
        self._parts = Parts()
        self._local = LocalTraining()
        self._forget()

    def _forget(self) -> None:
        self._unsynchronised = 0
        self._first_unsynchronised = 0
        self._last_synchronised: int | None = None
        self._may_be_partial = False

    def on_attempt(self, record: AttemptRecord, run_state: RunState) -> None:
        self._parts.forget()
        self._local.forget()
        self._forget()

    def on_facts(self, record: FactsRecord, run_state: RunState) -> None:
        if self.case is not None and run_state.replaced:
            self.case.causes = dict(REPLACED)
        if self._local.recognised and run_state.wrapped_again:
            # Their weights became equal when the model was wrapped, not by averaging.
            self._local.forget()
            if self.case is not None:
                self.case.whys.clear()

    def on_step(self, record: StepRecord, run_state: RunState) -> None:
        if not run_state.wrapped_again and self._local.see(record):
            self.excuse(EXCUSE)
        if record.skipped or self._local.recognised or run_state.local_training:
            return
        if is_unsynchronised(record) and not _equal_all_the_same(record):
            self._look_at_unsynchronised(record, run_state)
            return
        if not record.heard:
            return
        self._unsynchronised = 0
        self._last_synchronised = record.step
        if record.reduced_W or record.used_W:
            self._tell_different(record, run_state)
        elif ("reduced" in record.audits or "used" in record.audits) and self._parts.agree(record):
            self.passed(record.step)

    def _look_at_unsynchronised(self, record: StepRecord, run_state: RunState) -> None:
        if not self._unsynchronised:
            self._first_unsynchronised = record.step
        self._unsynchronised += 1
        if self._unsynchronised < ENOUGH_STEPS and not record.used_W:
            return
        count = self._unsynchronised
        self.report(
            record.step,
            run_state,
            why=f"the optimizer stepped{f' {count} times in a row' if count > 1 else ''} although no backward pass was "
            "synchronised",
            causes=_why_unsynchronised(run_state),
            evidence={"unsynchronised_steps": count},
            since=self._first_unsynchronised,
            good=self._last_synchronised,
            about="syncs",
        )

    def _tell_different(self, record: StepRecord, run_state: RunState) -> None:
        good = self._parts.differ(record)
        changed_later = not record.reduced_W and "reduced" in record.audits
        twins_W = record.reduced_W or record.used_W
        when = "at the end of backward" if record.reduced_W else "when the optimizer took them"
        when += ", though all-reduce had made them equal" if changed_later else ""
        causes = REPLACED if run_state.replaced else self._causes(record, twins_W)
        self._may_be_partial = "forward-through-module" in causes
        self.report(
            record.step,
            run_state,
            why=f"gradients differ {when}: {opposed(twins_W, run_state)}",
            causes=causes,
            held_W=twins_W,
            good=good,
            about="gradients",
        )

    def _causes(self, record: StepRecord, twins_W: Twins) -> dict[str, float]:
        one_against_all = bool(minority(twins_W))
        if _held_back(record) and not one_against_all:
            return {"no-sync-leak": 0.9}
        if not record.reduced_W and ("reduced" in record.audits or one_against_all):
            return {"clipping-on-some-ranks": 0.9 if one_against_all else 0.7}
        if one_against_all:
            return {"transfer-corrupted": 0.6, "parameter-outside-forward": 0.3}
        if self._parts.partial:
            return {"parameter-outside-forward": 0.9}
        return {"forward-through-module": 0.8, "parameter-outside-forward": 0.4}

    def on_replicas(self, record: ReplicasRecord, run_state: RunState) -> None:
        outside = record.differing < MOST * record.compared and self._may_be_partial and not self._unsynchronised
        if self.case is None or not record.differing or not outside or sharing(record.weights_W):
            return
        parameters = ", ".join(record.parameters[:5]) + (", ..." if record.differing > 5 else "")
        self.report(
            record.step,
            run_state,
            why=f"only {record.differing} of {record.compared} parameters differ: {parameters}",
            causes={"parameter-outside-forward": 0.95},
            evidence={"parameters": parameters, "differing": record.differing, "compared": record.compared},
            about="parameters",
        )


def _held_back(record: StepRecord) -> bool:
    """Some backward passes of the step were not synchronised."""
    known = max(len(record.backwards_W), len(record.syncs_W))
    backwards_W, syncs_W = record.backwards_W or (1,) * known, record.syncs_W or (1,) * known
    pairs = zip(backwards_W, syncs_W, strict=True)
    return any(backwards > syncs for backwards, syncs in pairs if backwards is not None and syncs is not None)


def _equal_all_the_same(record: StepRecord) -> bool:
    """Averaged by other means than DDP's."""
    return "used" in record.audits and not record.used_W


def _why_unsynchronised(run_state: RunState) -> dict[str, float]:
    if run_state.replaced:
        return REPLACED
    if run_state.fact("model", "wrapper") == "gone" or run_state.wrapped_again:
        return {"wrapper-stripped": 0.95}
    return {"no-sync-leak": 0.9, "forward-through-module": 0.3}
