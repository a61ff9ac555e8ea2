"""UN001: unisono hears less than it should."""

from __future__ import annotations

from collections.abc import Mapping

from unisono.diagnose.rules.shared.rule import Rule
from unisono.diagnose.rules.shared.run_state import RunState, spoken
from unisono.records import AttemptRecord, NoteRecord, StepRecord

PATIENCE, PATIENCE_SECONDS = 50, 60.0
"""Steps and seconds without directions after both of which that is worth a word."""

FAILED_RULES = "failed_rules"


class MonitorDegraded(Rule):
    """unisono hears less than it should"""

    code, slug, severity = "UN001", "monitor-degraded", "warning"
    source = "unisono's own side channel"
    meaning = (
        "Training goes on, but a worker trains without reporting, or directions of gradients have not arrived for some "
        "time, or one of unisono's own rules failed and was switched off, alone. Nothing is known to be wrong with the "
        "training itself; faults that need the missing numbers cannot be found while it lasts."
    )
    needs = "one recorded step"
    causes = {
        "not-attached": "unisono is not attached, was turned off, or failed on that worker",
        "network-interface": "unisono's own connection (gloo) does not reach that worker",
        "overloaded-host": "the worker's host is so busy that reports come too late",
        "rule-failed": "a fault in unisono itself; the training has no part in it",
    }
    remedies = {
        "not-attached": (
            "call unisono.attach(model, optimizer) on every rank, outside any `if rank == 0`, and look for a line of "
            "unisono in that rank's stderr",
        ),
        "network-interface": ("set GLOO_SOCKET_IFNAME on every host to the network interface that joins the hosts",),
        "overloaded-host": ("leave a CPU core per rank free: fewer DataLoader workers, or OMP_NUM_THREADS=1",),
        "rule-failed": (
            "update unisono: pip install -U unisono. If it stays, report it with the text above and, if you can, the "
            "run file",
        ),
    }
    cleared_after = 1

    def __init__(self) -> None:
        super().__init__()
        self._unheard: set[int] = set()
        self._lost: int | None = None
        self._lost_time = 0.0
        self._rules_failed = False

    def on_attempt(self, record: AttemptRecord, run_state: RunState) -> None:
        self._unheard.clear()
        self._lost = None

    def on_note(self, record: NoteRecord, run_state: RunState) -> None:
        ranks = [rank for rank in record.ranks if rank is not None]
        if record.about == "unheard":
            self._unheard |= set(ranks)
            self._tell_unheard(record, run_state)
        elif record.about == "returned":
            self._unheard -= set(ranks or self._unheard)
        elif record.about == "directions-lost" and self._lost is None:
            self._lost, self._lost_time = record.step, record.time
        elif record.about == "directions-back":
            self._lost = None

    def on_step(self, record: StepRecord, run_state: RunState) -> None:
        if self._lost is not None and self._is_long(record):
            self.report(
                record.step,
                run_state,
                why=f"no directions of gradients have arrived since step {self._lost}",
                causes={"network-interface": 0.7, "overloaded-host": 0.4},
                evidence={"directions_lost_at": self._lost},
                since=self._lost,
                about="directions",
            )
        elif self._lost is None and not self._unheard and not self._rules_failed:
            self.passed(record.step)

    def rule_failed(self, step: int, run_state: RunState, failed: Mapping[str, str]) -> None:
        """
        :param failed: The codes of all rules that have failed, each with when and how.
        """
        self._rules_failed = True
        told = "; ".join(f"{code} {words}" for code, words in failed.items())
        self.report(
            step,
            run_state,
            why=f"switched off after a failure of unisono's own: {told}",
            causes={"rule-failed": 0.95},
            evidence={FAILED_RULES: told},
            about="rules",
        )

    def _is_long(self, record: StepRecord) -> bool:
        steps = record.step - (self._lost or 0)
        return steps >= PATIENCE and record.time - self._lost_time >= PATIENCE_SECONDS

    def _tell_unheard(self, record: NoteRecord, run_state: RunState) -> None:
        ranks = sorted(self._unheard)
        self.report(
            max(record.step, run_state.step),
            run_state,
            since=record.step,
            why=f"nothing has been heard of {spoken(ranks)} since step {record.step}, though training went on",
            causes={"not-attached": 0.6, "network-interface": 0.5, "overloaded-host": 0.4},
            ranks=ranks,
            about="unheard",
        )
