"""Addresses that try to leave the table of what may be asked for."""

from itertools import cycle, product

import pytest

from unit.show.live_server.serving import serving, write_run

CANARY = "canary-4f1c9a"
LEAKS = [CANARY.encode(), b"root:", b"class PageServer", b"PATH=", b'"type":"step"']
"""In files around the run, in those that every machine has, in our own source, in the environment, in the run."""

UP = [
    "..", "%2e%2e", "%2E%2e", ".%2e", "%2e.", "%252e%252e", "%25252e%25252e", "%25%32%65%25%32%65", "%c0%ae%c0%ae",
    "%c0%2e%c0%2e", "%e0%80%ae%e0%80%ae", "%f0%80%80%ae%f0%80%80%ae", "%uff0e%uff0e", "%u002e%u002e", "\uff0e\uff0e",
    "%ef%bc%8e%ef%bc%8e", "\u2025", "\u2024\u2024", "..%00", "%00..", "....", "..;", "..%09", "..%20", "..%0d%0a",
    "..%ff",
]  # fmt: skip
SLASH = [
    "/", "%2f", "%2F", "%252f", "%25252f", "\\", "%5c", "%255c", "%c0%af", "%e0%80%af", "%c1%9c", "//", "/./", "\u2215",
    "%e2%88%95", "/%2e/", ";/", "%2f%2f",
]  # fmt: skip
BEGINNINGS = ["/", "/static/", "/run/{id}/", "/run/", "/run/{id}/state/", "/static/list.js/", "//", "\\"]
GOALS = [
    "secret.txt",
    "etc/passwd",
    "run/secret.txt",
    "run/run.jsonl",
    "server.py",
    "proc/self/environ",
    "etc%2fpasswd",
]
WHOLE = [
    "/etc/passwd", "//etc/passwd", "///etc/passwd", "/%2fetc/passwd", "file:///etc/passwd",
    "http://127.0.0.1/etc/passwd", "http://127.0.0.1/", "//127.0.0.1/", "/c:/windows/win.ini", "C:\\boot.ini",
    "/\\\\host\\share", "~/.ssh/id_rsa", "/~root/", "/.", "/..", "/%2e", "/%00", "/\x01", "/run/{id}",
    "/run/{id}/run.jsonl", "/run/{id}/rank-0.jsonl", "/run/{id}/state/", "/run/{id}%00/", "/run/{id}/%00state",
    "/run//", "/run/../", "/static", "/static/", "/static/.", "/static/__init__.py", "/static/server.py",
    "/static/list.js%00", "/static/list.js/", "/static/list.js%2f", "//static/list.js", "/static//list.js",
    "/static/./list.js", "/STATIC/list.js", "/run/{id}/STATE", "/RUN/{id}/", "*", "list.js", ".", "/#", "/;",
    "/index.html", "/run/000000000000/", "/run/{id}{id}/", "/run/{short}/", "/etc/passwd?/static/list.js",
    "%2fstatic%2flist.js", "/%73tatic%252flist.js", "/run/{id}/state%3fhave=x", "/run/{id}/state#",
    "/proc/self/environ",
]  # fmt: skip


def variants():
    goals = cycle(GOALS)
    for up, slash, beginning in product(UP, SLASH, BEGINNINGS[:5]):
        yield beginning + (up + slash) * 3 + next(goals)
    for up, slash, beginning, depth in product(UP, SLASH[:4], BEGINNINGS[5:], (1, 8)):
        yield beginning + (up + slash) * depth + next(goals)
    yield from (beginning + goal for beginning, goal in product(BEGINNINGS, GOALS))
    yield from WHOLE


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    place = tmp_path_factory.mktemp("place")
    write_run(place / "runs/run")
    for name in ("secret.txt", "runs/secret.txt", "runs/run/secret.txt", "runs/run/rank-0.jsonl", "runs/etc/passwd"):
        (place / name).parent.mkdir(exist_ok=True)
        (place / name).write_text(CANARY)
    with serving(place / "runs") as served:
        yield served


def test_no_variant_leads_anywhere(served):
    (run_id,) = served.run_ids()
    asked = sorted(set(variants()))
    assert len(asked) > 2_000
    for address in asked:
        target = address.replace("{id}", run_id).replace("{short}", run_id[:-1])
        answer = served.raw(f"GET {target} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        assert answer[:12] in (b"HTTP/1.1 404", b"HTTP/1.1 400"), target
        assert not [leak for leak in LEAKS if leak in answer], target
    assert served.complaints == []


def test_there_is_one_way_to_write_an_address(served):
    (run_id,) = served.run_ids()
    assert served.ask("/static/list.js").status == 200
    for target in ("/%73tatic/list.js", "/%2573tatic/list.js", f"/run/%{ord(run_id[0]):x}{run_id[1:]}/state"):
        assert served.ask(target).status == 404


QUERIES = [
    "?have=../../secret.txt", "?have=%00", "?have=" + "x" * 5_000, "?have=%ff%fe", "?&&", "?have", "?have=&have=b",
    "?version=../../etc/passwd", "?path=/etc/passwd", "?have=%F0%9F%98%80", "??", "?have=<script>", "?have=a;version=b",
]  # fmt: skip


@pytest.mark.parametrize("query", QUERIES)
def test_a_query_leads_nowhere(served, query):
    (run_id,) = served.run_ids()
    reply = served.ask(f"/run/{run_id}/state{query}")
    assert reply.status == 200
    assert reply.json["had"] == ""
    assert CANARY not in reply.text


def test_a_query_with_too_many_fields_is_refused(served):
    (run_id,) = served.run_ids()
    assert served.ask(f"/run/{run_id}/state?" + "a=b&" * 50).status == 400


def test_a_file_that_is_no_run_gives_nothing_away(tmp_path):
    (tmp_path / "runs/run").mkdir(parents=True)
    (tmp_path / "secret.txt").write_text(CANARY + "\n" + CANARY)
    (tmp_path / "runs/run/run.jsonl").symlink_to(tmp_path / "secret.txt")
    with serving(tmp_path / "runs") as served:
        (run_id,) = served.run_ids()
        for target in ("/", f"/run/{run_id}/", f"/run/{run_id}/state"):
            assert CANARY not in served.ask(target).text
