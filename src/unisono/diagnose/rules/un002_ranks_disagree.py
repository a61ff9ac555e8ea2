"""UN002: workers that do not run the same thing."""

from __future__ import annotations

from unisono.diagnose.rules.shared.rule import STATISTICAL, Rule
from unisono.diagnose.rules.shared.run_state import RunState, camps, disagree, each, minority, spoken, told
from unisono.records import AttemptRecord, FactsRecord, NoteRecord, StepRecord
from unisono.records.finding import SEVERITIES

GRAVITY = {
    "settings": {
        "world": "critical",
        "torch": "warning",
        "python": "warning",
        "numpy": "warning",
        "unisono": "warning",
        "schedule": "warning",
    },
    "model": {
        "structure": "critical",
        "parameters": "critical",
        "dtype": "critical",
        "wrapper": "critical",
        "comm hook": "critical",
        "averager": "critical",
        "broadcast buffers": "warning",
        "buffers": "warning",
    },
    "optimizer": {"class": "critical", "sharded state": "critical"},
}
CAUSES = {"settings": "versions-differ", "model": "model-differs", "optimizer": "optimizer-class-differs"}
HASHED = ("structure",)
"""Their values say nothing to a reader."""


class RanksDisagree(Rule):
    """The workers do not run the same thing"""

    code, slug, severity = "UN002", "ranks-disagree", "critical"
    source = "ecmwf/WeatherGenerator#2724; loss dispersion manual, section 3.1"
    meaning = (
        "Data-parallel training assumes that all workers run the same program: the same model, optimizer and versions, "
        "and the same decisions at the same steps. A step that one worker leaves out alone makes its weights differ "
        "from then on, and nothing says so. Found by comparing what each worker says of itself, and by counting "
        "backward passes and optimizer steps on each."
    )
    needs = "the first report of every worker"
    causes = {
        "decision-on-one-rank": "a worker decided alone to skip or repeat a step, from its own loss or gradient",
        "guards-differ": "the workers do not hold the same decisions of the guard",
        "model-differs": "the model was built or wrapped differently on some workers",
        "optimizer-class-differs": "the workers use different optimizers",
        "world-differs": "the workers were started with different world sizes",
        "versions-differ": "the workers run different versions of their libraries",
    }
    remedies = {
        "decision-on-one-rank": (
            "decide on all ranks together: put the local decision into a tensor, call "
            "dist.all_reduce(flag, op=dist.ReduceOp.MAX) on every rank, and skip on every rank if it is not zero",
        ),
        "guards-differ": (
            "stop the job and start it again from a checkpoint that was taken before, for example by "
            "`monitor.restore()`",
            "guard with the same options and the same version of unisono on every rank",
        ),
        "model-differs": ("build and wrap the model by the same code on every rank, without branches on the rank",),
        "optimizer-class-differs": ("build the same optimizer on every rank",),
        "world-differs": ("start all ranks by one launcher, with the same WORLD_SIZE",),
        "versions-differ": ("install the same versions on every host, for example from one lock file or image",),
    }
    explains = (*STATISTICAL, "UN106", "UN201", "UN202", "UN301", "UN302", "UN303", "UN304", "UN305", "UN404")

    def __init__(self) -> None:
        super().__init__()
        self._lasting = False
        """Nothing that is seen later in the attempt takes it back."""

    def on_attempt(self, record: AttemptRecord, run_state: RunState) -> None:
        self._lasting = False

    def on_note(self, record: NoteRecord, run_state: RunState) -> None:
        if record.about == "decisions-differ":
            self._lasting = True
            self.report(
                record.step,
                run_state,
                why=record.text,
                causes={"guards-differ": 0.9},
                ranks=[rank for rank in record.ranks if rank is not None],
                about="decisions",
            )

    def on_facts(self, record: FactsRecord, run_state: RunState) -> None:
        differing = [name for name in GRAVITY.get(record.topic, ()) if disagree(record.differ.get(name, ()))]
        for name in differing:
            self._lasting = True
            self._tell_fact(record, name, run_state)
        if record.topic in GRAVITY and not self._lasting:
            self.passed(record.step)

    def _tell_fact(self, record: FactsRecord, name: str, run_state: RunState) -> None:
        values_W = each(record, name, run_state.world)
        severity = GRAVITY[record.topic][name]
        if name == "python" and len({_minor(value) for value in values_W if value is not None}) == 1:
            severity = "info"
        told_apart = (
            f"differs on {_odd_ones(values_W, run_state)}" if name in HASHED else f"is {told(values_W, run_state)}"
        )
        self.report(
            record.step,
            run_state,
            why=f"{record.topic}: {name} {told_apart}",
            causes={"world-differs" if name == "world" else CAUSES[record.topic]: _confidence(severity)},
            held_W=values_W,
            severity=severity,
            about=f"{record.topic} {name}",
        )

    def on_step(self, record: StepRecord, run_state: RunState) -> None:
        if disagree(record.skipped_W):
            self._tell_skip(record, run_state)
        elif disagree(record.passes_W) or disagree(record.updates_W):
            self._tell_count(record, run_state)
        elif record.heard and not self._lasting:
            self.passed(record.step)

    def _tell_skip(self, record: StepRecord, run_state: RunState) -> None:
        skipped = [worker for worker, skip in enumerate(record.skipped_W) if skip]
        self.report(
            record.step,
            run_state,
            why=f"at step {record.step} {spoken(run_state.ranks(skipped))} took no optimizer step while the others did",
            causes={"decision-on-one-rank": 0.95},
            held_W=record.skipped_W,
            about="skipped",
        )

    def _tell_count(self, record: StepRecord, run_state: RunState) -> None:
        counted, name = (
            (record.updates_W, "optimizer steps")
            if disagree(record.updates_W)
            else (record.passes_W, "synchronised backward passes")
        )
        self.report(
            record.step,
            run_state,
            why=f"{name} since the start: {told(counted, run_state)}",
            causes={"decision-on-one-rank": 0.8},
            held_W=counted,
            about="counts",
        )


def _minor(version: str) -> str:
    return ".".join(version.split(".")[:2])


def _odd_ones(values_W: tuple[str | None, ...], run_state: RunState) -> str:
    odd = minority(values_W)
    return spoken(run_state.ranks(odd)) if odd else f"the workers: there are {len(camps(values_W))} versions"


def _confidence(severity: str) -> float:
    return 0.5 + 0.2 * SEVERITIES.index(severity)
