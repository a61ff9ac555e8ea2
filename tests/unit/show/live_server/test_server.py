"""Who is answered, how, and who is not."""

import gzip
import http.client
import random
import socket
import threading
import time

import pytest

from unisono.show.live_server import server as head_module
from unisono.show.live_server import server as server_module
from unit.show.live_server.serving import Counting, parsed, serving, until, write_run

STATIC = {"page.js": ("text/javascript; charset=utf-8", b"let answer = 42;" * 50)}
REFUSED = [
    "POST",
    "PUT",
    "PATCH",
    "DELETE",
    "OPTIONS",
    "TRACE",
    "CONNECT",
    "FOO",
    "get",
    "Get",
    "PROPFIND",
    "__class__",
]
REFUSED += ["GETGET", "HEA", "X" * 500, "GET/", "G\x01ET"]
OUR_HOSTS = ["127.0.0.1", "127.0.0.1:8642", "localhost", "LOCALHOST:1", "[::1]", "[::1]:65535", "127.0.0.1:9999"]
FOREIGN_HOSTS = [
    "evil.com", "127.0.0.1.evil.com", "127.0.0.1.nip.io", "localhost.evil.com", "evil.com:8642", "user@127.0.0.1",
    "127.0.0.1@evil.com", "evil.com/127.0.0.1", "127.0.0.1:80:80", "127.0.0.1:", "127.0.0.1:port", "0.0.0.0",
    "127.0.0.2", "127.1", "127x0x0x1", "2130706433", "0x7f000001", "[::]", "::1", "[::1", "[::ffff:127.0.0.1]",
    "localhost.", "local host", "127.0.0.1, evil.com", "evil.com, 127.0.0.1", "127.0.0.1#", "127.0.0.1?",
    "http://127.0.0.1", "", "*", "127.0.0.1\x00", "127.0.0.1:999999", "\uff11\uff12\uff17.0.0.1", "\u24dbocalhost",
    "127\u30020\u30020\u30021",
]  # fmt: skip


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    runs = tmp_path_factory.mktemp("runs")
    write_run(runs / "one")
    write_run(runs / "two")
    with serving(runs, static=STATIC) as served:
        yield served


def addresses(served):
    run_id = served.run_ids()[0]
    return ["/", f"/run/{run_id}/", f"/run/{run_id}/state", "/static/page.js", "/static/list.js", "/nowhere"]


def test_it_listens_on_this_machine_only(served):
    assert served.server.server_address[0] == "127.0.0.1"


@pytest.mark.parametrize("method", REFUSED)
def test_only_get_and_head_are_answered(served, method):
    for target in (*addresses(served), "*"):
        reply = served.ask(target, method)
        assert (reply.status, reply.headers["Allow"]) == (405, "GET, HEAD")
        assert reply.body == b"405 Method Not Allowed\n"


