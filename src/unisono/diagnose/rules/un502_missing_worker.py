"""UN502: a worker that has gone, or gives no sign of life."""

from __future__ import annotations

from collections.abc import Sequence

from unisono.diagnose.rules.shared.rule import Number, Rule
from unisono.diagnose.rules.shared.run_state import RunState, spoken
from unisono.records import AttemptRecord, DepartureRecord, NoteRecord, StepRecord
from unisono.records.departure_order import first_to_go, in_words, latest_of_each, stopped_together

SHORT = 60.0
"""Seconds of silence after which a worker that returns was only busy."""


MOST_TOLD = 3
"""Departures told in full."""


BY_WORD = {"exception": "raised", "exit": "exited", "signal": "sent-away"}
"""Causes of those that have said how they go."""


class MissingWorker(Rule):
    """A worker has gone or gives no sign of life"""

    code, slug, severity = "UN502", "missing-worker", "critical"
    source = "ai2cm/ace#850; Lightning-AI/pytorch-lightning#6430"
    meaning = (
        "The workers named have gone before the job was over, or have stopped to report and to train, while others "
        "wait for them or go on. In most jobs the others then fail or hang in an all-reduce. Found by the last word of "
        "a worker (an exception, SIGTERM), by the end of its process, and by the sign of life that every worker gives "
        "once a second (silence: 5 s). Workers that fail because another one has gone, or are sent away by the "
        "launcher then, are not named."
    )
    needs = "one recorded step"
    causes = {
        "raised": "its script failed with that exception",
        "exited": "its script ended there by itself",
        "sent-away": "a scheduler, a launcher or a person ended it",
        "process-died": "its process ended: an exception, a signal, or no memory left",
        "worker-hangs": "it waits: for data, for a lock, or in a collective call that the others do not make",
        "host-lost": "its host is down or cannot be reached",
    }
    remedies = {
        "raised": (
            "read the traceback at the end of that rank's output; torchrun --redirects 3 --log-dir keeps the output of "
            "every rank",
        ),
        "exited": (
            "look why that rank ends there: sys.exit, a shorter loader, a condition that holds on one rank only; all "
            "ranks must make the same number of steps",
        ),
        "sent-away": ("look who ends jobs on that host: the scheduler's time limit or preemption, the launcher's log",),
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
        self._departures: list[DepartureRecord] = []

    def on_attempt(self, record: AttemptRecord, run_state: RunState) -> None:
        self._missing.clear()
        self._departures.clear()

    def on_departure(self, record: DepartureRecord, run_state: RunState) -> None:
        self._departures.append(record)
        known = latest_of_each(self._departures)
        first = first_to_go(known, run_state.world)
        if not stopped_together(known, run_state.world):
            self._tell(record, first, known, run_state)
        elif not self._missing:
            # The first of several signals looked like the only one.
            self.case = None

    def _tell(
        self,
        record: DepartureRecord,
        first: Sequence[DepartureRecord],
        known: Sequence[DepartureRecord],
        run_state: RunState,
    ) -> None:
        ranks = sorted(one.rank for one in first)
        shown = first or known
        texts = [in_words(one, self._host(one.rank, run_state)) for one in shown[:MOST_TOLD]]
        if len(shown) > MOST_TOLD:
            texts.append(f"{len(shown) - MOST_TOLD} more went")
        if not first:
            texts.append("who went first is not known")
        self._since = record.time
        self.report(
            max(record.step, run_state.step),
            run_state,
            why="; ".join(texts),
            causes=_causes(first or known),
            ranks=ranks,
            evidence=_evidence(first),
            since=max(0, min(one.step for one in shown)),
        )
        if self.case is not None:
            # What was said of a rank may turn out to be the consequence of another's going.
            self.case.ranks, self.case.causes = set(ranks), _causes(first or known)

    def _host(self, rank: int, run_state: RunState) -> str:
        return next((place.split(" ")[0] for place in run_state.where([rank])), "")

    def on_note(self, record: NoteRecord, run_state: RunState) -> None:
        ranks = {rank for rank in record.ranks if rank is not None}
        if record.about == "returned":
            self._missing -= ranks or self._missing
            self._departures = [one for one in self._departures if one.how != "silence"]
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
        if not self._missing and not self._departures:
            self.passed(record.step)


def _causes(departures: Sequence[DepartureRecord]) -> dict[str, float]:
    if any(one.how == "silence" for one in departures):
        return {"worker-hangs": 0.6, "process-died": 0.4, "host-lost": 0.3}
    return {BY_WORD.get(one.how, "process-died"): 0.9 for one in departures}


def _evidence(first: Sequence[DepartureRecord]) -> dict[str, Number]:
    """Of the one that went first."""
    if not first:
        return {}
    told: dict[str, Number] = {"went_after_step": first[0].step, "how": first[0].how, "detail": first[0].detail}
    return {name: value for name, value in told.items() if value != ""}
