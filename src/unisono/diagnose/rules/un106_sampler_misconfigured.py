"""UN106: samplers that were set up wrongly, or differently on different workers."""

from __future__ import annotations

from unisono.diagnose.rules.shared.rule import Rule
from unisono.diagnose.rules.shared.run_state import RunState, disagree, each, number, numbers, sharing, spoken, told
from unisono.records import AttemptRecord, FactsRecord

WORTH_A_WARNING = ("shuffle", "drop last", "replacement", "batch size", "sampler", "dataset kind")


class SamplerMisconfigured(Rule):
    """The samplers do not divide the data as the workers need it"""

    code, slug, severity = "UN106", "sampler-misconfigured", "critical"
    pattern = "Audit Sharding"
    source = (
        "direction consistency manual, section 3; loss dispersion manual, section 4; huggingface/transformers#11254"
    )
    meaning = (
        "For W workers there must be W replicas, each worker must have a rank of its own among them, and all must "
        "shuffle, drop and batch alike. Otherwise some samples are drawn several times and others never, or some "
        "workers end an epoch before the others. Found by reading the arguments of the samplers and loaders."
    )
    needs = "the first batch of a DataLoader"
    causes = {
        "replicas-not-world-size": "the sampler counts on another number of workers than there are",
        "sampler-rank-taken": "several workers gave their samplers the same rank",
        "loader-arguments-differ": "the loaders were built with different arguments",
        "lengths-differ": "the workers' loaders have different numbers of batches",
        "no-distributed-sampler": "there is no DistributedSampler: every worker draws from all it has",
    }
    remedies = {
        "replicas-not-world-size": (
            "pass num_replicas=dist.get_world_size() to the sampler, or leave it out: that is its default",
        ),
        "sampler-rank-taken": ("pass rank=dist.get_rank() to the sampler, or leave it out: that is its default",),
        "loader-arguments-differ": ("build the DataLoader and its sampler with the same arguments on every rank",),
        "lengths-differ": (
            "give every rank the same number of batches: sampler=DistributedSampler(dataset) on one dataset, or "
            "drop_last=True and the length of the shortest; or train inside torch.distributed.algorithms.Join",
        ),
        "no-distributed-sampler": (
            "pass sampler=DistributedSampler(dataset) to the DataLoader, without shuffle=True; if each rank has a part "
            "of the data of its own, nothing needs to change",
        ),
    }
    explains = ("UN102", "UN105", "UN405")
    cleared_after = 1

    def __init__(self) -> None:
        super().__init__()
        self._found = False

    def on_attempt(self, record: AttemptRecord, run_state: RunState) -> None:
        self._found = False

    def on_facts(self, record: FactsRecord, run_state: RunState) -> None:
        if record.topic != "loader" or not run_state.world:
            return
        self._found = False
        self._look_at_replicas(record, run_state)
        self._look_at_ranks(record, run_state)
        self._look_at_arguments(record, run_state)
        self._look_for_division(record, run_state)
        if not self._found:
            self.passed(record.step)

    def _look_at_replicas(self, record: FactsRecord, run_state: RunState) -> None:
        replicas_W = numbers(each(record, "sampler replicas", run_state.world))
        # A model of some of the ranks may share its data with the whole job.
        right = {run_state.world, number(run_state.fact("settings", "job")) or run_state.world}
        wrong = [worker for worker, n in enumerate(replicas_W) if n is not None and n not in right]
        everywhere = len(wrong) == len(replicas_W)
        if not wrong or set(replicas_W) == {1}:
            return
        self._tell(
            record,
            run_state,
            f"the sampler divides by {told(replicas_W, run_state)}, and there are {run_state.world} workers",
            "replicas-not-world-size",
            workers=() if everywhere else wrong,
        )

    def _look_at_ranks(self, record: FactsRecord, run_state: RunState) -> None:
        ranks_W = each(record, "sampler rank", run_state.world)
        if set(each(record, "sampler replicas", run_state.world)) == {"1"}:
            return
        numbers_W = numbers(ranks_W)
        shared = sharing(numbers_W)
        wrong = [worker for worker in shared if numbers_W[worker] != worker]
        if wrong:
            why = f"the samplers of {spoken(run_state.ranks(shared))} share a rank: {told(ranks_W, run_state)}"
            self._tell(record, run_state, why, "sampler-rank-taken", workers=wrong)

    def _look_at_arguments(self, record: FactsRecord, run_state: RunState) -> None:
        for name in WORTH_A_WARNING:
            values_W = record.differ.get(name, ())
            if disagree(values_W):
                why = f"the loader's {name} is {told(values_W, run_state)}"
                self._tell(record, run_state, why, "loader-arguments-differ", "warning", held_W=values_W)
        lengths_W = record.differ.get("length", ())
        if disagree(lengths_W) and not disagree(record.differ.get("batch size", ())):
            # Datasets of different sizes are mostly divided on purpose; one dataset divided unevenly is a mistake.
            severity = "warning" if "dataset" in record.same else "info"
            why = f"batches in an epoch: {told(lengths_W, run_state)}"
            self._tell(
                record, run_state, why, "lengths-differ", severity, held_W=lengths_W if severity == "warning" else ()
            )

    def _look_for_division(self, record: FactsRecord, run_state: RunState) -> None:
        replicas_W = each(record, "sampler replicas", run_state.world)
        plain = not replicas_W and record.same.get("sampler") == "RandomSampler"
        if run_state.world > 1 and (plain or set(replicas_W) == {"1"}):
            why = "every worker draws from its whole dataset; if it is the same one, an epoch goes through it once each"
            self._tell(record, run_state, why, "no-distributed-sampler", "info")

    def _tell(
        self,
        record: FactsRecord,
        run_state: RunState,
        why: str,
        cause: str,
        severity: str = "critical",
        workers: list[int] | tuple[int, ...] = (),
        held_W: tuple[str | None, ...] = (),
    ) -> None:
        self._found = True
        confidence = {"critical": 0.95, "warning": 0.8, "info": 0.5}[severity]
        self.report(
            record.step,
            run_state,
            why=why,
            causes={cause: confidence},
            workers=workers,
            held_W=held_W,
            severity=severity,
            about=f"{cause} {why.partition(' is ')[0]}" if cause == "loader-arguments-differ" else cause,
        )
