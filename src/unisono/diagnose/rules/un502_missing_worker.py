"""UN502: a worker that gives no sign of life."""

from __future__ import annotations

from unisono.diagnose.rules.shared.rule import Rule
from unisono.diagnose.rules.shared.run_state import RunState, spoken
from unisono.records import AttemptRecord, NoteRecord, StepRecord

SHORT = 60.0
"""Seconds of silence after which a worker that returns was only busy."""


class MissingWorker(Rule):
    """A worker gives no sign of life"""

    code, slug, severity = "UN502", "missing-worker", "critical"
    source = "ai2cm/ace#850; Lightning-AI/pytorch-lightning#6430"
    meaning = (
        "The workers named have stopped to report and to train, while others wait for them or go on. In most jobs the "
        "others then hang in an all-reduce until it times out. Found by the heartbeat that every worker sends."
    )
    needs = "one recorded step"
    causes = {
        "process-died": "its process ended: an exception, a signal, or no memory left",
        "worker-hangs": "it waits: for data, for a lock, or in a collective call that the others do not make",
        "host-lost": "its host is down or cannot be reached",
    }
    remedies = {
        "process-died": (
            "read the end of that rank's output and `dmesg` on its host (out of memory?), and start torchrun with "
            "--redirects 3 --log-dir to keep the output of every rank",
        ),
        "worker-hangs": (
            "look where it stands: py-spy dump --pid PID on its host; collectives must be called by all ranks in the "
            "same order, never inside `if rank == 0`",
        ),
        "host-lost": ("check the host and its network; restart from the last checkpoint without it",),
    }
    explains = ("UN001", "UN501", "UN503")
    cleared_after = 1

    def __init__(self) -> None:
        super().__init__()
        self._missing: set[int] = set()
        self._since = 0.0

    def on_attempt(self, record: AttemptRecord, run_state: RunState) -> None:
        self._missing.clear()

    def on_note(self, record: NoteRecord, run_state: RunState) -> None:
        ranks = {rank for rank in record.ranks if rank is not None}
        if record.about == "returned":
            self._missing -= ranks or self._missing
            if not self._missing and self.case is not None and record.time - self._since < SHORT:
                self.excuse(f"{spoken(sorted(ranks))} gave no sign of life for some seconds and then went on")
        if record.about != "missing":
            return
        if not self._missing:
            self._since = record.time
        self._missing |= ranks
        self.report(
            record.step,
            run_state,
            why=f"nothing has been heard of {spoken(sorted(self._missing))} since step {record.step}",
            causes={"process-died": 0.6, "worker-hangs": 0.5, "host-lost": 0.3},
            ranks=sorted(ranks),
        )

    def on_step(self, record: StepRecord, run_state: RunState) -> None:
        if not self._missing:
            self.passed(record.step)
