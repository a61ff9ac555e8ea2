"""The server: this machine only, reading only, one question per connection, a bounded number at once."""

from __future__ import annotations

import contextlib
import io
import re
import socket
import socketserver
import sys
import threading
import time
from collections.abc import Callable, Iterator
from email.message import Message
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from unisono.show.live_server.routes import HttpAnswer, Site, refusal

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


ADDRESS = "127.0.0.1"
METHODS = ("GET", "HEAD")
MOST_CONNECTIONS = 32
SENDING_SECONDS = 60.0
ROOM_SECONDS = 0.05
"""How long a new client waits for a place before a silent one has to leave."""

LAST_SECONDS, LAST_BYTES = 0.5, 65_536
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; "
    "img-src 'self' data: blob:; connect-src 'self'; font-src 'self' data:; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Connection": "close",
}


class PageServer(ThreadingHTTPServer):
    """:param complain: Told what went wrong inside; the client learns nothing of it."""

    request_queue_size = 128

    def __init__(self, port: int, site: Site, complain: Callable[[str], None]) -> None:
        self.site, self.complain = site, complain
        self._places = threading.BoundedSemaphore(MOST_CONNECTIONS)
        self._silent: dict[int, socket.socket] = {}
        self._lock = threading.Lock()
        super().__init__((ADDRESS, port), Handler)

    def server_bind(self) -> None:
        """Without asking a name server what this machine is called, which may take long."""
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = ADDRESS, self.socket.getsockname()[1]

    def server_close(self) -> None:
        super().server_close()
        self.site.close()

    def process_request(self, request: Any, client_address: Any) -> None:
        while not self._places.acquire(timeout=ROOM_SECONDS):
            self._end_the_longest_silence()
        try:
            super().process_request(request, client_address)
        except BaseException:
            self._places.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._places.release()

    @contextlib.contextmanager
    def listening_to(self, connection: socket.socket) -> Iterator[None]:
        """As long as a client has not said what it wants, it may have to make room for another."""
        with self._lock:
            self._silent[id(connection)] = connection
        try:
            yield
        finally:
            with self._lock:
                self._silent.pop(id(connection), None)

    def _end_the_longest_silence(self) -> None:
        """Only for reading: a client that has just finished its question still gets the answer."""
        with self._lock, contextlib.suppress(OSError):
            if self._silent:
                self._silent.pop(next(iter(self._silent))).shutdown(socket.SHUT_RD)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away is no news."""
        error = sys.exc_info()[1]
        if not isinstance(error, OSError):
            self.complain(f"a connection was given up ({type(error).__name__}: {error})")


class Handler(BaseHTTPRequestHandler):
    server: PageServer
    protocol_version = "HTTP/1.1"
    command = ""

    def handle(self) -> None:
        self.close_connection = True
        try:
            with self.server.listening_to(self.connection):
                head = read_head(self.connection)
        except HeadTooLong:
            self._send(refusal(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE))
            return
        if head:
            self.rfile.close()
            self.rfile = io.BytesIO(head)
            self.raw_requestline = self.rfile.readline()
            if self.parse_request():
                self._send(self._refused() or self._found())

    def _refused(self) -> HttpAnswer | None:
        hosts = self.headers.get_all("Host", [])
        if self.request_version == "HTTP/0.9" or len(hosts) != 1:
            return refusal(HTTPStatus.BAD_REQUEST)
        if not is_ours(hosts[0]):
            return refusal(HTTPStatus.FORBIDDEN)
        return None if self.command in METHODS else refusal(HTTPStatus.METHOD_NOT_ALLOWED)

    def _found(self) -> HttpAnswer:
        # Not `self.path`: there a double slash at the beginning has been made a single one.
        target = self.requestline.split()[1]
        try:
            return self.server.site.answer(target).unless(self.headers.get("If-None-Match", ""))
        except Exception as error:
            self.server.complain(f"a question could not be answered ({type(error).__name__}: {error})")
            return refusal(HTTPStatus.INTERNAL_SERVER_ERROR)

    def _send(self, answer: HttpAnswer) -> None:
        """With all headers, whatever the answer is."""
        packed = bool(answer.gzipped) and takes_gzip(self.headers)
        body = answer.gzipped if packed else answer.body
        self.connection.settimeout(SENDING_SECONDS)
        self.request_version = self.protocol_version  # else answers to the oldest kind of request have no headers
        self.send_response_only(answer.status)
        for name, value in {**HEADERS, **_own_headers(answer, body, packed)}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)
        if answer.status >= HTTPStatus.BAD_REQUEST:
            self._let_it_finish()

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Called while the request is parsed; what the client sent is not repeated to it."""
        known = code == HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE
        self._send(refusal(HTTPStatus(code) if known else HTTPStatus.BAD_REQUEST))

    def handle_expect_100(self) -> bool:
        """Nobody is asked for a body."""
        return True

    def _let_it_finish(self) -> None:
        """A refused client may still be sending. Closing on unread bytes resets the connection, and it would never see
        why; so they are thrown away for a moment."""
        until, left = time.monotonic() + LAST_SECONDS, LAST_BYTES
        with contextlib.suppress(OSError):
            self.connection.shutdown(socket.SHUT_WR)
            while left > 0 and (seconds := until - time.monotonic()) > 0:
                self.connection.settimeout(seconds)
                piece = self.connection.recv(left)
                left = left - len(piece) if piece else 0


def _own_headers(answer: HttpAnswer, body: bytes, packed: bool) -> dict[str, str]:
    """Those that differ from answer to answer."""
    headers = {"Cache-Control": "no-cache" if answer.may_keep else "no-store"}
    if answer.tag:
        headers |= {"ETag": f'W/"{answer.tag}"', "Vary": "Accept-Encoding"}
    if answer.status == HTTPStatus.METHOD_NOT_ALLOWED:
        headers["Allow"] = ", ".join(METHODS)
    if answer.status in (HTTPStatus.NO_CONTENT, HTTPStatus.NOT_MODIFIED):
        return headers
    headers |= {"Content-Type": answer.kind, "Content-Length": str(len(body))}
    return headers | {"Content-Encoding": "gzip"} if packed else headers
