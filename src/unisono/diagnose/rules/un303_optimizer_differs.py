"""UN303: optimizers that turn equal gradients into different updates."""

from __future__ import annotations

from unisono.diagnose.rules.shared.local_training import is_unsynchronised
from unisono.diagnose.rules.shared.model_parts import Parts
from unisono.diagnose.rules.shared.rule import STATISTICAL, Rule
from unisono.diagnose.rules.shared.run_state import RunState, disagree, opposed, told
from unisono.records import AttemptRecord, FactsRecord, StepRecord

FACTS = {
    "class": "optimizer-class-differs",
    "numbers": "hyper-parameter-differs",
    "groups": "hyper-parameter-differs",
    "lr": "learning-rate-differs",
}


class OptimizerDiffers(Rule):
    """The workers' optimizers are not the same"""

    code, slug, severity = "UN303", "optimizer-differs", "critical"
    source = "rwth-i6/returnn#1493; silent inconsistency paper (arXiv 2602.14462)"
    meaning = (
        "All workers get the same gradient, but their optimizers make different updates of it: another learning rate, "
        "another hyper-parameter, or another memory (momentum) of the past. Their weights part at the next step and "
        "stay apart. Found by comparing the numbers of the optimizers' groups and fingerprints of their state."
    )
    needs = "one heard step with an optimizer"
    causes = {
        "learning-rate-differs": "the learning rate is not the same: a schedule or its input differs between workers",
        "hyper-parameter-differs": "betas, weight decay or other numbers of the optimizer are not the same",
        "optimizer-class-differs": "the workers use different optimizers",
        "state-differs": "the optimizer's state is not the same: it was loaded or reset on some workers only",
    }
    remedies = {
        "learning-rate-differs": (
            "call scheduler.step() on every rank at the same steps, with the same argument: broadcast a metric that "
            "one rank measured, dist.broadcast(score, src=0), before scheduler.step(score.item())",
            "do not compute the learning rate from the rank or from a local loss",
        ),
        "hyper-parameter-differs": ("build the optimizer with the same arguments and groups on every rank",),
        "optimizer-class-differs": ("build the same optimizer on every rank",),
        "state-differs": (
            "call optimizer.load_state_dict(checkpoint) on every rank, not only on rank 0, and clear or reset the "
            "state on all ranks or none",
        ),
    }
    explains = (*STATISTICAL, "UN301", "UN304")

    def __init__(self) -> None:
        super().__init__()
        self._parts = Parts()
        self._by_facts = self._excused = False

    def on_attempt(self, record: AttemptRecord, run_state: RunState) -> None:
        self._parts.forget()
        self._by_facts = self._excused = False

    def on_facts(self, record: FactsRecord, run_state: RunState) -> None:
        if record.topic != "optimizer":
            return
        self._by_facts = False
        for name, cause in FACTS.items():
            values_W = record.differ.get(name, ())
            if disagree(values_W):
                self._by_facts = self._by_facts or name == "class"
                self.report(
                    record.step,
                    run_state,
                    why=f"the optimizer's {name} {'are' if name == 'numbers' else 'is'} {told(values_W, run_state)}",
                    causes={cause: 0.95},
                    held_W=values_W,
                    about=name,
                )

    def on_step(self, record: StepRecord, run_state: RunState) -> None:
        if not record.heard or record.skipped:
            return
        if disagree(record.lr_W):
            self._tell_rate(record, run_state)
        elif disagree(record.settings_W):
            self._tell_settings(record, run_state)
        elif "state" not in record.audits:
            self._pass(record)
        elif record.state_W:
            self._look_at_state(record, run_state)
        elif self._parts.agree(record):
            # State that is equal while weights or gradients are not will follow them: no fault of the optimizer's.
            self._excused = bool(record.weights_W or record.reduced_W or record.used_W)
            self._pass(record)

    def _pass(self, record: StepRecord) -> None:
        known = record.lr is not None or "state" in record.audits
        if known and not self._by_facts and (self._excused or not self._parts.differed):
            self.passed(record.step)

    def _tell_rate(self, record: StepRecord, run_state: RunState) -> None:
        told_W = [None if rate is None else f"{rate:.6g}" for rate in record.lr_W]
        self.report(
            record.step,
            run_state,
            why=f"the learning rate at step {record.step} is {told(told_W, run_state)}",
            causes={"learning-rate-differs": 0.95},
            held_W=record.lr_W,
            about="lr",
        )

    def _tell_settings(self, record: StepRecord, run_state: RunState) -> None:
        self.report(
            record.step,
            run_state,
            why=f"the optimizer's numbers at step {record.step}: {opposed(record.settings_W, run_state)}",
            causes={"hyper-parameter-differs": 0.95},
            held_W=record.settings_W,
            about="settings",
        )

    def _look_at_state(self, record: StepRecord, run_state: RunState) -> None:
        if record.reduced_W or record.used_W or is_unsynchronised(record):
            self._excused = True
        good = self._parts.differ(record)
        if self._excused or run_state.fact("optimizer", "sharded state") == "yes":
            return
        self.report(
            record.step,
            run_state,
            why=f"the optimizer's state after step {record.step}, with equal gradients: "
            f"{opposed(record.state_W, run_state)}",
            causes={"state-differs": 0.85},
            held_W=record.state_W,
            good=good,
            about="state",
        )
