"""The page that lists the runs."""

from __future__ import annotations

import time
from collections.abc import Sequence
from html import escape
from pathlib import Path

from unisono.common.terminal import plain
from unisono.show.live_server.run_index import Entry
from unisono.show.live_server.run_status import condition

MOST_SHOWN = 200
STATIC = {"list.css": "text/css; charset=utf-8", "list.js": "text/javascript; charset=utf-8"}
PAGE = """\
<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Runs - unisono</title>
<link rel="icon" href="data:,">
<link rel="stylesheet" href="/static/list.css">
<script src="/static/list.js" defer></script>
</head>
<body>
<header><p class="brand">unisono</p><h1>Runs</h1><p>in {place}</p><p id="trouble" role="status"></p></header>
<main id="runs">
{content}
</main>
</body>
</html>
"""
TABLE = """\
<table>
<thead><tr><th scope="col">run</th><th scope="col">script</th><th scope="col">started</th>\
<th scope="col" class="number">last step</th><th scope="col">state</th></tr></thead>
<tbody>
{rows}
</tbody>
</table>"""
ROW = """\
<tr class="{status}"><th scope="row"><a href="/run/{id}/">{name}</a></th><td>{script}</td><td>{started}</td>\
<td class="number">{step}</td><td class="state">{state}</td></tr>"""


def list_page(place: str, entries: Sequence[Entry], now: float) -> str:
    """Names come from folders and files that anybody may have written: all text is escaped here."""
    shown = entries[:MOST_SHOWN]
    content = TABLE.format(rows="\n".join(_row(entry, now) for entry in shown))
    if len(entries) > len(shown):
        content += f"\n<p>{len(entries) - len(shown):,} older ones are not shown.</p>"
    if not entries:
        content = "<p>No run yet. The first one appears here as soon as it is written.</p>"
    return PAGE.format(place=escape(place), content=content)


def static_files() -> dict[str, tuple[str, bytes]]:
    """Content type and content by name."""
    return {name: (kind, Path(__file__).with_name(name).read_bytes()) for name, kind in STATIC.items()}


def _row(entry: Entry, now: float) -> str:
    header = entry.header
    status, state = condition(header.ended, header.modified, now)
    return ROW.format(
        status=status,
        id=entry.id,
        name=escape(entry.name),
        script=escape(plain(header.script)),
        started=_moment(header.started),
        step="" if header.step is None else f"{header.step:,}",
        state=escape(state),
    )


def _moment(seconds: float) -> str:
    try:
        return time.strftime("%Y-%m-%d %H:%M", time.localtime(seconds))
    except (ValueError, OverflowError, OSError):
        return ""
