"""Did the fix work? One word for programs, one sentence for people."""

from __future__ import annotations

from collections.abc import Sequence

from unisono.show.analysis.checkup import Checkup, count
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
)
from unisono.show.text.findings import spoken_ranks, spoken_steps

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
    for which, codes in zip(("first", "second"), passed, strict=True):
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
