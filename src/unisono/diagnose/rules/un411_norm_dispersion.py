"""UN411: the workers' gradient norms suddenly lie much further apart."""

from __future__ import annotations

from unisono.diagnose.rules.shared.dispersion_shifts import IN_A_ROW, PAST, Jump
from unisono.diagnose.rules.shared.run_state import RunState
from unisono.diagnose.rules.shared.statistical_rule import Statistical
from unisono.records import StepRecord


class NormDispersion(Statistical):
    """The workers' gradient norms have moved apart"""

    code, slug, severity = "UN411", "norm-dispersion", "warning"
    pattern = "High Dispersion"
    source = "global gradient norm manual, section 3"
    meaning = (
        "The standard deviation of the gradient norm across workers, divided by its mean, was for five readings in a "
        "row above all of its last 100 values and above three times their median. If it comes from one worker that "
        "stays apart, that is UN501 or UN105."
    )
    correction = (
        "The manual names unaligned random seeds. Workers see different data, and their dropout must differ, so their "
        "norms always differ; what counts is a change against this run's own past."
    )
    needs = "two or more workers and 100 readings of their gradient norms"
    causes = {
        "data-changed": "some workers began to read other data: another file, source or length of samples",
        "one-worker": "one worker's data or computation changed",
        "instability": "training is becoming unstable, and rare samples have large gradients",
    }
    remedies = {
        "data-changed": ("look at what each worker reads from this step on; shuffle before sharding",),
        "one-worker": ("look at the worker with the largest norm from this step on; test its device",),
        "instability": ("look at the gradient norm and the learning rate; lower the rate or clip gradients",),
    }

    def forget(self) -> None:
        self._jump = Jump()

    def hear(self, record: StepRecord, run_state: RunState) -> None:
        if record.grad_norm_cv is None or len(record.norm_W) < 2:
            return
        if self._jump.add(record.grad_norm_cv):
            if self._jump.due:
                self._accuse(record, run_state)
        elif self._jump.ready:
            self.passed(record.step)

    def _accuse(self, record: StepRecord, run_state: RunState) -> None:
        now, before = self._jump.now, self._jump.before
        self.report(
            record.step,
            run_state,
            why=(
                f"the standard deviation of the workers' gradient norms is {100 * now:.3g} % of their mean, for "
                f"{IN_A_ROW} readings or more; it was {100 * before:.3g} % in the {PAST} readings before"
            ),
            causes={"data-changed": 0.4, "one-worker": 0.4, "instability": 0.3},
            evidence={"grad_norm_cv": round(now, 4), "grad_norm_cv_before": round(before, 4)},
        )
