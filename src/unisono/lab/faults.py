"""The exact faults that the lab can put into its honest job, by name, and what unisono should say of each."""

from __future__ import annotations

from dataclasses import dataclass


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


FAULTS = {
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
