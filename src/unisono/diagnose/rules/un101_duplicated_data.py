"""UN101: equal batches on several workers."""

from __future__ import annotations

from unisono.diagnose.rules.shared.near_duplicates import NearDuplicates
from unisono.diagnose.rules.shared.rule import Rule
from unisono.diagnose.rules.shared.run_state import RunState, each, number, numbers, sharing, spoken, told
from unisono.records import AttemptRecord, StepRecord

ENOUGH_STEPS = 2
ENOUGH_TARGET_ROWS = 16
"""Equal targets of augmented inputs prove something when they have varied this much."""

WITHOUT_INDICES = 32
"""Steps after which equal targets alone prove something: random numbers of one seed may stand in their place."""

HALF = 0.5
"""Share of the gradient that workers with the same samples have in common at least, whatever augmentation does."""

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
        "in training. Where augmentation makes the contents differ, equal targets prove it: those of the same indices, "
        "or, after 32 steps, of samples without indices, if they vary from row to row and from step to step, and if "
        "half or more of the gradient is common to the workers. Targets of which no two in a batch are equal may be "
        "the samples' numbers: they count only where the gradients agree as those of different samples cannot. Where "
        "neither contents nor targets are equal, and the indices are not known to differ, a warning is given for "
        "gradients and losses that different samples cannot have: for 32 readings a noise scale below one sample, and "
        "losses that rise and fall together from batch to batch while they differ between workers by less than a third "
        "of that."
    )
    correction = (
        "The manual alarms at a cosine above 0.99. Batches that are large for the noise in their gradients have such "
        "cosines in healthy training, and copies with augmentation can have lower ones."
    )
    needs = "two batches per worker from a DataLoader, or tensors as inputs of the wrapped model"
    causes = {
        "sampler-rank": "the sampler was given the same rank (or one replica) on several workers",
        "no-distributed-sampler": "the loader has no DistributedSampler, and all workers shuffle with the same seed",
        "iterable-not-sharded": "every worker goes through the whole iterable dataset",
        "same-source": "the workers read, or draw with the same seed, from the same source",
        "same-samples-augmented": "the workers read the same samples, each with an augmentation of its own",
    }
    remedies = {
        "sampler-rank": ("give the sampler rank=dist.get_rank() and num_replicas=dist.get_world_size()",),
        "no-distributed-sampler": ("pass sampler=DistributedSampler(dataset) to the DataLoader, without shuffle=True",),
        "iterable-not-sharded": (
            "in the dataset's __iter__, yield only every world_size-th sample, from the rank on, and equally many on "
            "every rank; divide further by torch.utils.data.get_worker_info() if the loader has workers",
        ),
        "same-source": ("select a different part of the data by dist.get_rank() on every worker",),
        "same-samples-augmented": (
            "verify rank and world_size in the data pipeline at once: let every worker read its own part, for example "
            "by DistributedSampler(dataset), or every world_size-th sample from dist.get_rank() on",
        ),
    }
    explains = ("UN106", "UN201", "UN102", "UN405", "UN601")

    def __init__(self) -> None:
        super().__init__()
        self._forget()
        self._near = NearDuplicates()

    def _forget(self) -> None:
        self._steps: list[int] = []
        self._rows = 0

    def on_attempt(self, record: AttemptRecord, run_state: RunState) -> None:
        self._forget()
        self._near = NearDuplicates()

    def on_step(self, record: StepRecord, run_state: RunState) -> None:
        judged = self._hear_numbers(record, run_state)
        shared, by_targets = _sharing(record)
        if shared:
            self._hear_equal(record, run_state, shared, by_targets)
            return
        # Equal indices of batches whose contents are not known at this step say nothing either way.
        other_indices = bool(record.indexed and not sharing(record.same_indices_W))
        if record.compared or other_indices:
            self._forget()
        near = self._near.found and not (other_indices and record.indexed == run_state.world)
        if judged and near:
            self._suspect(record, run_state)
        elif not near and (judged or record.compared or other_indices):
            self.passed(record.step)

    def _hear_numbers(self, record: StepRecord, run_state: RunState) -> bool:
        comparable = run_state.comparable
        if comparable.turned:
            self._near = NearDuplicates()
        # A batch that is repeated on purpose goes together with itself.
        repeated = record.compared and not record.fresh
        return comparable.usable and not repeated and self._near.hear(record)

    def _hear_equal(self, record: StepRecord, run_state: RunState, shared: list[int], by_targets: bool) -> None:
        if not record.fresh or (by_targets and _may_be_numbers(record) and not self._near.agree):
            return
        self._steps.append(record.step)
        self._rows += max(0, record.target_rows - 1)
        enough = ENOUGH_STEPS if record.indexed or not by_targets else WITHOUT_INDICES
        if len(self._steps) >= enough and (not by_targets or self._rows >= ENOUGH_TARGET_ROWS):
            self._accuse(record, run_state, shared, by_targets)

    def _accuse(self, record: StepRecord, run_state: RunState, shared: list[int], by_targets: bool) -> None:
        tiny, steps = _is_tiny(record, run_state), len(self._steps)
        what = "equal targets, of inputs that differ," if by_targets else "equal batches"
        self.report(
            record.step,
            run_state,
            why=f"{spoken(run_state.ranks(shared))} had {what} in {steps} steps in a row{_sampler_ranks(run_state)}",
            causes=({"same-samples-augmented": 0.95} if by_targets else {}) | _causes(run_state, by_targets),
            workers=shared,
            severity="info" if tiny else "critical",
            evidence={"equal_steps": steps} | ({} if record.cos_min is None else {"cos_min": record.cos_min}),
            since=self._steps[0],
        )

    def _suspect(self, record: StepRecord, run_state: RunState) -> None:
        near, batch = self._near, max((samples or 0 for samples in record.samples_W), default=0)
        self.report(
            record.step,
            run_state,
            why=(
                f"the workers' gradients agree as those of batches of {batch} different samples cannot (noise scale "
                f"{near.noise_scale:.2g} samples), and their losses go up and down together: they differ by "
                f"{near.spread:.2g} times what a new batch changes"
            ),
            causes={"same-samples-augmented": 0.7},
            workers=range(len(record.loss_W)),
            severity="warning",
            evidence={
                "noise_scale_in_samples": round(near.noise_scale, 4),
                "loss_spread_to_change": round(near.spread, 4),
                "effective_workers": round(record.effective_workers or 0.0, 3),
            },
        )


