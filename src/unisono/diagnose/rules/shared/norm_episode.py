"""What happens after a gradient norm has shot up: who led, where in the model, and what becomes of the loss.

G = layer groups, W = workers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from unisono.diagnose.statistics import median, median_of_others, scatter
from unisono.records import Floats, StepRecord

GROWS = 2.0
RAISED = 1.5
DAMAGED = math.log(1.15)
LASTING = 10
LOST, LEARNT = 0.8, 0.5
"""Shares of the first losses: at the upper one nothing that was learnt is left, below the lower one much was."""

QUARTER = 0.25
MOST, SOME = 2, 4
"""Stretches that are waited for where half of what was learnt is gone, and where it is less."""

STAYS = 0.8
"""Share of its rise that the loss keeps from the first stretch to the last."""

WORSE_THAN_NEW = 3.0
MATTERS = 0.1
LEVEL = 0.95
STRETCH = 25
SOON, SETTLING, SETTLED = 3, 10, 50
"""Steps after the first large norm, between which the loss shows what that step did to the weights."""

ABSURD = 1e4
"""No batch makes a gradient so much longer."""

CLEAR = 4.0
LEADING = 5.0
CLEARLY_LARGER = 3.0
SHARE = 20


@dataclass(slots=True)
class Episode:
    first: StepRecord
    past: list[float]
    """Losses of the steps before."""

    start_loss: float
    """What an untrained model had; 0 where that is not known."""

    leader: int | None = None
    """The worker whose gradient alone was far too long at the first reading."""

    by_rate: bool = False
    """The learning rate had just jumped up."""

    by_loss: bool = False
    """Noticed by the loss; the norm may not have been heard."""

    hot: int = 0
    """Readings with a far too large norm."""

    since_hot: int = 0
    """Steps since the last of them."""

    peak: float = 0.0
    """Largest norm, as a multiple of the usual one."""

    ratio_G: Sequence[float | None] = ()
    """Each layer group at that reading, against its own past."""

    broke: int = 0
    """Steps in a row that were not finite."""

    losses: list[float] = field(default_factory=list)

    def heat(self) -> None:
        self.hot += 1
        self.since_hot = 0

    def follow(self, loss: float | None) -> None:
        self.since_hot += 1
        if loss is not None:
            self.losses.append(loss)

    @property
    def usual_loss(self) -> float | None:
        return median(self.past) if self.past else None

    def severity(self) -> str:
        if self.usual_loss is None:
            return "warning" if self.absurd or self.hot >= LASTING else "info"
        if self.lost():
            return "critical"
        harmed = self.hot and (self.absurd or self.grows() or self.damaged())
        return "warning" if harmed or self.set_back() else "info"

    @property
    def _worth_a_word(self) -> float:
        """A loss near zero may rise many times and still be small."""
        return MATTERS * self.start_loss

    @property
    def _signed(self) -> bool:
        """Losses on both sides of zero, as those of policy gradients, have no usual size to be a multiple of."""
        return min(self.past, default=0.0) < 0

    @property
    def absurd(self) -> bool:
        return self.peak > ABSURD

    def grows(self) -> bool:
        """The loss went on rising after its largest jump. Data that change are harder at once."""
        usual = self.usual_loss
        if (
            usual is None
            or usual <= 0
            or self._signed
            or not self.losses
            or median(self.losses[-SETTLING:]) < max(RAISED * usual, self._worth_a_word)
        ):
            return False
        jumped = self._jumped_after()
        if len(self.losses) < jumped + SETTLING + SOON:
            return False
        at_once, after = median(self.losses[jumped : jumped + SOON]), median(self.losses[jumped + SOON :][:SETTLING])
        worse_than_new = self.own_doing and 0 < WORSE_THAN_NEW * self.start_loss < after
        return after > GROWS * at_once or worse_than_new

    @property
    def own_doing(self) -> bool:
        """A step did it. Where the loss rose together with the norm, the data may have become harder, for everybody."""
        return (self.by_rate or self.began_as_usual) and self._jumped_after() <= SETTLING

    def _jumped_after(self) -> int:
        """Steps from the first large norm to the largest jump of the loss."""
        jumps = [later / earlier for earlier, later in pairwise([self.usual_loss or 0.0, *self.losses]) if earlier > 0]
        return jumps.index(max(jumps)) if jumps else 0

    def _jumped_late(self) -> bool:
        """The loss rose at once when the large norm was over: something else did that."""
        jumped = self._jumped_after()
        before, after = self.losses[jumped - SETTLING : jumped], self.losses[jumped : jumped + SETTLING]
        return jumped > SETTLING and median(after) > RAISED * median(before)

    def lost(self) -> bool:
        """The loss is back where it was before anything was learnt, and does not fall."""
        usual = self.usual_loss
        if usual is None or len(self.losses) < 2 * STRETCH or self.peak < CLEARLY_LARGER:
            return False
        earlier, now = median(self.losses[-2 * STRETCH : -STRETCH]), median(self.losses[-STRETCH:])
        if now < LEVEL * earlier:
            return False
        forgotten = self.own_doing and usual < LEARNT * self.start_loss and now > LOST * self.start_loss
        if self._signed:
            return forgotten and now > max(self.past)
        return forgotten or (self.grows() and now > GROWS * max(self.past))

    def set_back(self) -> bool:
        """Since the learning rate jumped up, a quarter of what was learnt is gone, with gradients clearly larger.

        A warm restart may take as much, and gives it back.
        """
        usual = self.usual_loss
        if usual is None or not self.by_rate or self.peak < CLEARLY_LARGER or usual > LEARNT * self.start_loss:
            return False
        stretches = [self.losses[at : at + STRETCH] for at in range(STRETCH, len(self.losses), STRETCH)]
        rises = [median(losses) - usual for losses in stretches if len(losses) == STRETCH]
        learnt = self.start_loss - usual
        if len(rises) < MOST or min(rises) <= QUARTER * learnt:
            return False
        stays = rises[-1] > STAYS * rises[0]
        # Where most is gone the loss is so wild that only a fall from stretch to stretch is one.
        if sum(rises[:MOST]) > MOST * learnt / 2:
            return stays or any(later > earlier for earlier, later in pairwise(rises))
        return stays and len(rises) >= SOME

    @property
    def began_as_usual(self) -> bool:
        """The loss was as usual at the first large norm, but for a worker that led: the step came before the damage."""
        loss_W = [loss for loss in self.first.loss_W if loss is not None]
        return not self.by_loss and bool(loss_W and self.past) and median(loss_W) <= max(self.past)

    def damaged(self) -> bool:
        """The loss was as usual at the large norm and is raised for a while after it."""
        if not self.began_as_usual or min(self.past) <= 0 or len(self.past) < SETTLING or self._jumped_late():
            return False
        if median(self.losses[SETTLING:] or [0.0]) < self._worth_a_word:
            return False
        later = self.losses[SETTLING:SETTLED]
        stretches = [later[at : at + SHARE] for at in range(0, len(later), SHARE)]
        return any(len(stretch) == SHARE and self._is_raised(stretch) for stretch in stretches)

    def _is_raised(self, losses: list[float]) -> bool:
        before = [math.log(loss) for loss in self.past]
        rise = math.log(max(median(losses), min(self.past))) - median(before)
        # The median of n numbers errs by 1.25 / sqrt(n) of their noise.
        error = 1.25 * scatter(before) * math.sqrt(1 / len(losses) + 1 / len(before))
        return rise > max(DAMAGED, CLEAR * error)


def leader(record: StepRecord, past_TW: Sequence[Floats]) -> int | None:
    """The worker whose own gradient is far longer than the others', where theirs are as usual."""
    norm_W, usual = _known(record.norm_W), [median(known) for past_W in past_TW if (known := _known(past_W))]
    if len(norm_W) < 3 or not usual:
        return None
    longest = max(range(len(norm_W)), key=norm_W.__getitem__)
    others = median_of_others(norm_W, longest)
    return longest if norm_W[longest] > LEADING * others and others < CLEARLY_LARGER * median(usual) else None


def _known(norm_W: Floats) -> list[float]:
    """Empty unless all are."""
    known = [norm for norm in norm_W if norm is not None]
    return known if len(known) == len(norm_W) else []
