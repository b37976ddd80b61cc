"""A request is what every reader of RFC 9110 and 9112 takes it for (SPEC SEC-48)."""

from __future__ import annotations

import contextlib
import json
import socket
import time
from collections.abc import Iterator
from itertools import count

import pytest

from deltamq.api.http_protocol import BadHead, check_head, without_offer
from tests.api.running import Api, config_for, running

_OFFERS = {
    "h2c": "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\n",
    "websocket": "Connection: keep-alive, upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Key: eA==\r\n",
    "tls": "Upgrade: TLS/1.2\r\nConnection: Upgrade\r\n",
}
_names = (f"made-{number}" for number in count())


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    with running(config_for(tmp_path_factory.mktemp("warehouse"))) as found:
        found.put_topic("orders", partitions=1)
        yield found


def _request(line: str, body: str = "", more: str = "") -> bytes:
    length = f"Content-Length: {len(body)}\r\n" if body else ""
    if body and "Content-Type" not in more:
        length += "Content-Type: application/json\r\n"
    return f"{line} HTTP/1.1\r\nHost: x\r\n{more}{length}\r\n{body}".encode()


def _answers(api: Api, *pieces: bytes) -> list[tuple[int, dict[str, object]]]:
    """Send pieces apart, then a last request that closes the connection; return each answer's status and JSON."""
    last = b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
    with contextlib.closing(socket.create_connection(("127.0.0.1", api.port), timeout=60)) as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for piece in (*pieces, last):
            with contextlib.suppress(ConnectionError):
                sock.sendall(piece)
            time.sleep(0)
        found = b""
        with contextlib.suppress(ConnectionError):
            while part := sock.recv(65536):
                found += part
    answers = []
    while found:
        head, _, rest = found.partition(b"\r\n\r\n")
        lines = head.decode().split("\r\n")
        headers = dict(line.lower().split(": ", 1) for line in lines[1:])
        length = int(headers.get("content-length", 0))
        answers.append((int(lines[0].split()[1]), json.loads(rest[:length]) if length and rest[:1] == b"{" else {}))
        found = rest[length:]
    return answers


@pytest.mark.parametrize("offer", _OFFERS)
@pytest.mark.parametrize("cut", ["whole", "body apart", "byte by byte"])
def test_sec_48_a_request_that_offers_another_protocol_is_read_whole(api: Api, offer: str, cut: str) -> None:
    name = next(_names)
    sent = _request(f"PUT /v1/topics/{name}", '{"partitions": 3, "order_strategy": "strict"}', _OFFERS[offer])
    head = sent.index(b"\r\n\r\n") + 4
    whole = {"whole": [sent], "body apart": [sent[:head], sent[head:]]}
    pieces = whole.get(cut) or [sent[at : at + 1] for at in range(len(sent))]
    answers = _answers(api, *pieces)
    assert [status for status, _ in answers] == [201, 200], answers
    topic = api.call("GET", f"/v1/topics/{name}").json
    assert (len(topic["partitions"]), topic["order_strategy"]) == (3, "strict")


@pytest.mark.parametrize("offer", _OFFERS)
def test_sec_48_a_body_is_never_the_next_request(api: Api, offer: str) -> None:
    victim = next(_names)
    api.put_topic(victim, partitions=1)
    body = f"DELETE /v1/topics/{victim} HTTP/1.1\r\nHost: x\r\n\r\n"
    sent = _request("POST /v1/topics/orders/messages", body, "Content-Type: application/x-ndjson\r\n" + _OFFERS[offer])
    answers = _answers(api, sent[: -len(body)], body.encode())
    assert [status for status, _ in answers] == [400, 200], answers
    assert api.call("GET", f"/v1/topics/{victim}").status == 200


def test_sec_48_several_offers_on_one_connection_are_passed_over_one_after_the_other(api: Api) -> None:
    names = [next(_names) for _ in range(3)]
    sent = b"".join(
        _request(f"PUT /v1/topics/{name}", '{"partitions": 2}', offer)
        for name, offer in zip(names, _OFFERS.values(), strict=True)
    )
    assert [status for status, _ in _answers(api, sent)] == [201] * 3 + [200]
    assert [len(api.call("GET", f"/v1/topics/{name}").json["partitions"]) for name in names] == [2] * 3


def test_sec_48_fields_behind_a_chunked_body_are_no_headers(api: Api) -> None:
    row = b'{"body": "x"}\n'
    sent = (
        b"POST /v1/topics/orders/messages HTTP/1.1\r\nHost: x\r\nContent-Type: application/x-ndjson\r\n"
        b"Trailer: Producer-Id, Producer-Seq\r\nTransfer-Encoding: chunked\r\n\r\n"
        b"%x\r\n%s\r\n0\r\nProducer-Id: twice\r\nProducer-Seq: 0\r\n\r\n" % (len(row), row)
    )
    first, second = (_answers(api, sent)[0][1]["ranges"] for _ in range(2))
    assert isinstance(first, list) and isinstance(second, list)
    assert second[0]["base_offset"] == first[0]["base_offset"] + 1, "the second was not taken for a repeat"


