"""A real server on a free port, clients that speak to it byte by byte, and runs to show."""

import contextlib
import json
import socket
import threading
import time
from dataclasses import dataclass

from unisono.records import AttemptRecord, EndRecord, RunRecord, StepRecord, WorkerFacts, to_line
from unisono.show.live_server import Followers, PageServer, RunIndex, Site

PATIENCE = 20.0


class Counting:
    """A view that says what it has seen."""

    def __init__(self):
        self.steps, self.attempts, self.kinds = [], [], []

    def see(self, record):
        self.kinds.append(record.kind)
        if isinstance(record, StepRecord):
            self.steps.append(record.step)
        if isinstance(record, AttemptRecord):
            self.attempts.append(record.attempt)

    def state(self, have):
        return {"steps": len(self.steps), "last": self.steps[-1:], "attempts": self.attempts, "had": have}


def shell(title, state_url):
    return f"<title>{len(title)}</title><main data-state='{state_url}'></main>"


@dataclass(frozen=True)
class Reply:
    status: int
    headers: dict
    body: bytes

    @property
    def text(self):
        return self.body.decode()

    @property
    def json(self):
        return json.loads(self.body)


@dataclass
class Served:
    server: PageServer
    complaints: list

    @property
    def port(self):
        return self.server.server_port

    def raw(self, request, seconds=PATIENCE):
        """All that comes back until the server closes."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=seconds) as connection:
            connection.sendall(request)
            return b"".join(iter(lambda: connection.recv(65_536), b""))

    def ask(self, target, method="GET", host="127.0.0.1", body=b"", **headers):
        """`_` in the name of a header stands for a hyphen."""
        lines = [f"{method} {target} HTTP/1.1", *([f"Host: {host}"] if host is not None else [])]
        lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
        return parsed(self.raw("\r\n".join([*lines, "", ""]).encode("utf-8", "surrogateescape") + body))

    def run_ids(self):
        text = self.ask("/").text
        return [piece.partition("/")[0] for piece in text.split("/run/")[1:]]

    def state(self, run_id=None, query=""):
        return self.ask(f"/run/{run_id or self.run_ids()[0]}/state{query}").json


def parsed(answer):
    head, _, body = answer.partition(b"\r\n\r\n")
    status, *lines = head.decode("ascii").split("\r\n")
    assert status.startswith("HTTP/1.1 "), answer[:200]
    return Reply(int(status.split()[1]), dict(line.split(": ", 1) for line in lines), body)


@contextlib.contextmanager
def serving(place, make_view=Counting, static=()):
    complaints = []
    site = Site(RunIndex(place), Followers(make_view, complaints.append), shell, dict(static))
    with PageServer(0, site, complaints.append) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield Served(server, complaints)
        finally:
            server.shutdown()
            thread.join(PATIENCE)


def until(check, seconds=PATIENCE):
    """What `check` gives, once that is true."""
    end = time.monotonic() + seconds
    while not (found := check()):
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.02)
    return found


def start(attempt=1, workers=2):
    facts = tuple(WorkerFacts(rank, "host", 7, "cpu") for rank in range(workers))
    return AttemptRecord(attempt, 1.5, workers, 0, facts)


def step(number, attempt=1):
    return StepRecord(attempt, number, 1.5, loss_W=(0.5, 0.25))


def end(number, attempt=1):
    return EndRecord(attempt, number, 1.5, number + 1, 0, 0, ended="finished")


def lines(*records):
    return "".join(to_line(record) + "\n" for record in records).encode()


def write_run(folder, steps=3, name="run", script="train.py", started=1.5, ended=False):
    folder.mkdir(parents=True, exist_ok=True)
    records = [RunRecord(1, name, started, script, "0.1"), start(), *map(step, range(steps))]
    (folder / "run.jsonl").write_bytes(lines(*records, *([end(steps - 1)] if ended else [])))
    return folder / "run.jsonl"
