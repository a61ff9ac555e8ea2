"""UN501: one worker's gradients stay apart from those of the others, although its loss does not."""

from __future__ import annotations

import math
from collections.abc import Mapping

from unisono.diagnose.rules.shared.batch_makeup import Makeup
from unisono.diagnose.rules.shared.gradient_outliers import Apart, Gradients
from unisono.diagnose.rules.shared.known_batches import batches_known, new_batches
from unisono.diagnose.rules.shared.layer_profile import Place
from unisono.diagnose.rules.shared.repeated_batches import Repeated, RepeatedBatches
from unisono.diagnose.rules.shared.run_state import RunState, spoken
from unisono.diagnose.rules.shared.scaled_losses import Scale
from unisono.diagnose.rules.shared.statistical_rule import Statistical
from unisono.records import StepRecord

LARGE_NORM = math.log(1.5)
LARGE_COSINE = 0.2
EVERY = 8
"""Readings from one look at an alarm to the next."""


class OutlierWorker(Statistical):
    """One worker's gradients differ from the others'"""

    code, slug, severity = "UN501", "outlier-worker", "critical"
    pattern = "Hardware Fault Detection"
    source = "direction consistency manual, section 4; global gradient norm manual, section 3"
    meaning = (
        "Workers that draw their data alike are interchangeable: each of them has the largest or smallest gradient as "
        "often as any other. The worker named has not been: its gradient norm (for the loss it had), or the agreement "
        "of its direction with the others', has stayed to one side, while its loss is like theirs. So it is probably "
        "not the data that differ but what is computed from them. At every reading bets are made that a worker stays "
        "apart; if workers were interchangeable, the chance that any of them ever wins enough for an alarm would be "
        "1 in 100,000 for a whole run (docs/detection.md). A gradient of the wrong sign is told from directions summed "
        "over 32 readings: the others agree, and this one points against them. With two workers nobody can say which "
        "is wrong: swap their data or their devices, and see which of the two the difference follows. A large "
        "difference is critical once it has lasted for 64 readings. The 50 steps after the learning rate has suddenly "
        "risen are not judged. Where the same batches come again in every epoch, each has one say, and a difference of "
        "ten standard errors is a warning."
    )
    correction = (
        "The manual asks for low similarity with all other nodes. Low similarity is normal for small batches; what "
        "counts is that one worker is persistently lower than the others. A throttled GPU computes the same numbers "
        "later: that is UN503."
    )
    needs = "two or more workers with equal batch sizes, and 32 readings of new batches, or 6 batches that come again"
    causes = {
        "scaled": "this worker's loss has another factor: it is not divided by the accumulation steps, or weighted",
        "different-computation": "this worker computes something else: loss scale, accumulation, dropout, precision",
        "faulty-device": "the device computes wrong numbers without an error (silent data corruption)",
        "data-of-another-kind": "the worker's data are of another kind",
    }
    remedies = {
        "scaled": (
            "divide the loss by the number of accumulation steps, (loss / steps).backward(), on every rank alike, and "
            "use the same reduction= and weights of the loss everywhere",
        ),
        "faulty-device": (
            "run the same batch on this device and on another one and compare the gradients; test or drain the host",
        ),
        "different-computation": (
            "look for conditions on the rank, and for a loss that is scaled, divided or given another sign there",
        ),
        "data-of-another-kind": ("look at a few batches of this worker beside those of another one",),
    }
    explains = ("UN401", "UN406", "UN407", "UN408", "UN409", "UN411", "UN601")
    forgets_at_jumps = False

    def forget(self) -> None:
        self._gradients, self._makeup, self._repeated = Gradients(), Makeup(), RepeatedBatches()
        self._again = 0
        self._readings = 0
        self._alarmed = False

    @property
    def suspicious(self) -> bool:
        return self._gradients.suspicious

    def hear(self, record: StepRecord, run_state: RunState) -> None:
        comparable = run_state.comparable
        if comparable.unequal or comparable.turmoil:
            return
        if batches_known(record) and record.norm_W and (record.fresh or record.repeats is not None):
            self._repeated.hear(record)
        if not new_batches(record):
            self._hear_again(record, run_state)
            return
        if not self._gradients.hear(record, comparable.log_loss_W):
            return
        self._makeup.hear(record)
        self._readings += 1
        scaled = self._scaled(run_state)
        if scaled:
            self._tell_scaled(record, run_state, scaled)
            return
        was_alarmed, self._alarmed = self._alarmed, self._gradients.alarmed
        if self._gradients.ready and not (self._alarmed and was_alarmed and self._readings % EVERY):
            self._judge(record, run_state)

    def _hear_again(self, record: StepRecord, run_state: RunState) -> None:
        """Batches that were read before: nothing new will come where set_epoch is missing."""
        if record.repeats is None or not record.norm_W:
            return
        self._again += 1
        if self._again % EVERY or not self._repeated.ready:
            return
        apart = self._repeated.apart()
        if apart is not None:
            self._tell_repeated(record, run_state, apart)
        elif self.case is None or "repeated" in self.case.whys:
            self.passed(record.step)

    def _tell_repeated(self, record: StepRecord, run_state: RunState, apart: Repeated) -> None:
        ranks = spoken(run_state.ranks((apart.worker,)))
        differs = (
            f"gradient norm is {math.exp(apart.level):.3g} times that of the others"
            if apart.sign == "norm"
            else f"direction agrees less with the others' (cosine {apart.level:+.2f})"
        )
        self.report(
            record.step,
            run_state,
            why=f"{ranks}'s {differs}, while its loss is like theirs: the mean over {apart.batches} batches that come "
            "again and again",
            causes={"faulty-device": 0.5, "different-computation": 0.5},
            workers=(apart.worker,),
            severity="warning",
            evidence={"batches": apart.batches, "level": round(apart.level, 4)},
            about="repeated",
        )

    def _judge(self, record: StepRecord, run_state: RunState) -> None:
        apart = self._gradients.apart() if self._alarmed else None
        if apart is None:
            self.passed(record.step)
        elif not self._data_differ(apart) and not run_state.scaled.undecided & set(apart.workers):
            self._accuse(record, run_state, apart)

    def _data_differ(self, apart: Apart) -> bool:
        """Then UN105 says so."""
        level, opposed = self._level(apart), apart.sign == "opposed"
        return any(
            self._gradients.loss_is_off(worker, apart.since) or (not opposed and self._makeup.explains(worker, level))
            for worker in apart.workers
        )

    def _scaled(self, run_state: RunState) -> dict[int, Scale]:
        """A loss that is summed grows with its tokens, and so does the gradient: UN105 says so."""
        found = run_state.scaled.found.items()
        return {worker: scale for worker, scale in found if not self._makeup.explains(worker, math.log(scale.factor))}

    def _tell_scaled(self, record: StepRecord, run_state: RunState, found: Mapping[int, Scale]) -> None:
        factor = next(iter(found.values())).factor
        since = min(scale.since for scale in found.values())
        self.report(
            record.step,
            run_state,
            why=f"the loss and the gradient of {spoken(run_state.ranks(tuple(found)))} are {factor:.3g} times those of "
            "the others, in every layer and at every step alike",
            causes={"scaled": 0.95},
            workers=tuple(found),
            severity="critical" if abs(math.log(factor)) > LARGE_NORM and batches_known(record) else "warning",
            evidence={"factor": round(factor, 3)},
            since=since,
            good=since - 1,
            about="scale",
        )

    def _accuse(self, record: StepRecord, run_state: RunState, apart: Apart) -> None:
        pair, known = len(record.norm_W) == 2, self._gradients.losses_known
        place = self._gradients.place(apart)
        certain = known and batches_known(record) and not pair and not _at_inputs(place)
        certain = certain and self._gradients.is_confirmed(apart)
        evidence = self._gradients.numbers(apart.workers[0])
        if place is not None:
            evidence["where"] = place.told(run_state)
        if pair:
            evidence["undecidable"] = f"between {spoken(run_state.ranks((0, 1)))}"
        self.report(
            record.step,
            run_state,
            why=self._between_two(run_state, apart) if pair else self._why(run_state, apart, place),
            causes=_causes(apart.sign, place, known),
            workers=() if pair else apart.workers,
            severity="critical" if certain and self._is_large(apart) else "warning",
            evidence=evidence,
            since=apart.since,
        )

    def _level(self, apart: Apart) -> float:
        peers = self._gradients.norms if apart.sign == "norm" else self._gradients.cosines
        return peers.level(apart.workers[0]) if peers is not None else math.nan

    def _is_large(self, apart: Apart) -> bool:
        if apart.sign == "opposed":
            return True
        level = self._level(apart)
        return abs(level) > LARGE_NORM if apart.sign == "norm" else -level > LARGE_COSINE

    def _why(self, run_state: RunState, apart: Apart, place: Place | None) -> str:
        loss = ", while its loss is like theirs" if self._gradients.losses_known else ""
        where = f"; it differs {place.told(run_state)}" if place is not None else ""
        ranks, level = spoken(run_state.ranks(apart.workers)), self._level(apart)
        if apart.sign == "opposed":
            return f"{ranks}'s direction points against the others'{loss}"
        if apart.sign == "cosine":
            return f"{ranks}'s direction agrees less with the others' (cosine {level:+.2f}){loss}"
        return f"{ranks}'s gradient norm is usually {math.exp(level):.3g} times that of the others{loss}{where}"

    def _between_two(self, run_state: RunState, apart: Apart) -> str:
        ratio = math.exp(self._level(apart))
        return (
            f"one gradient norm is usually {ratio:.3g} times the other; undecidable between "
            f"{spoken(run_state.ranks((0, 1)))} which is wrong"
        )


def _at_inputs(place: Place | None) -> bool:
    """What differs most in the first layers comes in with the data."""
    return place is not None and not place.even and place.most == 0


def _causes(sign: str, place: Place | None, losses_known: bool) -> dict[str, float]:
    if not losses_known:
        return {"data-of-another-kind": 0.4, "different-computation": 0.4, "faulty-device": 0.3}
    if _at_inputs(place):
        return {"data-of-another-kind": 0.6, "faulty-device": 0.4, "different-computation": 0.3}
    if sign == "opposed" or (place is not None and place.even):
        return {"different-computation": 0.7, "faulty-device": 0.5}
    return {"faulty-device": 0.6, "different-computation": 0.5}