_HEADS = {
    "no host": "",
    "two hosts": "Host: x\r\nHost: y\r\n",
    "host with a path": "Host: x/y\r\n",
    "host with a space": "Host: x y\r\n",
    "gzip in chunks": "Host: x\r\nTransfer-Encoding: gzip, chunked\r\n",
    "gzip": "Host: x\r\nTransfer-Encoding: gzip\r\n",
    "chunked twice": "Host: x\r\nTransfer-Encoding: chunked, chunked\r\n",
    "two codings": "Host: x\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n",
    "identity": "Host: x\r\nTransfer-Encoding: identity\r\n",
    "two types": "Host: x\r\nContent-Type: application/json\r\nContent-Type: application/x-ndjson\r\n",
    "two producers": "Host: x\r\nProducer-Id: a\r\nProducer-Id: b\r\n",
    "two callers": "Host: x\r\nAuthorization: Bearer a\r\nAuthorization: Bearer b\r\n",
    "two events": "Host: x\r\nLast-Event-ID: a\r\nLast-Event-ID: b\r\n",
    "two of ours": "Host: x\r\nMq-Forwarded: 1\r\nMq-Forwarded: 1\r\n",
    "two lengths": "Host: x\r\nContent-Length: 2\r\nContent-Length: 2\r\n",
    "length and chunks": "Host: x\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n",
    "space before a colon": "Host: x\r\nContent-Length : 2\r\n",
    "folded": "Host: x\r\nContent-Type: application/json\r\n ;x=y\r\n",
    "line feeds alone": "Host: x\nContent-Length: 2\n",
}


@pytest.mark.parametrize("head", _HEADS)
def test_sec_48_a_head_that_can_be_read_in_two_ways_is_refused(api: Api, head: str) -> None:
    sent = f"POST /v1/topics/orders/messages HTTP/1.1\r\n{_HEADS[head]}\r\n2\r\n{{}}\r\n0\r\n\r\n".encode()
    (answer,) = _answers(api, sent)
    assert (answer[0], answer[1]["code"]) == (400, "invalid_http"), answer


@pytest.mark.parametrize("line", ["GET /healthz#a HTTP/1.1", "GET /healthz HTTP/2.0", "GET /healthz HTTP/0.9"])
def test_sec_48_a_fragment_and_another_version_are_refused(api: Api, line: str) -> None:
    ((status, problem),) = _answers(api, f"{line}\r\nHost: x\r\n\r\n".encode())
    assert (status, problem["code"]) == (400, "invalid_http")


def test_sec_48_what_http_1_0_leaves_out_is_no_fault(api: Api) -> None:
    assert [status for status, _ in _answers(api, b"GET /healthz HTTP/1.0\r\n\r\n")] == [200]
    for bad in (b"CONNECT x:1 HTTP/1.1\r\nHost: x\r\n\r\n", b"POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n"):
        assert [(status, problem["code"]) for status, problem in _answers(api, bad)] == [(400, "invalid_http")]


@pytest.mark.parametrize("bad", [b"hello\r\n\r\n", b"GET / HTTP/1.1\r\n\r\n"], ids=["no HTTP", "no host"])
def test_sec_48_a_refusal_comes_after_the_answers_before_it(api: Api, bad: bytes) -> None:
    messages = _request("GET " + api.messages_path("orders", "orders@broker-a") + "?offset=1000000&wait_ms=200")
    answers = _answers(api, messages + _request("GET /v1/topics/orders") + bad)
    assert [status for status, _ in answers] == [200, 200, 400], answers
    assert "messages" in answers[0][1] and answers[1][1]["topic"] == "orders"


def test_sec_48_a_body_that_breaks_off_is_refused_after_the_answers_before_it(api: Api) -> None:
    messages = _request("GET " + api.messages_path("orders", "orders@broker-a") + "?offset=1000000&wait_ms=200")
    broken = _request("PUT /v1/topics/never", more="Transfer-Encoding: chunked\r\n") + b"zz\r\n"
    assert [status for status, _ in _answers(api, messages + broken)] == [200, 400]
    assert [status for status, _ in _answers(api, broken)] == [400]
    assert api.call("GET", "/v1/topics/never").status == 404


@pytest.mark.parametrize(
    "path", ["/healthz", "/readyz", "/metrics", "/v1/topics", "/v1/topics/orders", "/openapi.json", "/", "/nowhere"]
)
def test_sec_48_head_is_get_without_its_body(api: Api, path: str) -> None:
    get = api.call("GET", path)
    head = api.call("HEAD", path)
    assert head.status == get.status and head.body == b""
    assert {name.lower() for name in head.headers} == {name.lower() for name in get.headers}


def test_sec_48_head_of_messages_ends_with_its_headers(api: Api) -> None:
    path = api.messages_path("orders", "orders@broker-a")
    events = api.call("HEAD", path, Accept="text/event-stream")
    assert (events.status, events.body) == (200, b"") and events.headers["content-type"].startswith("text/event-stream")
    assert api.call("HEAD", path).status == 200
    refused = api.call("HEAD", "/v1/groups/g/topics/orders/pop")
    assert (refused.status, refused.headers["allow"]) == (405, "POST")


def test_sec_48_an_offer_is_taken_out_of_a_head_and_nothing_else() -> None:
    headers = [(b"host", b"x"), (b"connection", b"close, Upgrade"), (b"upgrade", b"h2c"), (b"x", b"upgrade")]
    expected = b"PUT /a?b HTTP/1.1\r\nhost: x\r\nconnection: close\r\nx: upgrade\r\n\r\n"
    assert without_offer(b"PUT", b"/a?b", "1.1", headers) == expected
    check_head(b"GET", b"/", "1.1", [(b"host", b"[::1]:8080"), (b"accept", b"a"), (b"accept", b"b")])
    check_head(b"GET", b"/", "1.0", [])
    with pytest.raises(BadHead, match="give this header once"):
        check_head(b"GET", b"/", "1.1", [(b"host", b"x"), (b"host", b"x")])
