"""UN404: NaN or infinity, and who had it first."""

from __future__ import annotations

from collections import deque

from unisono.diagnose.rules.shared.rule import STATISTICAL, Rule
from unisono.diagnose.rules.shared.run_state import RunState, spoken
from unisono.records import AttemptRecord, DecisionRecord, StepRecord, are_left_out
from unisono.records.decision_text import is_skip, ranks_of

AHEAD = 1_000
"""Decisions of the guard are written down at once, steps later: so many of them may be ahead."""

STANDS_STILL = 20
"""Steps in a row that were kept from training: nothing is learnt any more."""

OF_ALL = {"learning-rate": 0.7, "overflow": 0.5}
OF_ONE = {"bad-sample": 0.7, "overflow": 0.4, "faulty-device": 0.3}


class NonFinite(Rule):
    """Gradients were not finite: NaN or infinity"""

    code, slug, severity = "UN404", "non-finite", "critical"
    pattern = "Gradient Explosion (NaN)"
    source = "gradient norm manual, section 3; ai2cm/ace#850; facebookresearch/habitat-lab#2226; pytorch/pytorch#124348"
    meaning = (
        "A gradient was not finite, and the optimizer stepped all the same. All-reduce spreads one worker's NaN to "
        "all of them, and then to the weights. The finding names the workers that had it first, before it was spread. "
        "Steps that a loss scaler or steering skips are not counted; a single step after which all is finite again is "
        "a warning, and so are steps at which steering left out the workers in question, or which the guard skipped: "
        "nothing was spread. It is critical if the guard has to skip 20 steps in a row, because nothing is learnt then."
    )
    needs = "one recorded step"
    causes = {
        "bad-sample": "a sample or label in that worker's batch gives NaN (empty target, division by zero, log of 0)",
        "learning-rate": "the weights have grown too far: the learning rate is too high, or warm-up too short",
        "overflow": "numbers too large for the precision (FP16 without a loss scaler, BF16 sums)",
        "faulty-device": "the worker's device computes wrong numbers",
    }
    remedies = {
        "bad-sample": (
            "find the batch with `unisono batches RUN`, and guard the computation that gave NaN: add a small number to "
            "divisors, clamp arguments of log and sqrt, leave out empty targets",
        ),
        "learning-rate": ("lower the learning rate or lengthen the warm-up, and clip with clip_grad_norm_",),
        "overflow": ("use BF16, or FP16 with torch.amp.GradScaler, and compute losses and norms in FP32",),
        "faulty-device": ("run the same batch on another device; if it is finite there, exchange the device",),
    }
    explains = (*STATISTICAL, "UN301", "UN302", "UN303", "UN304", "UN305")

    def __init__(self) -> None:
        super().__init__()
        self._length = self._longest = self._left_out = 0
        self._skipped_by_guard: deque[int] = deque(maxlen=AHEAD)
        self._kept_away = 0
        """Steps in a row that the guard skipped."""

    def on_attempt(self, record: AttemptRecord, run_state: RunState) -> None:
        self._length = self._kept_away = 0
        self._skipped_by_guard.clear()

    def on_decision(self, record: DecisionRecord, run_state: RunState) -> None:
        if is_skip(record):
            self._skipped_by_guard.append(record.step)
        elif record.action == "halt" and not record.dry and "not finite" in record.reason:
            # Of such a step nothing else is heard any more.
            named = ranks_of(record)
            self.report(record.step, run_state, why=record.reason, causes=OF_ONE if named else OF_ALL, ranks=named)

    def on_step(self, record: StepRecord, run_state: RunState) -> None:
        guarded = record.step in self._skipped_by_guard
        if not record.finite_W or (record.skipped and not guarded):
            return
        bad = [worker for worker, finite in enumerate(record.finite_W) if finite is False]
        self._kept_away = self._kept_away + 1 if bad and guarded else 0
        if bad and guarded:
            self._tell_kept_away(record, run_state, bad, "the guard skipped the step, so that nobody took it")
        elif bad and are_left_out(record, bad):
            self._tell_kept_away(record, run_state, bad, "steering left it out, so that it reached nobody else")
        elif bad:
            self._length += 1
            self._longest = max(self._longest, self._length)
            self._tell(record, run_state, bad)
        elif True in record.finite_W:
            self._length = 0
            self._forgive()
            self.passed(record.step)

    def _forgive(self) -> None:
        if self.case is not None and self._longest == 1:
            self.case.severity = "warning"

    def _tell(self, record: StepRecord, run_state: RunState, bad: list[int]) -> None:
        if self._length > 1 and self.case is not None:
            why, causes, bad = self.case.whys[""], {}, []
        elif True not in record.finite_W:
            why, bad = f"gradients on all workers were not finite from step {record.step} on", []
            causes = OF_ALL
        else:
            named = spoken(run_state.ranks(bad))
            why = f"before all-reduce, the gradient of {named} was not finite at step {record.step}, the others' were"
            causes = OF_ONE
        self.report(
            record.step,
            run_state,
            why=why,
            causes=causes,
            workers=bad,
            evidence={"non_finite_steps": self._longest},
        )

    def _tell_kept_away(self, record: StepRecord, run_state: RunState, bad: list[int], how: str) -> None:
        self._length = 0
        self._left_out += 1
        count = f", the last of {self._left_out} such steps" if self._left_out > 1 else ""
        named = spoken(run_state.ranks(bad)) if True in record.finite_W else "all workers"
        still = self._kept_away >= STANDS_STILL
        learnt = f"; training has stood still for {self._kept_away:,} steps" if still else ""
        self.report(
            record.step,
            run_state,
            why=f"the gradient of {named} was not finite at step {record.step}{count}; {how}{learnt}",
            causes=OF_ONE if True in record.finite_W else OF_ALL,
            workers=bad if True in record.finite_W else [],
            severity="critical" if still else "warning",
            evidence={"left_out_steps": self._left_out},
            about="left out",
        )