def test_a_refused_body_is_not_taken_for_a_request_and_does_not_hide_the_refusal(served):
    for body in (b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n", b"x" * 50_000):
        reply = served.ask("/", "POST", body=body, Content_Length=len(body))
        assert (reply.status, reply.body) == (405, b"405 Method Not Allowed\n")


def test_a_client_that_is_still_sending_sees_the_refusal(served):
    with socket.create_connection(("127.0.0.1", served.port)) as connection:
        connection.sendall(b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 30000\r\n\r\n")
        for _ in range(3):
            time.sleep(0.05)
            connection.sendall(b"x" * 10_000)
        assert connection.recv(65_536).startswith(b"HTTP/1.1 405 ")


def test_nobody_is_asked_for_a_body(served):
    answer = served.raw(b"PUT / HTTP/1.1\r\nHost: localhost\r\nExpect: 100-continue\r\nContent-Length: 9\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 405 ")


def test_a_second_request_on_the_same_connection_is_not_answered(served):
    answer = served.raw(b"GET /static/page.js HTTP/1.1\r\nHost: localhost\r\n\r\n" * 2)
    assert answer.count(b"HTTP/1.1 ") == 1
    assert parsed(answer).headers["Connection"] == "close"


@pytest.mark.parametrize("host", OUR_HOSTS)
def test_this_machine_goes_by_three_names_with_any_port(served, host):
    assert served.ask("/", host=host).status == 200


@pytest.mark.parametrize("host", FOREIGN_HOSTS)
def test_under_another_name_nothing_is_answered(served, host):
    for target in addresses(served):
        reply = served.ask(target, host=host)
        assert (reply.status, reply.body) == (403, b"403 Forbidden\n")


def test_a_request_without_host_or_with_two_is_refused(served):
    assert served.ask("/", host=None).status == 400
    assert parsed(served.raw(b"GET / HTTP/1.0\r\n\r\n")).status == 400
    assert served.ask("/", Host="127.0.0.1").status == 400
    assert served.ask("/", Host="evil.com").status == 400
    folded = b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n .evil.com\r\n\r\n"
    assert parsed(served.raw(folded)).status == 403


def test_every_answer_carries_the_same_protection(served):
    replies = [served.ask(target) for target in addresses(served)]
    replies += [served.ask("/", "POST"), served.ask("/", host="evil.com"), served.ask("/", host=None)]
    replies.append(parsed(served.raw(b"nonsense\r\n\r\n")))
    assert {reply.status for reply in replies} == {200, 404, 405, 403, 400}
    for reply in replies:
        policy = dict(part.strip().split(" ", 1) for part in reply.headers["Content-Security-Policy"].split(";"))
        assert (policy["default-src"], policy["script-src"], policy["connect-src"]) == ("'none'", "'self'", "'self'")
        assert policy["frame-ancestors"] == policy["base-uri"] == policy["form-action"] == "'none'"
        assert reply.headers["X-Content-Type-Options"] == "nosniff"
        assert reply.headers["X-Frame-Options"] == "DENY"
        assert reply.headers["Referrer-Policy"] == "no-referrer"
        assert reply.headers["Cross-Origin-Resource-Policy"] == "same-origin"
        assert reply.headers["Cache-Control"] in ("no-store", "no-cache")
        assert not {"Server", "Access-Control-Allow-Origin", "Set-Cookie", "Location"} & set(reply.headers)


def test_only_static_files_may_be_kept(served):
    kept = [target for target in addresses(served) if served.ask(target).headers["Cache-Control"] != "no-store"]
    assert kept == ["/static/page.js", "/static/list.js"]


def test_head_is_get_without_the_body(served):
    for target in addresses(served):
        get, head = served.ask(target), served.ask(target, "HEAD")
        assert (head.status, head.body) == (get.status, b"")
        assert head.headers == get.headers


def test_what_the_browser_knows_is_not_sent_again(served):
    for target in addresses(served)[:-1]:
        first = served.ask(target)
        again = served.ask(target, If_None_Match=first.headers["ETag"])
        assert (again.status, again.body) == (304, b"")
        assert served.ask(target, If_None_Match='W/"other", ' + first.headers["ETag"]).status == 304
        assert served.ask(target, If_None_Match='"other"').body == first.body
        assert served.ask(target, If_None_Match="").status == 200


def test_answers_are_packed_for_those_who_can_unpack(served):
    for target in addresses(served)[:-1]:
        plain, packed = served.ask(target), served.ask(target, Accept_Encoding="br, gzip;q=0.8")
        assert "Content-Encoding" not in plain.headers
        assert packed.headers["Content-Encoding"] == "gzip"
        assert int(packed.headers["Content-Length"]) == len(packed.body)
        assert gzip.decompress(packed.body) == plain.body
        assert "Content-Encoding" not in served.ask(target, Accept_Encoding="br, gzip;q=0").headers


def test_a_browsers_question_for_an_icon_is_no_error(served):
    assert served.ask("/favicon.ico").status == 204


def test_heads_have_a_limit(served):
    long = "x" * (head_module.LONGEST + 1)
    assert served.ask("/" + long).status == 431
    assert served.ask("/", Cookie=long).status == 431
    assert served.ask("/", **{f"X{number}": "y" for number in range(150)}).status == 431
    assert served.ask("/" + long[:8_000]).status == 404
    assert served.ask("/").status == 200


ODD_REQUESTS = [
    b"GET /\r\n\r\n", b"GET / HTTP/2.0\r\nHost: localhost\r\n\r\n", b"GET / HTTP/9\r\n\r\n", b"GET\r\n\r\n",
    b"GET / x HTTP/1.1\r\n\r\n", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", b"GET / FTP/1.1\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost : localhost\r\n\r\n", b"GET / HTTP/0.9\r\n\r\n", b"PRI * HTTP/2.0\r\n\r\n",
]  # fmt: skip


@pytest.mark.parametrize("request_bytes", ODD_REQUESTS)
def test_odd_requests_get_a_plain_refusal(served, request_bytes):
    reply = parsed(served.raw(request_bytes))
    assert (reply.status, reply.body) == (400, b"400 Bad Request\n")


def test_noise_does_not_harm_the_server(served):
    chance = random.Random(5)
    good = b"GET /static/page.js HTTP/1.1\r\nHost: localhost\r\n\r\n"
    for _ in range(300):
        noise = bytearray(good)
        for _ in range(chance.randrange(1, 6)):
            noise[chance.randrange(len(noise) - 4)] = chance.randrange(256)
        answer = served.raw(bytes(noise))
        assert not answer or parsed(answer).status in (200, 400, 403, 404, 405)
    assert served.complaints == []
    assert served.ask("/").status == 200


def test_a_client_that_leaves_is_no_news(served, capfd):
    for request in (b"", b"GET / HT", b"GET /static/list.js HTTP/1.1\r\nHost: localhost\r\n\r\n"):
        for _ in range(5):
            socket.create_connection(("127.0.0.1", served.port)).close()
            connection = socket.create_connection(("127.0.0.1", served.port))
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
            connection.sendall(request)
            connection.close()
    assert served.ask("/").status == 200
    assert (capfd.readouterr(), served.complaints) == (("", ""), [])


def test_a_hundred_clients_at_once_are_all_answered(served):
    replies = []
    ask = threading.Barrier(100)

    def client():
        ask.wait()
        replies.append(served.ask("/static/page.js"))

    threads = [threading.Thread(target=client) for _ in range(100)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [reply.status for reply in replies] == [200] * 100


def silent_clients(served, count):
    return [socket.create_connection(("127.0.0.1", served.port)) for _ in range(count)]


def handlers():
    return sum("process_request_thread" in thread.name for thread in threading.enumerate())


def test_silent_clients_make_room_and_are_never_more_than_the_limit(served):
    clients = silent_clients(served, 120)
    try:
        for client in clients:
            client.sendall(b"GET / HTTP/1.1\r\nHo")
        began = time.monotonic()
        most = 0
        for _ in range(5):
            assert served.ask("/static/page.js").status == 200
            most = max(most, handlers())
        assert time.monotonic() - began < head_module.SECONDS
        assert 1 < most <= server_module.MOST_CONNECTIONS
    finally:
        for client in clients:
            client.close()
    until(lambda: handlers() == 0)


def test_a_slow_client_is_cut_off_however_busy_it_seems(served, monkeypatch):
    monkeypatch.setattr(head_module, "SECONDS", 0.5)
    (client,) = silent_clients(served, 1)
    began = time.monotonic()
    with client:
        while not was_closed(client) and time.monotonic() - began < 10:
            time.sleep(0.05)
    assert 0.4 < time.monotonic() - began < 5


def was_closed(client):
    try:
        client.sendall(b"G")
    except OSError:
        return True
    return False


def test_a_client_that_does_not_read_is_given_up(served, monkeypatch):
    monkeypatch.setattr(server_module, "SENDING_SECONDS", 0.3)
    large = served.server.site.answer("/static/page.js")
    monkeypatch.setattr(
        served.server.site, "answer", lambda _target: large.__class__(large.status, body=b"x" * 20_000_000)
    )
    (client,) = silent_clients(served, 1)
    with client:
        client.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
        until(lambda: handlers() == 1)
        until(lambda: handlers() == 0, seconds=5)


class Failing(Counting):
    def state(self, have):
        raise KeyError("<b>secret</b>")


def test_a_mistake_inside_is_told_here_and_not_to_the_client(tmp_path):
    write_run(tmp_path)
    with serving(tmp_path, Failing) as served:
        run_id = served.ask("/").text.split("/run/")[1][:12]
        reply = served.ask(f"/run/{run_id}/state")
        assert (reply.status, reply.body) == (500, b"500 Internal Server Error\n")
        assert served.complaints == ["a question could not be answered (KeyError: '<b>secret</b>')"]
        assert served.ask("/").status == 200


def test_it_is_proper_http_for_an_ordinary_client(served):
    connection = http.client.HTTPConnection("localhost", served.port)
    for method, expected in (("GET", 200), ("HEAD", 200), ("DELETE", 405), ("GET", 200)):
        connection.request(method, "/")
        response = connection.getresponse()
        assert response.status == expected
        assert len(response.read()) == (0 if method == "HEAD" else int(response.headers["Content-Length"]))
