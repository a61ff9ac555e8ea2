"""What is answered to which address, and the list of runs. Only addresses that stand in a table have an answer."""

from __future__ import annotations

import gzip
import hashlib
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from html import escape
from http import HTTPStatus
from pathlib import Path
from urllib.parse import parse_qs

from unisono.common.terminal import plain
from unisono.show.live_server.live_runs import Followers
from unisono.show.live_server.run_index import Entry, RunIndex, condition

HTML, JSON, TEXT = "text/html; charset=utf-8", "application/json", "text/plain; charset=utf-8"
RUN = re.compile(r"/run/([0-9a-f]{12})/(state)?")
MOST_FIELDS = 8


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    status: HTTPStatus
    kind: str = TEXT
    body: bytes = b""
    gzipped: bytes = b""
    """The same, packed; empty where that is not worth it."""

    tag: str = ""
    """Changes with the content."""

    may_keep: bool = False
    """The browser may keep it, and ask by the tag whether it still holds."""

    def unless(self, known: str) -> HttpAnswer:
        """Nothing but `not modified` for a browser that knows the tag already."""
        tags = {tag.strip().removeprefix("W/").strip('"') for tag in known.split(",")}
        return replace(self, status=HTTPStatus.NOT_MODIFIED, body=b"", gzipped=b"") if self.tag in tags - {""} else self


def refusal(status: HTTPStatus) -> HttpAnswer:
    """The same for everybody: nothing of the question comes back."""
    return HttpAnswer(status, body=f"{status.value} {status.phrase}\n".encode())


class Site:
    """All that can be asked for. For any thread.

    :param shell: Makes a run's page from its title and the address of its state.
    :param static: Content type and content by name.
    """

    def __init__(
        self,
        run_index: RunIndex,
        followers: Followers,
        shell: Callable[[str, str], str],
        static: Mapping[str, tuple[str, bytes]],
    ) -> None:
        self._run_index, self._followers, self._shell = run_index, followers, shell
        files = {**static, **static_files()}
        self._static = {f"/static/{name}": _packed(*file, may_keep=True) for name, file in files.items()}

    def answer(self, target: str) -> HttpAnswer:
        """To a target as it stands in the request line; its path is not decoded, for none that exists has to be."""
        path, _, query = target.partition("?")
        if path in self._static:
            return self._static[path]
        if path == "/favicon.ico":  # every browser asks for it, and complains to the user if it is not there
            return HttpAnswer(HTTPStatus.NO_CONTENT)
        if path == "/":
            only = self._run_index.only()
            return self._list() if only is None else self._page(only)
        asked = RUN.fullmatch(path)
        entry = self._run_index.find(asked[1]) if asked else None
        if asked is None or entry is None:
            return refusal(HTTPStatus.NOT_FOUND)
        return self._state(entry, query) if asked[2] else self._page(entry)

    def _list(self) -> HttpAnswer:
        return _packed(HTML, list_page(self._run_index.name, self._run_index.entries(), time.time()).encode())

    def _page(self, entry: Entry) -> HttpAnswer:
        return _packed(HTML, self._shell(entry.name, f"/run/{entry.id}/state").encode())

    def _state(self, entry: Entry, query: str) -> HttpAnswer:
        try:
            fields = parse_qs(query, max_num_fields=MOST_FIELDS)
        except ValueError:
            return refusal(HTTPStatus.BAD_REQUEST)
        have, known = (fields.get(name, [""])[-1] for name in ("have", "version"))
        shown = self._followers.of(entry.path).shown(have, known)
        if shown.version == known:
            return HttpAnswer(HTTPStatus.NO_CONTENT)
        return HttpAnswer(HTTPStatus.OK, JSON, shown.body, shown.gzipped, shown.version)

    def close(self) -> None:
        self._followers.close()


def _packed(kind: str, body: bytes, may_keep: bool = False) -> HttpAnswer:
    tag = hashlib.blake2b(body, digest_size=8).hexdigest()
    return HttpAnswer(HTTPStatus.OK, kind, body, gzip.compress(body, mtime=0), tag, may_keep)


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
