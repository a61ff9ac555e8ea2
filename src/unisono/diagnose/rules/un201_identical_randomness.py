"""UN201: the same random numbers on several workers where they should differ."""

from __future__ import annotations

from unisono.diagnose.rules.shared.rule import Rule
from unisono.diagnose.rules.shared.run_state import RunState, sharing, spoken
from unisono.records import AttemptRecord, StreamsRecord

ENOUGH_RECORDS = 2
MAY_BE_MEANT = ("numpy in forward", "python in forward")
"""Layers are dropped by these, and dropped layers must be the same ones on all workers."""


class IdenticalRandomness(Rule):
    """Several workers draw the same random numbers for dropout or augmentation"""

    code, slug, severity = "UN201", "identical-randomness", "warning"
    pattern = "Seed Mismatch (corrected: dropout must differ)"
    source = (
        "direction consistency manual, section 3; huggingface/transformers#31412; huggingface/accelerate#114; "
        "ecmwf/anemoi-core#595"
    )
    meaning = (
        "The workers named stood at the same place of the same random stream when the model (or the loading of data) "
        "drew from it, so they drop the same units or augment their samples in the same way at every step. That "
        "takes away part of the randomness that more workers should bring. Only streams that are really drawn from "
        "are looked at: equal seeds of a model without dropout are nobody's fault."
    )
    correction = (
        "The manuals advise to align all seeds. That is right for the sampler's seed and for the initial weights, and "
        "wrong for dropout and augmentation: those must differ between workers. Healthy training has different dropout "
        "on every worker; measured with eight of them (docs/experiments/silent-inconsistency.md), losses and gradients "
        "do not differ more for it by as much as five pairs of runs could tell."
    )
    needs = "two looks at random streams that the model or the loader draws from"
    causes = {
        "seeded-by-trainer": "Hugging Face's Trainer seeds every process alike (TrainingArguments.seed)",
        "same-seed-in-forward": "all workers were seeded alike, and the model draws from that stream (dropout)",
        "same-seed-in-loading": "all workers were seeded alike, and loading draws from that stream (augmentation)",
        "dropped-layers": "a stream that decides about whole layers is shared, which may be meant",
    }
    remedies = {
        "seeded-by-trainer": (
            "pass a TrainerCallback to Trainer(callbacks=[...]) whose on_train_begin(self, args, state, control, "
            "**kwargs) calls transformers.set_seed(args.seed + args.process_index)",
            "give each process a seed of its own and all of them the same order of the data: "
            "TrainingArguments(seed=42 + rank, data_seed=42)",
        ),
        "same-seed-in-forward": (
            "after the model is built and wrapped, seed every rank differently: torch.manual_seed(seed + "
            "dist.get_rank()); leave the sampler's seed alone",
        ),
        "same-seed-in-loading": (
            "before the first batch, seed every rank differently: torch.manual_seed(seed + dist.get_rank()), and "
            "likewise random.seed and numpy.random.seed where transforms use them; leave the sampler's seed alone",
        ),
        "dropped-layers": (
            "if this stream decides about anything but dropping whole layers, seed it with seed + dist.get_rank()",
        ),
    }

    def __init__(self) -> None:
        super().__init__()
        self._seen: dict[str, list[int]] = {}

    def on_attempt(self, record: AttemptRecord, run_state: RunState) -> None:
        self._seen.clear()

    def on_streams(self, record: StreamsRecord, run_state: RunState) -> None:
        shared = {stream: workers for stream in record.consumed if (workers := sharing(record.same.get(stream, ())))}
        for stream in record.consumed:
            if stream in shared:
                self._seen.setdefault(stream, []).append(record.step)
            else:
                self._seen.pop(stream, None)
        for stream, workers in shared.items():
            if len(self._seen[stream]) >= ENOUGH_RECORDS:
                self._tell(stream, workers, record, run_state)
        if record.consumed and not shared:
            self.passed(record.step)

    def _tell(self, stream: str, workers: list[int], record: StreamsRecord, run_state: RunState) -> None:
        times = len(self._seen[stream])
        source, _, where = stream.partition(" in ")
        meant = stream in MAY_BE_MEANT
        self.report(
            record.step,
            run_state,
            why=f"{spoken(run_state.ranks(workers))} drew the same random numbers ({source}'s generator) in {where}, "
            f"in {times} of {times} steps looked at",
            causes=_causes(meant, where, run_state),
            workers=workers,
            severity="info" if meant else "warning",
            evidence={f"same_{source}_in_{where}": times},
            since=self._seen[stream][0],
            about=stream,
        )


def _causes(meant: bool, where: str, run_state: RunState) -> dict[str, float]:
    if meant:
        return {"dropped-layers": 0.5}
    by_trainer = run_state.fact("model", "wrapped by") == "transformers"
    return {"seeded-by-trainer" if by_trainer else f"same-seed-in-{where}": 0.95}
