"""UN102: workers whose parts of the data overlap, so that other samples are never seen."""

from __future__ import annotations

from unisono.diagnose.rules.shared.rule import Rule
from unisono.diagnose.rules.shared.run_state import RunState, disagree, each, spoken, told
from unisono.diagnose.rules.shared.sampling_facts import draws_again, is_divided, stuck
from unisono.records import AttemptRecord, CoverageRecord, FactsRecord

OVERLAP = 0.08
"""Share of the drawn samples that has to be missing: counts of distinct samples are off by up to a quarter of it."""

OWN_REPEATS = 0.04
HELD_OUT = 0.05
ENOUGH_DRAWN = 0.125
"""Share of the dataset each worker must have drawn before drawing with replacement would show in its own samples."""


class OverlappingShards(Rule):
    """The workers' parts of the data overlap, and other samples are not seen"""

    code, slug, severity = "UN102", "overlapping-shards", "critical"
    pattern = "Shuffle Desync; DataLoader Misalignment"
    source = (
        "direction consistency manual, section 3; loss dispersion manual, section 4; NVlabs/LongLive#71; "
        "Lightning-AI/pytorch-lightning#17713; TensorAuto/OpenTau#498; QwenLM/Qwen3-VL#1947"
    )
    meaning = (
        "A DistributedSampler shuffles the whole dataset and takes every world-size-th sample. All workers must "
        "shuffle with the same seed and epoch; if one does not, it cuts its part out of another order, so that some "
        "samples are drawn by several workers and others by none. Found by comparing the samplers' seeds and epochs, "
        "and by counting the different samples that all workers together have drawn in an epoch."
    )
    correction = (
        "The manuals look for this in the cosine or in the loss dispersion. Overlapping parts of one dataset leave "
        "both unchanged: only counting samples, or comparing samplers, shows it. Measured with eight workers "
        "(docs/experiments/silent-inconsistency.md): other sampler seeds on one, four or all of them changed the loss "
        "dispersion by about 1 % and did not lower the cosine."
    )
    needs = "the first batch of a DataLoader with a DistributedSampler, or a whole epoch of a dataset that has a length"
    causes = {
        "sampler-seeds-differ": "the samplers were given different seeds",
        "set-epoch-on-some-ranks": "set_epoch is not called, or called with another epoch, on some workers",
        "split-differs": "the workers split the data into training and evaluation differently",
        "dataset-differs-between-ranks": "the dataset itself, not the sampler, was split or shuffled differently",
        "parts-overlap": "the workers choose their parts of the data independently of each other",
    }
    remedies = {
        "sampler-seeds-differ": (
            "pass the same seed= to DistributedSampler on every rank: a constant, not the time, the rank or a random "
            "number",
        ),
        "set-epoch-on-some-ranks": (
            "call sampler.set_epoch(epoch) with the same epoch on every rank before each pass over the loader, outside "
            "any `if rank == 0`",
        ),
        "split-differs": (
            "split by the same random numbers on every rank: random_split(dataset, lengths, "
            "generator=torch.Generator().manual_seed(0))",
        ),
        "dataset-differs-between-ranks": (
            "build the same dataset in the same order on every rank, before the sampler: random_split(dataset, "
            "lengths, generator=torch.Generator().manual_seed(0)), random.Random(0).shuffle(files), sorted(glob(...))",
        ),
        "parts-overlap": (
            "let one rule divide the data, equally many for each worker: sampler=DistributedSampler(dataset), or "
            "indices[rank::world_size] of an order that is shuffled with the same seed on every rank and cut to a "
            "multiple of world_size",
        ),
    }
    explains = ("UN103", "UN105", "UN406", "UN408")

    def __init__(self) -> None:
        super().__init__()
        self._epochs: dict[str | None, tuple[str | None, ...]] = {}
        self._known = False

    def on_attempt(self, record: AttemptRecord, run_state: RunState) -> None:
        self._epochs.clear()
        self._known = False

    def on_facts(self, record: FactsRecord, run_state: RunState) -> None:
        if record.topic != "loader":
            return
        seeds_W, epochs_W = (
            each(record, "sampler seed", run_state.world),
            each(record, "sampler epoch", run_state.world),
        )
        number = record.same.get("number")
        before_W, self._epochs[number] = self._epochs.get(number, ()), epochs_W
        if not is_divided(record) or "pass" in record.differ:
            return
        if record.same.get("shuffle") != "yes":
            self._look_at_fixed_order(record)
            return
        self._known = disagree(seeds_W) or disagree(epochs_W)
        if disagree(seeds_W):
            self._tell("seed", "sampler-seeds-differ", seeds_W, record, run_state)
        if disagree(epochs_W):
            self._tell("epoch", "set-epoch-on-some-ranks", epochs_W, record, run_state, stuck(before_W, epochs_W))
        if not self._known:
            self.passed(record.step)

    def _look_at_fixed_order(self, record: FactsRecord) -> None:
        """Torch's sampler takes every n-th sample then, whatever seed and epoch are."""
        if record.same.get("sampler") == "DistributedSampler" and record.same.get("shuffle") == "no":
            self.passed(record.step)

    def _tell(
        self,
        what: str,
        cause: str,
        values_W: tuple[str | None, ...],
        record: FactsRecord,
        run_state: RunState,
        named: list[int] | None = None,
    ) -> None:
        self.report(
            record.step,
            run_state,
            why=f"the sampler's {what} is {told(values_W, run_state)}",
            causes={cause: 0.95},
            workers=named or (),
            held_W=() if named else values_W,
            about=what,
        )

    def on_coverage(self, record: CoverageRecord, run_state: RunState) -> None:
        facts = run_state.loader(record.loader)
        if record.held_out is not None and record.held_out > HELD_OUT:
            self._tell_split(record, run_state)
        repeating = [worker for worker, repeated in enumerate(record.repeated_W) if repeated]
        if facts is not None and is_divided(facts) and 0 < 2 * len(repeating) <= len(record.repeated_W):
            self._tell_repeating(record, run_state, repeating)
        if not _is_comparable(record, facts):
            return
        drawn, distinct = sum(n or 0 for n in record.drawn_W), record.distinct or 0.0
        if distinct < (1 - OVERLAP) * drawn - len(record.drawn_W):
            self._tell_overlap(record, run_state, drawn, distinct)
        elif not self._known:
            self.passed(record.step)

    def _tell_split(self, record: CoverageRecord, run_state: RunState) -> None:
        self.report(
            record.step,
            run_state,
            why=f"{record.held_out:.0%} of the samples that one worker keeps for evaluation are trained on by others",
            causes={"split-differs": 0.9},
            evidence={"held_out": round(record.held_out or 0.0, 3)},
            about="split",
        )

    def _tell_repeating(self, record: CoverageRecord, run_state: RunState, repeating: list[int]) -> None:
        self.report(
            record.step,
            run_state,
            why=f"{spoken(run_state.ranks(repeating))} drew in the order of the epoch before, the others did not",
            causes={"set-epoch-on-some-ranks": 0.9},
            workers=repeating,
            about="repeating",
        )

    def _tell_overlap(self, record: CoverageRecord, run_state: RunState, drawn: int, distinct: float) -> None:
        lost = round(min(drawn, record.dataset or drawn) - distinct)
        known = self.case is not None and bool(self.case.causes)
        self.report(
            record.step,
            run_state,
            why=f"of {drawn:,} samples drawn in epoch {record.epoch} only about {distinct:,.0f} were different ones: "
            f"about {lost:,} were not seen",
            causes={} if known else self._why_overlap(run_state.loader(record.loader)),
            evidence={"drawn": drawn, "distinct": round(distinct), "lost": lost},
            about="coverage",
        )

    def _why_overlap(self, facts: FactsRecord | None) -> dict[str, float]:
        """Equal settings of a DistributedSampler never give the same place in the dataset to two workers."""
        right = facts is not None and facts.same.get("sampler") == "DistributedSampler" and is_divided(facts)
        return {"dataset-differs-between-ranks": 0.9} if right and not self._known else {"parts-overlap": 0.8}


def _is_comparable(record: CoverageRecord, facts: FactsRecord | None) -> bool:
    """The workers should have drawn different samples, and each of them did not draw one twice."""
    if record.distinct is None or len(record.drawn_W) < 2 or None in record.drawn_W or None in record.distinct_W:
        return False
    if facts is not None and "repeats" in {**facts.same, **facts.differ}:
        return False
    drawn_W = [n or 0 for n in record.drawn_W]
    if draws_again(facts) or sum(n or 0.0 for n in record.distinct_W) < (1 - OWN_REPEATS) * sum(drawn_W):
        return False
    if facts is not None and facts.same.get("sampler") == "DistributedSampler" and is_divided(facts):
        return True
    size = record.dataset or 0
    divided = (facts is not None and is_divided(facts)) or (record.complete and sum(drawn_W) <= 1.1 * size)
    return divided and min(drawn_W) >= ENOUGH_DRAWN * size > 0