def _sharing(record: StepRecord) -> tuple[list[int], bool]:
    """Who has read the same, and whether only the targets say so."""
    contents = sharing(record.same_content_W)
    if contents:
        return contents, False
    targets = sharing(record.same_targets_W)
    # Different samples, as their indices or gradients say, may have equal targets.
    differ = bool(record.indexed) and not sharing(record.same_indices_W)
    differ = differ or (record.cos_expected is not None and record.cos_expected < HALF)
    return ([], False) if differ else (targets, bool(targets))


def _may_be_numbers(record: StepRecord) -> bool:
    """Each target of a batch differs from all others in it, as the numbers of its samples do."""
    samples = min((samples for samples in record.samples_W if samples), default=0)
    pieces = max((backwards or 1 for backwards in record.backwards_W), default=1)
    return 0 < samples <= record.target_rows * pieces


def _is_tiny(record: StepRecord, run_state: RunState) -> bool:
    size, batch = number(run_state.fact("loader", "dataset")), max((n or 0 for n in record.samples_W), default=0)
    return size is not None and size <= TINY_BATCHES * batch * run_state.world


def _causes(run_state: RunState, by_targets: bool) -> dict[str, float]:
    facts, sure = run_state.facts("loader"), 0.8 if by_targets else 1.0
    if facts is None:
        return {"same-source": 0.8 * sure}
    if facts.same.get("dataset kind") == "iterable":
        return {"iterable-not-sharded": 0.95 * sure}
    ranks_W = each(facts, "sampler rank", run_state.world)
    if not ranks_W:
        return {"no-distributed-sampler": 0.9 * sure}
    # A sampler that divides well is innocent of a dataset that does not care about indices.
    return {"sampler-rank": 0.95 * sure} if sharing(numbers(ranks_W)) else {"same-source": 0.8 * sure}


def _sampler_ranks(run_state: RunState) -> str:
    facts = run_state.facts("loader")
    ranks_W = () if facts is None else each(facts, "sampler rank", run_state.world)
    return f"; the rank that the sampler was given is {told(ranks_W, run_state)}" if ranks_W else ""
