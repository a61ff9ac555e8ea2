"""Pieces of HTML in which nothing from a run file can be anything but text."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Sequence
from typing import TypeAlias

from unisono.common.terminal import plain

Html: TypeAlias = str
"""Finished HTML; everything else goes through `text` first."""


def text(value: object) -> Html:
    return html.escape(plain(str(value)))


def code_in(value: str) -> Html:
    """Text in which what stands between backquotes is code."""
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", text(value))


def definitions(rows: Iterable[tuple[str, Html]]) -> Html:
    return "<dl>" + "".join(f"<dt>{text(name)}</dt><dd>{content}</dd>" for name, content in rows) + "</dl>"


def table(head: Sequence[str], rows: Iterable[Sequence[str]], caption: str) -> Html:
    titles = "".join(f'<th scope="col">{text(title)}</th>' for title in head)
    body = "".join(f"<tr>{''.join(f'<td>{text(cell)}</td>' for cell in row)}</tr>" for row in rows)
    return (
        f'<div class="scroll"><table><caption>{text(caption)}</caption><thead><tr>{titles}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
    )


def details(summary: str, content: Html) -> Html:
    return f"<details><summary>{text(summary)}</summary>{content}</details>"
