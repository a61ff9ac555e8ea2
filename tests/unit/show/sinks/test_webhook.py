"""What a pager is sent, and what it cannot make us do."""

import json
import socket
import threading
import time
from contextlib import contextmanager

import pytest

from unisono.show.sinks import webhook
from unisono.sinks import Webhook
from unit.show.sinks.build import finding, reading, run
from unit.show.sinks.payloads import PAYLOADS


def sent(server):
    return [json.loads(body) for _, _, body in server.got]


def test_a_finding_is_posted_as_json(server, tmp_path):
    sink = Webhook(f"{server.url}/hook?key=1").open(run(tmp_path))
    sink.finding(finding(evidence={"cosine": float("nan")}))
    [(path, headers, body)] = server.got
    assert path == "/hook?key=1"
    assert headers["Content-Type"] == "application/json"
    content = json.loads(body, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
    assert content["run"] == "train"
    assert content["finding"]["code"] == "UN101"
    assert content["finding"]["ranks"] == [1, 3]
    assert content["finding"]["evidence"] == {"cosine": "nan"}
    assert content["text"].startswith("UN101 Several workers load the same data\ncritical, ranks 1, 3, since step 3: ")


def test_numbers_and_the_end_of_a_run_are_not_posted(server, tmp_path):
    sink = Webhook(server.url).open(run(tmp_path))
    sink.metrics([reading(1)])
    sink.close("nothing suspicious was found")
    assert server.got == []


@pytest.mark.parametrize(("least", "codes"), [("info", 3), ("warning", 2), ("critical", 1)])
def test_only_grave_findings_are_posted(server, tmp_path, least, codes):
    sink = Webhook(server.url, least).open(run(tmp_path))
    for severity in ("info", "warning", "critical"):
        sink.finding(finding(severity=severity))
    assert len(server.got) == codes


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_redirects_are_refused(server, tmp_path, status):
    server.answer = lambda request: (status, {"Location": f"{server.url}/inside"})
    with pytest.raises(ConnectionError, match=f"127.0.0.1 answered {status}"):
        Webhook(f"{server.url}/secret").open(run(tmp_path)).finding(finding())
    assert [path for path, _, _ in server.got] == ["/secret"]


@pytest.mark.parametrize("status", [400, 404, 429, 500, 503])
def test_a_refusal_is_an_error_that_names_the_host_only(server, tmp_path, status):
    server.answer = lambda request: (status, {})
    sink = Webhook(f"{server.url}/secret?token=secret").open(run(tmp_path))
    with pytest.raises(ConnectionError) as failure:
        sink.finding(finding())
    assert str(failure.value) == f"127.0.0.1 answered {status}"
    assert failure.value.__suppress_context__


def test_a_server_that_does_not_answer_is_given_up(server, tmp_path, monkeypatch):
    monkeypatch.setattr(webhook, "TIMEOUT", 0.2)
    server.answer = lambda request: (time.sleep(5), (200, {}))[1]
    before = time.monotonic()
    with pytest.raises(ConnectionError, match="cannot be reached: TimeoutError"):
        Webhook(f"{server.url}/secret").open(run(tmp_path)).finding(finding())
    assert time.monotonic() - before < 4


@contextmanager
def dripping(beginning):
    """A server that answers with some bytes and then one more every twentieth of a second, for five seconds."""

    def answer():
        connection, _ = listening.accept()
        with connection:
            try:
                connection.sendall(beginning)
                for _ in range(100):
                    time.sleep(0.05)
                    connection.sendall(b"1")
            except OSError:
                pass

    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.settimeout(5)
        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        yield f"127.0.0.1:{listening.getsockname()[1]}"
        thread.join()


@pytest.mark.parametrize(
    ("scheme", "beginning"),
    [
        ("http", b"HTTP/1."),
        ("http", b"HTTP/1.1 500 No\r\nX: "),
        ("https", b"\x16\x03\x03\x3f\xff\x02\x00\x3f\xfb\x03\x03"),
    ],
    ids=["status", "headers", "encryption"],
)
def test_a_server_that_drips_is_given_up(tmp_path, monkeypatch, scheme, beginning):
    monkeypatch.setattr(webhook, "TIMEOUT", 0.3)
    with dripping(beginning) as host:
        before = time.monotonic()
        with pytest.raises(ConnectionError, match=r"127\.0\.0\.1 (cannot be reached: TimeoutError|answered 500)"):
            Webhook(f"{scheme}://{host}/secret").open(run(tmp_path)).finding(finding())
        assert time.monotonic() - before < 4


@pytest.mark.parametrize("beginning", [b"X: ", b"Content-Length: 1000\r\n\r\n"], ids=["headers", "body"])
def test_what_a_server_drips_after_it_has_taken_the_finding_does_not_matter(tmp_path, monkeypatch, beginning):
    monkeypatch.setattr(webhook, "TIMEOUT", 0.3)
    with dripping(b"HTTP/1.1 200 OK\r\n" + beginning) as host:
        before = time.monotonic()
        Webhook(f"http://{host}/secret").open(run(tmp_path)).finding(finding())
        assert time.monotonic() - before < 4


def test_no_timer_is_left_after_a_post(server, tmp_path):
    Webhook(server.url).open(run(tmp_path)).finding(finding())
    timers = [thread for thread in threading.enumerate() if isinstance(thread, threading.Timer)]
    assert all(timer.finished.is_set() for timer in timers)


def test_the_patience_is_two_seconds():
    assert webhook.TIMEOUT == 2.0


@pytest.mark.parametrize("address", ["http://127.0.0.1:1/secret", "http://no-such-host.invalid/secret"])
def test_a_server_that_is_down_is_an_error_without_the_address(tmp_path, address):
    with pytest.raises(ConnectionError) as failure:
        Webhook(address).open(run(tmp_path)).finding(finding())
    assert "cannot be reached" in str(failure.value)
    assert "secret" not in str(failure.value)


@pytest.mark.parametrize("payload", PAYLOADS, ids=range(len(PAYLOADS)))
def test_every_name_arrives_as_it_is(server, tmp_path, payload):
    sink = Webhook(server.url).open(run(tmp_path, name=payload))
    sink.finding(finding(title=payload, why=payload, where=(payload,)))
    [content] = sent(server)
    assert content["run"] == payload
    assert content["finding"]["title"] == content["finding"]["why"] == payload
    assert content["text"].count("\n") == 3
