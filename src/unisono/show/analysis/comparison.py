"""Two runs compared: findings that are gone, still there or new, how the numbers changed, where settings differ."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from unisono.show.analysis.checkup import Checkup, strict
from unisono.show.analysis.finding_changes import FindingChange, changes
from unisono.show.analysis.lost_work import Loss, lost_work
from unisono.show.analysis.run_digest import Examined
from unisono.show.analysis.run_settings import Setting, cautions, differing
from unisono.show.text.comparison_verdict import verdict
from unisono.show.text.side_by_side import ROWS, settled

NAMES = ("first", "second")


@dataclass(frozen=True, slots=True)
class Pair:
    """The same of both runs; `None` where it is not known."""

    first: float | None
    second: float | None

    @property
    def ratio(self) -> float | None:
        """Second to first."""
        return None if not self.first or self.second is None else self.second / self.first

    def as_dict(self) -> dict[str, float | None]:
        return {"first": self.first, "second": self.second, "ratio": self.ratio}


@dataclass(frozen=True, slots=True)
class Comparison:
    verdict: str
    """`healthy`, `fixed`, `partly-fixed`, `not-fixed`, `new-fault` or `cannot-tell`."""

    verdict_text: str
    first: Checkup
    second: Checkup
    cautions: tuple[str, ...]
    """What keeps the runs from being comparable."""

    changes: tuple[FindingChange, ...]
    common_steps: range
    """Empty where the runs have none in common; the curves are then those of all steps."""

    curves: tuple[Mapping[str, Sequence[float]], Mapping[str, Sequence[float]]]
    """Of each run, by measure: means over stretches of steps."""

    seconds_per_step: Pair
    lost: tuple[tuple[Loss, ...], tuple[Loss, ...]]
    """What the findings of each run have cost."""

    settings: tuple[Setting, ...]
    """Where they differ."""

    def as_dict(self) -> dict[str, Any]:
        """As `unisono compare --json` prints it."""
        steps = self.common_steps
        content = {
            "verdict": self.verdict,
            "verdict_text": self.verdict_text,
            "first": _summary(self.first),
            "second": _summary(self.second),
            "cautions": list(self.cautions),
            "changes": [change.as_dict() for change in self.changes],
            "common_steps": {"first": steps[0], "last": steps[-1]} if steps else None,
            "numbers": {field: self.pair(field).as_dict() for field in ROWS.values()},
            "effective_workers": self.effective_workers.as_dict(),
            "seconds_per_step": self.seconds_per_step.as_dict(),
            "lost": {name: [asdict(loss) for loss in lost] for name, lost in zip(NAMES, self.lost, strict=True)},
            "settings": [asdict(setting) for setting in self.settings],
        }
        return {name: strict(part) for name, part in content.items()}

    @property
    def effective_workers(self) -> Pair:
        return self.pair("effective_workers")

    def pair(self, field: str) -> Pair:
        """Means over the last half of the steps that are compared."""
        return Pair(*(settled(curves[field]) for curves in self.curves))


def compare(first: Examined, second: Examined) -> Comparison:
    """The first run is taken for the one before a change, the second for the one after it."""
    changed = changes(first, second)
    word, text = verdict(changed, first.checkup, second.checkup)
    curves, common = _cut(first, second)
    return Comparison(
        verdict=word,
        verdict_text=text,
        first=first.checkup,
        second=second.checkup,
        cautions=(*cautions(first.settings, second.settings), *_swapped(first, second)),
        changes=changed,
        common_steps=common,
        curves=curves,
        seconds_per_step=Pair(first.times.seconds_per_step, second.times.seconds_per_step),
        lost=(
            tuple(lost_work(first.checkup.findings, first.times)),
            tuple(lost_work(second.checkup.findings, second.times)),
        ),
        settings=differing(first.settings, second.settings),
    )


def _cut(first: Examined, second: Examined) -> tuple[tuple[dict[str, list[float]], dict[str, list[float]]], range]:
    """To the steps that both have: a loss at step 100 says nothing about one at step 10,000."""
    one, other = first.curves.steps, second.curves.steps
    common = range(max(one.start, other.start), min(one.stop, other.stop))
    return (first.curves.over(common or one), second.curves.over(common or other)), common


def _swapped(first: Examined, second: Examined) -> list[str]:
    if first.started is None or second.started is None or first.started <= second.started:
        return []
    return ["the second run began before the first; should they be given the other way round?"]


def _summary(checkup: Checkup) -> dict[str, Any]:
    kept = ("run", "steps", "workers", "verdict", "verdict_text", "last_healthy_step", "muted", "unreadable_lines")
    content = checkup.as_dict()
    return {name: content[name] for name in kept}
