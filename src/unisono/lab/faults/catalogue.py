"""The faults that the lab can put into a training job, by name, and what unisono should say of each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Fault:
    code: str
    cause: str
    what: str
    """What happens, in the words of `unisono demo`."""

    on: str = "all"
    """Whom a finding should name: `all` workers, the `pair` or the one `victim`, or `nobody` in particular."""

    late: bool = False
    """It begins in the middle of the run rather than at its start."""

    also: Mapping[str, str] = field(default_factory=dict)
    """Other codes under which it may be found, each with its first cause."""

    harmless: bool = False
    """Nothing should be said: it changes less than any two batches differ."""

    @property
    def undecidable(self) -> bool:
        """Of two workers: they only differ from each other, and neither from its own past."""
        return self.on == "victim" and self.code in ("UN501", "UN105")

    def accepts(self, code: str) -> bool:
        return code == self.code or code in self.also

    def is_cause(self, code: str, cause: str) -> bool:
        return cause == (self.cause if code == self.code else self.also.get(code))

    def named(self, victim: int, workers: int) -> tuple[int, ...]:
        """The ranks that a finding should name. Of two workers only exact evidence can name one."""
        named = {"all": range(workers), "pair": (victim - 1, victim), "victim": (victim,), "nobody": ()}
        return tuple(named[self.on])


EXACT = {
    "duplicated-data": Fault("UN101", "sampler-rank", "every worker's sampler is told that it is rank 0"),
    "duplicated-pair": Fault("UN101", "sampler-rank", "one worker's sampler is told the rank of another", on="pair"),
    "overlapping-shards": Fault(
        "UN102", "sampler-seeds-differ", "each worker's sampler shuffles with its own seed", on="nobody"
    ),
    "stale-shuffle": Fault("UN103", "set-epoch-not-called", "nobody calls set_epoch", on="nobody"),
    "stale-shuffle-on-one-rank": Fault(
        "UN102", "set-epoch-on-some-ranks", "one worker never calls set_epoch", on="victim"
    ),
    "identical-dropout": Fault("UN201", "same-seed-in-forward", "all workers drop the same units"),
    "unequal-initialisation": Fault(
        "UN202", "changed-after-wrapping", "one worker's weights are changed after wrapping", on="victim"
    ),
    "precision-drift": Fault(
        "UN301",
        "precision-drift",
        "the weights of one layer of one worker move by the last bit",
        on="victim",
        late=True,
    ),
    "stale-weights": Fault(
        "UN301", "stale-or-missed-update", "one worker goes back to older weights", on="victim", late=True
    ),
    "no-sync-leak": Fault(
        "UN302", "no-sync-leak", "the optimizer steps on gradients that no_sync kept apart", on="nobody", late=True
    ),
    "stripped-wrapper": Fault(
        "UN302", "wrapper-stripped", "the DDP wrapper is thrown away before training", on="nobody"
    ),
    "learning-rate-on-one-rank": Fault(
        "UN303", "learning-rate-differs", "one worker takes larger steps", on="victim", late=True
    ),
    "clipping-on-one-rank": Fault(
        "UN302", "clipping-on-some-ranks", "one worker clips its gradient", on="victim", late=True
    ),
    "nan-on-one-rank": Fault("UN404", "bad-sample", "one worker's batch gives NaN", on="victim", late=True),
}
"""Exact evidence tells these, within two readings."""

STATISTICAL = {
    "gradient-x1.1": Fault(
        "UN501", "different-computation", "one worker's gradient is a tenth too long", "victim", True
    ),
    "gradient-x1.3": Fault(
        "UN501", "different-computation", "one worker's gradient is 1.3 times too long", "victim", True
    ),
    "gradient-x2": Fault("UN501", "different-computation", "one worker's gradient is twice too long", "victim", True),
    "gradient-x10": Fault(
        "UN501", "different-computation", "one worker's gradient is ten times too long", "victim", True
    ),
    "sign-flip": Fault("UN501", "different-computation", "one worker's gradient has the wrong sign", "victim", True),
    "zero-gradient": Fault("UN501", "faulty-device", "one worker's gradient is zero", "victim", True),
    "gradient-noise": Fault(
        "UN501", "faulty-device", "noise as long as the gradient itself is added on one worker", "victim", True
    ),
    "bit-30": Fault(
        "UN401",
        "faulty-device",
        "the highest exponent bit of one number of one gradient is flipped, once",
        "victim",
        True,
        {"UN404": "bad-sample", "UN104": "bad-sample"},
    ),
    "bit-10": Fault(
        "", "", "a middle bit of one number of one gradient is flipped, once", "nobody", True, harmless=True
    ),
    "wrong-labels-25": Fault("UN105", "different-data", "a quarter of one worker's labels is wrong", "victim", True),
    "wrong-labels-50": Fault("UN105", "different-data", "half of one worker's labels is wrong", "victim", True),
    "wrong-labels-100": Fault("UN105", "different-data", "all of one worker's labels are wrong", "victim", True),
    "scaled-inputs": Fault(
        "UN105",
        "different-data",
        "one worker's inputs are not normalised",
        "victim",
        True,
        {"UN501": "data-of-another-kind"},
    ),
    "easy-shard": Fault(
        "UN105",
        "different-data",
        "half of one worker's samples is padding",
        "victim",
        True,
        {"UN501": "data-of-another-kind"},
    ),
    "toxic-batch": Fault(
        "UN104", "bad-sample", "one batch of one worker is garbage", "victim", True, {"UN401": "bad-data"}
    ),
    "learning-rate-too-high": Fault(
        "UN401", "learning-rate", "the learning rate is far too high from a step on", "nobody", True
    ),
    "oscillation": Fault(
        "UN403",
        "learning-rate",
        "the learning rate is at the edge of what is stable, or beyond",
        "nobody",
        True,
        {"UN401": "learning-rate"},
    ),
    "momentum-contaminated": Fault(
        "UN401",
        "momentum",
        "one step's gradients are a thousand times too long; the momentum remembers",
        "nobody",
        True,
    ),
    "poor-initialisation": Fault("UN402", "initialisation", "the first weights are far too small", "nobody"),
    "deep-post-ln": Fault(
        "UN402", "architecture", "twelve blocks, normalised after each layer, without a warm-up", "nobody"
    ),
    "underflow": Fault("UN402", "underflow", "gradients in float16 are too small for it", "nobody", True),
    "throttled": Fault("UN503", "slow-device", "one worker needs half as long again", "victim", True),
}
"""Statistics tell these, after some readings."""

FAULTS = EXACT | STATISTICAL
