"""What the workers are, what unisono did, and what more workers would bring, as HTML."""

from __future__ import annotations

import time

from unisono.records import AttemptRecord, DecisionRecord
from unisono.records.decision_text import done_in_words, ranks_of
from unisono.show.analysis.checkup import count
from unisono.show.analysis.rank_differences import ranges
from unisono.show.page.html import Html, definitions, details, table, text
from unisono.show.page.page_model import PageModel
from unisono.show.text.catalogue import rule_named
from unisono.show.text.scaling_text import ASSUMED, caution, verdict

PLACES_SHOWN = 64
STATES = {
    "finished": "ended in good order",
    "running": "running",
    "crashed": "crashed",
    "killed": "killed, or gone without a word",
    "unknown": "not written down",
}


def actions(page_model: PageModel) -> Html:
    by_script = max(0, page_model.skipped - page_model.steering.skipped - page_model.skipped_by_guard)
    skipped = f"<p>The script or its loss scaler skipped {count(by_script, 'step')}.</p>" if by_script else ""
    if page_model.steering.steps:
        skipped = f"<p>unisono steered: {text(page_model.steering.words(page_model.ranks))}.</p>{skipped}"
    elif not page_model.decision_counts.decided:
        guarded = page_model.attempt is not None and page_model.attempt.guard
        idle = "The guard had nothing to do" if guarded else "unisono only listened"
        return f"<p>{idle}: it changed nothing in this run.</p>{skipped}"
    return _guarded(page_model) + skipped


def _guarded(page_model: PageModel) -> Html:
    decision_counts = page_model.decision_counts
    if not decision_counts.decided:
        return ""
    rows = [
        [
            f"{one.step:,}",
            done_in_words(one),
            ranges(ranks_of(one)),
            one.reason,
            _numbers(one),
            one.outcome,
            one.row,
            one.id,
        ]
        for one in decision_counts.newest
    ]
    newest = f" (the newest {len(rows)})" if decision_counts.decided > len(rows) else ""
    head = ("step", "what was done", "because of ranks", "why", "evidence", "what came of it", "rule", "decision")
    return f"<p>The guard {text(decision_counts.words())}.</p>" + table(head, rows, f"What the guard did{newest}")


def _numbers(record: DecisionRecord) -> str:
    return ", ".join(f"{name} {value:.4g}" for name, value in record.evidence.items())


def scaling(page_model: PageModel) -> Html:
    found = page_model.outlook()
    if found is None:
        return f"<p>No estimate: {text(page_model.readings.missing())}.</p>"
    cautions = "".join(f"<p>{text(words)}</p>" for words in caution(found, page_model.checkup().findings))
    return f"<p>{text(verdict(found))}</p>{cautions}<p>{text(ASSUMED)}</p>"


def facts(page_model: PageModel) -> Html:
    rows = [(name, text(value)) for name, value in _facts(page_model) if value]
    return definitions(rows) + _differences(page_model) + _workers(page_model.attempt) + _checks(page_model)


def _facts(page_model: PageModel) -> list[tuple[str, str]]:
    run, attempt = page_model.run, page_model.attempt
    seconds = max(0.0, page_model.newest - (page_model.began or page_model.newest))
    rows = [
        ("Run", run.run if run is not None else ""),
        ("Script", run.script if run is not None else ""),
        ("Began", _moment(page_model.began)),
        ("Lasted", _duration(seconds)),
        ("State", _state(page_model)),
        ("Attempts", str(page_model.attempts)),
        ("Workers", str(page_model.checkup().workers)),
        ("unisono", run.unisono if run is not None else ""),
    ]
    if attempt is not None:
        hosts = {worker.host for worker in attempt.workers if worker.host}
        rows += [
            ("Hosts", f"{len(hosts)}: {', '.join(sorted(hosts)[:8])}{', ...' * (len(hosts) > 8)}"),
            ("Parameters", f"{attempt.parameters:,}"),
            ("torch, Python", f"{attempt.torch}, {attempt.python}"),
            ("Steered by", attempt.steering),
            ("Guard", attempt.guard),
            ("Sketch", f"{attempt.sketch_length:,} numbers stand for the direction of a gradient"),
        ]
    if page_model.end is not None:
        rows.append(("Readings lost", f"{page_model.end.lost:,}"))
    return rows


def _state(page_model: PageModel) -> str:
    return STATES[page_model.checkup().heard.ended]


def _differences(page_model: PageModel) -> Html:
    found = page_model.checkup().differences
    rows = [[f"{one.topic}: {one.fact}", value, ranks] for one in found for value, ranks in one.values[:8]]
    return table(("fact", "value", "ranks"), rows, "Where the workers differ") if rows else ""


def _workers(attempt: AttemptRecord | None) -> Html:
    if attempt is None:
        return ""
    rows = [[str(one.rank), one.host, one.device, str(one.pid)] for one in attempt.workers[:PLACES_SHOWN]]
    more = len(attempt.workers) - len(rows)
    caption = f"Where each rank runs{f' (the first {len(rows)}; {more:,} more)' if more else ''}"
    return details("Where each rank runs", table(("rank", "host", "device", "process"), rows, caption))


def _checks(page_model: PageModel) -> Html:
    rows = [[code, rule_named(code).title(), result] for code, result in page_model.checkup().results()]
    return details("What was checked", table(("check", "looks for", "result"), rows, "Checks and their results"))


def _moment(seconds: float | None) -> str:
    return "" if seconds is None else time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(seconds))


def _duration(seconds: float) -> str:
    hours, rest = divmod(round(seconds), 3600)
    minutes, left = divmod(rest, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {left} s" if minutes else f"{left} s"
