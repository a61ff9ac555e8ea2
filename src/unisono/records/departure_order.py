"""Who went first: when one rank goes, the others lose their connection to it, and the launcher ends them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from unisono.records.run import DepartureRecord

_WORDS = (
    "(connection (closed|reset|refused)|closed by peer|broken pipe|socket (closed|is closed|timeout)|remote process"
    "|ncclRemoteError|pair closure|timed out|timeout|watchdog|aborted on rank|failed to (connect|recv|send|pass))"
)
LOST_PEER = re.compile(
    "Dist(Network|Store)Error"
    f"|Dist(Backend)?Error: .*{_WORDS}"
    f"|RuntimeError: (?=.*(gloo|nccl|TCPStore|c10d|monitoredBarrier)).*{_WORDS}"
    "|RuntimeError: (connection closed by peer|application timeout caused pair)",
    re.IGNORECASE,
)
"""An exception that another rank's end has caused, by kind and text: those of torch's collectives and of its store. The
same words in any other, such as an `OSError`, are about a connection of the rank's own, to a disk or a database."""

_WENT = {
    "signal": "was ended by a signal",
    "exception": "was ended by an exception",
    "exit": "ended by itself",
    "silence": "has fallen silent",
}

SOON = 2.0
"""Seconds within which what is seen of one rank may be the cause of what another one says."""

IN_A_ROW = 0.25
"""Seconds between two signals of which the second may be the launcher's answer to the first."""


def lost_a_peer(departure: DepartureRecord) -> bool:
    return departure.how == "exception" and blames_a_peer(departure.detail)


def blames_a_peer(error: str) -> bool:
    """:param error: Its kind and first line."""
    return LOST_PEER.match(error) is not None


def in_words(departure: DepartureRecord, host: str = "") -> str:
    place = f" (on {host})" if host else ""
    when = f"after step {departure.step:,}" if departure.step >= 0 else "before its first step"
    detail = f": {departure.detail}" if departure.detail else ""
    return f"rank {departure.rank}{place} {_WENT.get(departure.how, 'went')} {when}{detail}"


def latest_of_each(departures: Iterable[DepartureRecord]) -> list[DepartureRecord]:
    """One for each rank: its own word before what others saw of it, and what was seen before mere silence."""
    known: dict[int, DepartureRecord] = {}
    for departure in departures:
        before = known.get(departure.rank)
        if before is None or _certainty(departure) > _certainty(before):
            known[departure.rank] = departure
    return list(known.values())


def first_to_go(departures: Sequence[DepartureRecord], world: int) -> list[DepartureRecord]:
    """Those whose going is not explained by another's; empty where that cannot be told."""
    unexplained = _unexplained(departures)
    if _ended_alike(departures, world):
        return []
    if not unexplained:
        return _first_signalled([one for one in departures if one.how == "signal"]) if world > 1 else []
    words = [one for one in unexplained if one.how in ("exception", "exit")]
    wordless = [one for one in unexplained if one.how not in ("exception", "exit")]
    if not words or not wordless:
        return unexplained
    # One that died without a word may be what another complains of in words that we do not know.
    earlier, later = sorted((words, wordless), key=lambda group: min(one.time for one in group))
    return earlier if min(one.time for one in later) - max(one.time for one in earlier) > SOON else []


def stopped_together(departures: Sequence[DepartureRecord], world: int) -> bool:
    """The job was stopped from outside, or has ended as a whole: nobody went, all were sent away."""
    signalled = any(one.how == "signal" for one in departures)
    sent_away = signalled and not _unexplained(departures) and not first_to_go(departures, world)
    return sent_away or _ended_alike(departures, world)


def _ended_alike(departures: Sequence[DepartureRecord], world: int) -> bool:
    """All have ended by themselves with the same exit code: so the job has ended, and nobody was left behind."""
    alike = len({(one.how, one.detail) for one in departures}) == 1
    return alike and len(departures) == world and departures[0].how == "exit"


def _unexplained(departures: Sequence[DepartureRecord]) -> list[DepartureRecord]:
    return [one for one in departures if one.how != "signal" and not lost_a_peer(one)]


def _first_signalled(signalled: list[DepartureRecord]) -> list[DepartureRecord]:
    """A launcher ends the others when one has ended; one that is stopped itself ends all at once."""
    ordered = sorted(signalled, key=lambda one: one.time)
    apart = len(ordered) == 1 or (len(ordered) > 1 and ordered[1].time - ordered[0].time >= IN_A_ROW)
    return ordered[:1] if apart else []


def _certainty(departure: DepartureRecord) -> int:
    if departure.told_by == departure.rank:
        return 2
    return 0 if departure.how == "silence" else 1
