"""UN103: every epoch in the same order."""

from __future__ import annotations

from unisono.diagnose.rules.shared.rule import Rule
from unisono.diagnose.rules.shared.run_state import RunState, each, spoken
from unisono.diagnose.rules.shared.sampling_facts import draws_again, is_divided
from unisono.records import AttemptRecord, CoverageRecord, FactsRecord


class StaleShuffle(Rule):
    """Every epoch draws the samples in the same order"""

    code, slug, severity = "UN103", "stale-shuffle", "warning"
    pattern = "`set_epoch` not called"
    source = "loss dispersion manual, section 4; pytorch/pytorch#31771, #11324"
    meaning = (
        "The sampler is asked to shuffle, but starts every epoch from the same seed, so all epochs have the same order "
        "and the same batches. Training works, with less randomness than intended. Found by comparing the sampler's "
        "epoch, or the order of the samples, with those of the pass before."
    )
    correction = (
        "The manuals expect spikes of the loss dispersion, or a drop of the cosine, when set_epoch is forgotten. "
        "Forgetting it on all workers leaves the dispersion of losses, norms and directions unchanged: only the order "
        "of the samples shows it, as measured with eight workers (docs/experiments/silent-inconsistency.md). "
        "Forgetting it on some workers is another fault: overlapping shards (UN102)."
    )
    needs = "the start of a second epoch of a shuffling sampler"
    causes = {
        "set-epoch-not-called": "set_epoch is not called on the sampler",
        "generator-reseeded": "the generator that shuffles is seeded anew before every epoch",
    }
    remedies = {
        "set-epoch-not-called": (
            "call sampler.set_epoch(epoch) on every rank at the start of every epoch, before the loop over the loader "
            "(sampler is the DistributedSampler given to the DataLoader)",
        ),
        "generator-reseeded": (
            "seed the generator once, before the first epoch, or with seed + epoch at the start of each",
        ),
    }

    def __init__(self) -> None:
        super().__init__()
        self._before: dict[str | None, FactsRecord] = {}

    def on_attempt(self, record: AttemptRecord, run_state: RunState) -> None:
        self._before.clear()

    def on_facts(self, record: FactsRecord, run_state: RunState) -> None:
        if record.topic != "loader":
            return
        number = record.same.get("number")
        before, self._before[number] = self._before.get(number), record
        if before is None or not _is_next_pass(before, record) or not _shuffles(record):
            return
        epochs_W = each(record, "sampler epoch", run_state.world)
        if not epochs_W or None in epochs_W:
            return
        if epochs_W != each(before, "sampler epoch", run_state.world):
            self.passed(record.step)
            return
        self.report(
            record.step,
            run_state,
            why=f"the sampler's epoch was {epochs_W[0]} in the pass before and still is",
            causes={"set-epoch-not-called": 0.95},
            evidence={"epoch": epochs_W[0] or "", "pass": record.same["pass"]},
            about="epoch",
        )

    def on_coverage(self, record: CoverageRecord, run_state: RunState) -> None:
        known = [repeated for repeated in record.repeated_W if repeated is not None]
        facts = run_state.loader(record.loader)
        if not known or (facts is not None and not _shuffles(facts)):
            return
        if not any(known):
            self.passed(record.step)
        elif 2 * sum(known) > len(known) or facts is None or not is_divided(facts):
            self._tell_order(record, run_state, facts)

    def _tell_order(self, record: CoverageRecord, run_state: RunState, facts: FactsRecord | None) -> None:
        workers = [worker for worker, repeated in enumerate(record.repeated_W) if repeated]
        everybody = len(workers) == len(record.repeated_W)
        has_epoch = facts is not None and bool(each(facts, "sampler epoch", run_state.world))
        sure = {"set-epoch-not-called": 0.9} if has_epoch else {"generator-reseeded": 0.7, "set-epoch-not-called": 0.4}
        self.report(
            record.step,
            run_state,
            why=f"{'all ranks' if everybody else spoken(run_state.ranks(workers))} drew the samples of epoch "
            f"{record.epoch} in the order of the epoch before",
            causes=sure,
            workers=() if everybody else workers,
            # A sampler of one's own may have its reasons for an order.
            severity="warning" if facts is None or "shuffle" in facts.same else "info",
            about="order",
        )


def _is_next_pass(before: FactsRecord, now: FactsRecord) -> bool:
    """Trained in between: looking at a batch starts a pass, too."""
    passes = before.same.get("pass"), now.same.get("pass")
    return None not in passes and passes[0] != passes[1] and now.step > before.step


def _shuffles(facts: FactsRecord) -> bool:
    shuffled = facts.same.get("shuffle", "yes") == "yes" and "shuffle" not in facts.differ
    return shuffled and facts.same.get("length") != "1" and not draws_again(facts)
