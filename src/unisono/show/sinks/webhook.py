"""A webhook for pagers and chats: each finding as one POST of JSON."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from typing import IO, Any
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import HTTPHandler, HTTPRedirectHandler, HTTPSHandler, Request, build_opener

from unisono.common.errors import UserError
from unisono.common.terminal import plain
from unisono.records.finding import SEVERITIES, Finding
from unisono.show.analysis.checkup import strict
from unisono.show.sinks.sink import OpenSink, Sink, SinkReading, SinkRun
from unisono.show.sinks.words import circumstances, headline

TIMEOUT = 2.0
"""Seconds for all of a post."""


@dataclass(frozen=True)
class Webhook(Sink):
    """
    :param url: Where to post, http or https. Never shown: such addresses often hold a secret.
    :param least: The least severity that is posted: `info`, `warning` or `critical`.
    """

    name = "webhook"

    url: str = field(repr=False)
    least: str = "warning"

    def __post_init__(self) -> None:
        if self.least not in SEVERITIES:
            raise UserError(
                f"`least` of the sink `webhook` should be one of {', '.join(SEVERITIES)}. Found something else. "
                "Write: least=critical"
            )
        if not _is_usable(self.url):
            raise UserError(
                "`url` of the sink `webhook` should begin with http:// or https:// and a host, without a user name. "
                "Found something else. Write: webhook:url=https://example.org/hook"
            )

    def open(self, run: SinkRun) -> OpenSink:
        return _Poster(self.url, self.least, run.name)


class _Poster(OpenSink):
    def __init__(self, url: str, least: str, run: str) -> None:
        self._url, self._least, self._run = url, least, run
        self._host = urlsplit(url).hostname

    def metrics(self, readings: Sequence[SinkReading]) -> None:
        """Nobody is paged about a number."""

    def finding(self, finding: Finding) -> None:
        if finding.at_least(self._least):
            self._post({"run": self._run, "finding": strict(finding.as_dict()), "text": _text(finding, self._run)})

    def close(self, verdict: str) -> None:
        """Nor about the end of a run."""

    def _post(self, content: Any) -> None:
        # The address was checked when the sink was made.
        request = Request(  # noqa: S310
            self._url,
            data=json.dumps(content, allow_nan=False).encode(),
            headers={"Content-Type": "application/json", "User-Agent": "unisono"},
        )
        deadline = _Deadline(TIMEOUT)
        try:
            with deadline:
                build_opener(_NoRedirects, deadline).open(request, timeout=TIMEOUT).close()
        except HTTPError as error:
            error.close()
            raise ConnectionError(f"{self._host} answered {error.code}") from None
        except (OSError, HTTPException, ValueError) as error:
            # Some of these quote the address.
            reason = TimeoutError() if deadline.is_over else getattr(error, "reason", error)
            raise ConnectionError(f"{self._host} cannot be reached: {type(reason).__name__}") from None


def _text(finding: Finding, run: str) -> str:
    """For chats, which show nothing else."""
    lines = [
        headline(finding),
        circumstances(finding),
        *(f"next: {remedy}" for remedy in finding.remedies[:1]),
        f"run: {run}",
    ]
    return "\n".join(map(plain, lines))


class _Connection(HTTPConnection):
    deadline: _Deadline

    def connect(self) -> None:
        super().connect()
        # A second handle: the first is taken over by the encryption, which may be kept waiting as well.
        self.deadline.cut_in_time(self.sock.dup())


class _EncryptedConnection(HTTPSConnection, _Connection):
    """Its `connect` goes through the one above."""


class _Deadline(HTTPHandler, HTTPSHandler):
    """Cuts the connection when the time is over: a server that sends a byte a second never meets a socket's timeout."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self._socket: socket.socket | None = None
        self.is_over = False
        self._lock = threading.Lock()
        self._timer = threading.Timer(seconds, self._cut)
        self._timer.daemon = True

    def __enter__(self) -> _Deadline:
        self._timer.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._timer.cancel()
        with self._lock:
            if self._socket is not None:
                self._socket.close()

    def cut_in_time(self, connected: socket.socket) -> None:
        self._socket = connected
        if self.is_over:
            self._cut()

    def http_open(self, request: Request) -> HTTPResponse:
        return self.do_open(partial(self._connection, _Connection), request)

    def https_open(self, request: Request) -> HTTPResponse:
        return self.do_open(partial(self._connection, _EncryptedConnection), request)

    def _connection(self, kind: type[_Connection], host: str, **options: Any) -> _Connection:
        connection = kind(host, **options)
        connection.deadline = self
        return connection

    def _cut(self) -> None:
        self.is_over = True
        with self._lock, suppress(OSError):
            if self._socket is not None:
                self._socket.shutdown(socket.SHUT_RDWR)


class _NoRedirects(HTTPRedirectHandler):
    """An address that leads elsewhere could lead inside: it counts as a failure."""

    def redirect_request(self, req: Request, fp: IO[bytes], code: int, msg: str, headers: Any, newurl: str) -> None:
        return None


def _is_usable(url: str) -> bool:
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        return False
    printable = url.isascii() and url.isprintable() and " " not in url
    has_host = bool(parts.hostname) and "@" not in parts.netloc and port != 0
    return printable and has_host and parts.scheme in ("http", "https")
