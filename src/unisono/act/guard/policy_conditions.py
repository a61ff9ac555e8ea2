"""When the rows that come with unisono hold: what the manuals recommend, one function each. W = workers."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from statistics import median

from unisono.act.guard.step_state import SPAN, Reason, Situation
from unisono.records.finding import Finding

STANDS_OUT = 5.0
"""A worker's batch is extreme only if its loss is so many times that of the others at the same step."""

WITH_LOSSES = 4.0
"""Where the losses of most workers rise together, a norm has to be so many times as extreme: harder data look like
that, and skipping a step does not make them easier. Not so if the limit is a number of the user's own, or if the losses
of most workers are extreme, too."""

EXPLODED = ("UN401", "UN404")
REPLICAS_DIFFER = ("UN202", "UN301", "UN303", "UN304")
IDENTICAL_RANDOMNESS = ("UN201",)
CLIP_AT = 2.0
"""Adaptive clipping: so many times the median of the recent norms."""


@dataclass(frozen=True, slots=True)
class NormLimit:
    """How many times the end of its usual range a norm may be."""

    alone: float
    with_losses: float
    """While the losses of most workers rise together."""

    @classmethod
    def of(cls, asked: float | bool, usual: float) -> NormLimit | None:
        """:param asked: A number counts as it is; True: the usual one; False: none."""
        if asked is True:
            return cls(usual, usual * WITH_LOSSES)
        return cls(float(asked), float(asked)) if asked else None


def spike(now: Situation, norm_spike: NormLimit | None, loss_spike: float) -> Reason | None:
    """What is not finite or extreme about a step."""
    return not_finite(now) or extreme(now, norm_spike, loss_spike)


def not_finite(now: Situation) -> Reason | None:
    """A loss, a worker's gradients or their average, where no loss scaler takes care of it."""
    if now.scaled:
        return None
    losses = _ranks(now, [loss is not None and not math.isfinite(loss) for loss in now.loss_W])
    if losses:
        return Reason(f"{_whose(losses, now)} loss is not finite", losses)
    gradients = _ranks(now, [finite is False for finite in now.finite_W])
    if gradients:
        return Reason(f"{_whose(gradients, now)} gradients are not finite", gradients)
    is_finite = now.norm is None or math.isfinite(now.norm)
    return None if is_finite else Reason("the averaged gradient is not finite")


def extreme(now: Situation, norm_spike: NormLimit | None, loss_spike: float) -> Reason | None:
    """A norm or a worker's loss far outside its recent past. Without a limit it is not looked at."""
    loss = _extreme_loss(now, loss_spike) if loss_spike else None
    norm = _extreme_norm(now, norm_spike, loss_spike) if norm_spike else None
    return _with_culprit(norm, loss) or loss


def exploded(
    now: Situation, limit: NormLimit, persistent: int, norm_spike: NormLimit | None, loss_spike: float
) -> Reason | None:
    """Something to roll back from: a norm beyond `limit`, the `persistent`-th spike of late, or a critical finding."""
    if found := _extreme_norm(now, limit, loss_spike):
        return _with_culprit(found, _extreme_loss(now, loss_spike) if loss_spike else None)
    if found := persists(now, persistent, norm_spike, loss_spike):
        return found
    news = [one for one in now.findings if one.severity == "critical"]
    return on_finding(now, EXPLODED, news, has_begun=True)


def persists(now: Situation, count: int, norm_spike: NormLimit | None, loss_spike: float) -> Reason | None:
    """The `count`-th spike within a few steps."""
    found = spike(now, norm_spike, loss_spike)
    if found is None or now.spikes + 1 < count:
        return None
    words = f"{found.words}; spike {now.spikes + 1} within a few steps"
    return Reason(words, found.ranks, {**found.evidence, "spikes": now.spikes + 1.0}, since=now.step - SPAN)


