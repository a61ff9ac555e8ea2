"""The head of a request: read within limits of time and size, and checked before anything is answered."""

from __future__ import annotations

import re
import socket
import time
from email.message import Message

SECONDS = 10.0
"""For the whole head: a client that sends a byte now and then must not keep its place for ever."""

LONGEST = 16_384
SHORTEST_WAIT = 0.001
"""Seconds; none at all would mean for ever."""

END = re.compile(rb"\r?\n\r?\n")
LONGEST_END = 4
HOST = re.compile(r"(127\.0\.0\.1|localhost|\[::1\])(:[0-9]{1,5})?", re.IGNORECASE)


class HeadTooLong(Exception):  # noqa: N818 (a fact about the client, told to it)
    """The head has no end within the limit."""


def read_head(connection: socket.socket) -> bytes:
    """The request line and the headers; empty when the client leaves before their end. May raise `OSError`."""
    until = time.monotonic() + SECONDS
    head, searched = b"", 0
    while not END.search(head, searched):
        if len(head) == LONGEST:
            raise HeadTooLong
        searched = max(0, len(head) - LONGEST_END)
        connection.settimeout(max(until - time.monotonic(), SHORTEST_WAIT))
        piece = connection.recv(LONGEST - len(head))
        if not piece:
            return b""
        head += piece
    return head


def is_ours(host: str) -> bool:
    """Whether the browser took us for this machine. Under any other name a foreign site might be asking.

    Any port will do: `ssh -L` may have given another one.
    """
    return HOST.fullmatch(host.strip()) is not None


def takes_gzip(headers: Message) -> bool:
    wanted = [part.replace(" ", "").lower().partition(";") for part in headers.get("Accept-Encoding", "").split(",")]
    return any(name == "gzip" and weight not in ("q=0", "q=0.0") for name, _, weight in wanted)
