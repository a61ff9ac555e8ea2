"""Two runs compared: findings that are gone, still there or new, how the numbers changed, where settings differ."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from unisono.show.analysis.checkup import Checkup, count, strict
from unisono.show.analysis.finding_changes import (
    AGAIN,
    GONE,
    MILDER,
    MOVED,
    NEW,
    SEEN_NOW,
    STILL,
    UNTOLD,
    FindingChange,
    changes,
)
from unisono.show.analysis.lost_work import Loss, lost_work
from unisono.show.analysis.run_digest import Examined
from unisono.show.analysis.run_settings import Setting, cautions, differing
from unisono.show.text.findings import spoken_ranks, spoken_steps
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
        cautions=(
            *_doubts(first.checkup, second.checkup),
            *cautions(first.settings, second.settings),
            *_swapped(first, second),
        ),
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


def _doubts(*checkups: Checkup) -> list[str]:
    """What is not known of a run that was not heard whole, or did not end well."""
    pairs = zip(NAMES, checkups, strict=True)
    return [f"the {name} run: {one.heard.why}" for name, one in pairs if one.is_broken or one.heard.too_little]


def _swapped(first: Examined, second: Examined) -> list[str]:
    if first.started is None or second.started is None or first.started <= second.started:
        return []
    return ["the second run began before the first; should they be given the other way round?"]


def _summary(checkup: Checkup) -> dict[str, Any]:
    kept = (
        "run",
        "steps",
        "workers",
        "verdict",
        "verdict_text",
        "heard",
        "last_healthy_step",
        "muted",
        "unreadable_lines",
    )
    content = checkup.as_dict()
    return {name: content[name] for name in kept}


PREFIXES = {
    "fixed": "fixed: ",
    "partly-fixed": "partly fixed: ",
    "not-fixed": "not fixed: ",
    "new-fault": "",
    "cannot-tell": "cannot tell: ",
}
REASONS_SHOWN = 2


def verdict(changes: Sequence[FindingChange], first: Checkup, second: Checkup) -> tuple[str, str]:
    """The word is `healthy` or one of `PREFIXES`."""
    if all(change.status in (NEW, SEEN_NOW) for change in changes):
        return _without_a_fault_before(changes, first, second)
    word = _word(changes)
    good = [*_gone(changes, word == "fixed"), *(f"{one.code} is only information now" for one in _of(changes, MILDER))]
    bad = [*_remaining(changes), *_returned(changes), *_untold(changes), *_arrived(changes)]
    prefix = PREFIXES[word]
    if word == "cannot-tell" and all(change.waits for change in _of(changes, UNTOLD)):
        prefix = "cannot tell yet: "
    return word, prefix + ", ".join(good) + (", but " if good and bad else "") + "; ".join(bad)


def _word(changes: Sequence[FindingChange]) -> str:
    if _of(changes, STILL, MOVED):
        return "partly-fixed" if _of(changes, GONE, MILDER) else "not-fixed"
    if _of(changes, UNTOLD):
        return "cannot-tell"
    if _of(changes, AGAIN):
        return "partly-fixed"
    return "new-fault" if _open(_of(changes, NEW, SEEN_NOW)) else "fixed"


def _without_a_fault_before(changes: Sequence[FindingChange], first: Checkup, second: Checkup) -> tuple[str, str]:
    if _open(changes):
        return "new-fault", ("worse: " if _open(_of(changes, NEW)) else "") + "; ".join(_arrived(changes))
    passed = [{code for code, state in run.checks.items() if state == "passed"} for run in (first, second)]
    for which, run, codes in zip(NAMES, (first, second), passed, strict=True):
        if run.verdict in ("broken", "unheard"):
            return "cannot-tell", f"cannot tell: the {which} run is {run.verdict_text}"
        if not codes:
            return "cannot-tell", f"cannot tell: nothing could be checked in the {which} run"
    text = f"both healthy: {count(len(passed[0] & passed[1]), 'check')} passed in both"
    return "healthy", "; ".join([text, *_arrived(changes)])


def _gone(changes: Sequence[FindingChange], is_all: bool) -> list[str]:
    gone = _of(changes, GONE)
    if not gone:
        return []
    checked = min(change.checked_steps or 0 for change in gone)
    # What had passed by itself was not mended by anybody.
    was_over = all(change.newest.state == "resolved" for change in gone)
    words = _has(gone, "not come back") if was_over else _is(gone, "gone")
    return [words + (f", checked over {count(checked, 'step')}" if is_all else "")]


def _remaining(changes: Sequence[FindingChange]) -> list[str]:
    still, moved = _of(changes, STILL), _of(changes, MOVED)
    told = [_is(still, "still there") + _since(still)] if still else []
    for change in moved:
        before = spoken_ranks(change.first) if change.first is not None else ""
        told.append(f"{change.code} has moved from {before} to {spoken_ranks(change.newest)}")
    return told


def _returned(changes: Sequence[FindingChange]) -> list[str]:
    return [f"{change.code} came again ({spoken_steps(change.newest)})" for change in _of(changes, AGAIN)]


def _untold(changes: Sequence[FindingChange]) -> list[str]:
    reasons = [reason for change in _of(changes, UNTOLD) for reason in change.remarks]
    more = len(reasons) - REASONS_SHOWN
    return reasons[:REASONS_SHOWN] + ([f"and so for {count(more, 'more finding')}"] if more > 0 else [])


def _arrived(changes: Sequence[FindingChange]) -> list[str]:
    new, seen = _open(_of(changes, NEW)), _open(_of(changes, SEEN_NOW))
    over = [change for change in _of(changes, NEW, SEEN_NOW) if change.newest.state == "resolved"]
    told = [_is(new, "new") + _since(new)] if new else []
    told += [_is(seen, "there") + _since(seen) + ", which the first run could not have shown"] if seen else []
    return told + [f"{change.code} came up ({spoken_steps(change.newest)})" for change in over]


def _since(changes: Sequence[FindingChange]) -> str:
    """Of one alone; empty where the second run has it as a symptom only."""
    found = changes[0].second if len(changes) == 1 else None
    return f", {spoken_steps(found)}" if found is not None else ""


def _of(changes: Sequence[FindingChange], *statuses: str) -> list[FindingChange]:
    return [change for change in changes if change.status in statuses]


def _open(changes: Sequence[FindingChange]) -> list[FindingChange]:
    return [change for change in changes if change.newest.state == "open"]


def _is(changes: Sequence[FindingChange], what: str) -> str:
    return f"{_named(changes)} {'is' if len(changes) == 1 else 'are'} {what}"


def _has(changes: Sequence[FindingChange], what: str) -> str:
    return f"{_named(changes)} {'has' if len(changes) == 1 else 'have'} {what}"


def _named(changes: Sequence[FindingChange]) -> str:
    """`UN101`, `UN101 and UN301`, `UN101, UN103 and UN301`."""
    codes = [change.code for change in changes]
    return " and ".join(filter(None, [", ".join(codes[:-1]), codes[-1]]))