def on_finding(
    now: Situation, codes: Collection[str], findings: Sequence[Finding] | None = None, has_begun: bool = False
) -> Reason | None:
    """An open finding of these codes that is at least a warning.

    :param has_begun: The trouble goes back to the finding's first step.
    """
    for one in now.findings if findings is None else findings:
        if one.code in codes and one.state == "open" and one.at_least("warning"):
            words = f"{one.code}: {one.why}" if one.why else f"{one.code}: {one.title}"
            return Reason(words, one.ranks, since=one.first_step if has_begun else None, seen=one.last_step)
    return None


def critical(now: Situation) -> Reason | None:
    news = [one for one in now.findings if one.severity == "critical"]
    return on_finding(now, {one.code for one in news}, news)


def due(now: Situation, every: int) -> Reason | None:
    if now.since_check < every:
        return None
    return Reason(f"replicas were last compared in full {now.since_check:,} steps ago")


def above(now: Situation, limit: float | None) -> Reason | None:
    """A norm to clip.

    :param limit: `None`: twice the median of the recent norms, once that is known.
    """
    if limit is None:
        limit = None if now.recent_norm is None else CLIP_AT * now.recent_norm
    if not limit or now.norm is None or not math.isfinite(now.norm) or now.norm <= limit:
        return None
    words = f"the gradient's norm is {_number(now.norm)}, the limit {_number(limit)}"
    return Reason(words, evidence={"norm": now.norm, "limit": limit}, argument=limit / now.norm)


def _extreme_norm(now: Situation, limit: NormLimit, loss_spike: float) -> Reason | None:
    ratio, mild = now.norm_ratio, now.risen and not (loss_spike and score_of_most(now) > loss_spike)
    if now.norm is None or ratio is None or ratio <= (limit.with_losses if mild else limit.alone):
        return None
    return Reason(
        f"the gradient's norm is {_number(now.norm)}; usually it is at most {_number(now.norm / ratio)}",
        evidence={"norm": now.norm, "norm_ratio": ratio, "recent_norm": now.recent_norm or 0.0},
    )


def _with_culprit(norm: Reason | None, loss: Reason | None) -> Reason | None:
    """The averaged gradient is everybody's; a worker's loss at the same step tells whose batch it was."""
    if norm is None or loss is None:
        return norm
    return replace(
        norm, words=f"{norm.words}; {loss.words}", ranks=loss.ranks, evidence={**loss.evidence, **norm.evidence}
    )


def _extreme_loss(now: Situation, limit: float) -> Reason | None:
    score_W = [score or 0.0 for score in now.loss_score_W]
    far_W = [score > limit and stands_out(now, worker) for worker, score in enumerate(score_W)]
    ranks = _ranks(now, far_W)
    if not ranks:
        return None
    worst = max((worker for worker, far in enumerate(far_W) if far), key=score_W.__getitem__)
    score, loss = score_W[worst], now.loss_W[worst]
    words = f"{_whose(ranks, now)} loss is {_number(loss)}, {_number(score)} times as far from the recent ones as usual"
    return Reason(words, ranks, {"loss": loss or 0.0, "loss_score": score})


def score_of_most(now: Situation) -> float:
    """The largest loss score that more than half of the workers reach."""
    score_W = sorted((score or 0.0 for score in now.loss_score_W), reverse=True)
    return score_W[len(score_W) // 2] if score_W else 0.0


def stands_out(now: Situation, worker: int) -> bool:
    """Among the losses of this step. Without others, a bad batch cannot be told from data that have become harder."""
    own = now.loss_W[worker]
    known = [loss for loss in (*now.loss_W[:worker], *now.loss_W[worker + 1 :]) if loss is not None]
    if own is None or not known:
        return False
    others = median(known)
    return own - others > (STANDS_OUT - 1) * abs(others)


def _ranks(now: Situation, chosen_W: Sequence[bool]) -> tuple[int, ...]:
    return tuple(now.rank(worker) for worker, chosen in enumerate(chosen_W) if chosen)


def _whose(ranks: Sequence[int], now: Situation) -> str:
    if len(ranks) == 1:
        return f"rank {ranks[0]}'s"
    if len(ranks) == len(now.loss_W):
        return "every worker's"
    return f"the ranks {', '.join(map(str, ranks[:-1]))} and {ranks[-1]}'s"


def _number(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.3g}"
