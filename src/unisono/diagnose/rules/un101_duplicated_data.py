"""UN101: equal batches on several workers."""

from __future__ import annotations

from unisono.diagnose.rules.shared.rule import Rule
from unisono.diagnose.rules.shared.run_state import RunState, each, numbers, sharing, spoken, told
from unisono.records import AttemptRecord, StepRecord

ENOUGH_STEPS = 2
ENOUGH_TARGET_ROWS = 16
"""Equal targets of augmented inputs prove something when they have varied this much."""

TINY_BATCHES = 2
"""Below this many batches per worker in the whole dataset, a sampler's padding repeats samples across workers."""


class DuplicatedData(Rule):
    """Several workers load the same data"""

    code, slug, severity = "UN101", "duplicated-data", "critical"
    pattern = "Abnormally High; Near-Zero Constant; Data Duplication"
    source = "direction consistency manual, section 3; loss dispersion manual, section 4; huggingface/datasets#5360"
    meaning = (
        "The workers named have read the same samples at the same steps, so their gradients are copies of each other, "
        "but for dropout, and together they are worth one worker. It is found by comparing the dataset indices and the "
        "contents of the workers' batches, not by a high cosine: gradients of different data can agree closely early "
        "in training."
    )
    needs = "two batches per worker from a DataLoader, or tensors as inputs of the wrapped model"
    causes = {
        "sampler-rank": "the sampler was given the same rank (or one replica) on several workers",
        "no-distributed-sampler": "the loader has no DistributedSampler, and all workers shuffle with the same seed",
        "iterable-not-sharded": "every worker goes through the whole iterable dataset",
        "same-source": "the workers read, or draw with the same seed, from the same source",
    }
    remedies = {
        "sampler-rank": ("give the sampler rank=dist.get_rank() and num_replicas=dist.get_world_size()",),
        "no-distributed-sampler": ("pass sampler=DistributedSampler(dataset) to the DataLoader, without shuffle=True",),
        "iterable-not-sharded": (
            "in the dataset's __iter__, yield only every world_size-th sample, from the rank on, and equally many on "
            "every rank; divide further by torch.utils.data.get_worker_info() if the loader has workers",
        ),
        "same-source": ("select a different part of the data by dist.get_rank() on every worker",),
    }
    explains = ("UN106", "UN201", "UN102", "UN405", "UN601")

    def __init__(self) -> None:
        super().__init__()
        self._forget()

    def _forget(self) -> None:
        self._steps: list[int] = []
        self._rows = 0

    def on_attempt(self, record: AttemptRecord, run_state: RunState) -> None:
        self._forget()

    def on_step(self, record: StepRecord, run_state: RunState) -> None:
        if not record.compared and not record.indexed:
            return
        shared = sharing(record.same_content_W)
        by_targets = not shared and bool(sharing(record.same_indices_W) and sharing(record.same_targets_W))
        shared = sharing(record.same_targets_W) if by_targets else shared
        if not shared:
            self._forget()
            self.passed(record.step)
            return
        if not record.fresh:
            return
        self._steps.append(record.step)
        self._rows += max(0, record.target_rows - 1)
        if len(self._steps) >= ENOUGH_STEPS and (not by_targets or self._rows >= ENOUGH_TARGET_ROWS):
            self._accuse(record, run_state, shared)

    def _accuse(self, record: StepRecord, run_state: RunState, shared: list[int]) -> None:
        tiny, steps = _is_tiny(record, run_state), len(self._steps)
        self.report(
            record.step,
            run_state,
            why=f"{spoken(run_state.ranks(shared))} had equal batches in {steps} steps in a row"
            f"{_sampler_ranks(run_state)}",
            causes=_causes(run_state),
            workers=shared,
            severity="info" if tiny else "critical",
            evidence={"equal_steps": steps} | ({} if record.cos_min is None else {"cos_min": record.cos_min}),
            since=self._steps[0],
        )


def _is_tiny(record: StepRecord, run_state: RunState) -> bool:
    size, batch = run_state.fact("loader", "dataset"), max((n or 0 for n in record.samples_W), default=0)
    return size is not None and int(size) <= TINY_BATCHES * batch * run_state.world


def _causes(run_state: RunState) -> dict[str, float]:
    facts = run_state.facts("loader")
    if facts is None:
        return {"same-source": 0.8}
    if facts.same.get("dataset kind") == "iterable":
        return {"iterable-not-sharded": 0.95}
    ranks_W = each(facts, "sampler rank", run_state.world)
    if not ranks_W:
        return {"no-distributed-sampler": 0.9}
    # A sampler that divides well is innocent of a dataset that does not care about indices.
    return {"sampler-rank": 0.95} if sharing(numbers(ranks_W)) else {"same-source": 0.8}


def _sampler_ranks(run_state: RunState) -> str:
    facts = run_state.facts("loader")
    ranks_W = () if facts is None else each(facts, "sampler rank", run_state.world)
    return f"; the rank that the sampler was given is {told(ranks_W, run_state)}" if ranks_W else ""
