"""What an outsider would try first, line by line; README.md beside it says where each line is played (SPEC SEC)."""

from __future__ import annotations

import contextlib
import http.client
import json
import re
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from urllib.parse import quote

import pytest

from deltamq.api.auth.calls import CALLS
from deltamq.api.front import HOT_CALLS
from deltamq.mq.auth.changes import decide_first_administrator
from deltamq.mq.auth.keys import new_key
from deltamq.mq.auth.state import AuthState
from tests.api.auth.test_guarded_service import refused, waiting
from tests.api.auth.test_two_processes import Two, consumer, two_in
from tests.api.guarded import Guarded, guarded
from tests.api.running import until

HERE = Path(__file__).parent
METHODS = ("GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "PROPFIND")
OPEN = ("GET /healthz", "GET /readyz", "GET /console/app.js", "GET /v1/auth/sign-in")
UNKNOWN = (
    "/docs",
    "/redoc",
    "/v1",
    "/v2/topics",
    "/v1/secrets",
    "/.env",
    "/admin",
    "/v1/topics/",
    "//",
    "/%2e%2e/etc/passwd",
)


@pytest.fixture(scope="module")
def admin(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    with guarded(tmp_path_factory.mktemp("outsider")) as admin:
        admin.put_topic("orders")
        assert admin.call("PUT", "/v1/groups/billing", {}).status == 201
        yield admin


def all_paths(admin: Guarded) -> list[str]:
    """Every path of the OpenAPI document, every hot call's, and some that nothing serves; with names that exist."""
    document = json.loads(admin.call("GET", "/openapi.json").body)
    templates = [*document["paths"], *(call.partition(" ")[2] for call in HOT_CALLS), "/openapi.json"]
    assert len(document["paths"]) > 40
    names = {"topic": "orders", "group": "billing", "partition": "orders%40broker-a", "principal": "admin"}
    filled = [re.sub(r"\{(\w+)(:path)?\}", lambda found: names.get(found[1], "x"), one) for one in templates]
    return [*dict.fromkeys([*filled, *UNKNOWN, "/console/app.js"])]


def is_open(method: str, path: str) -> bool:
    return f"{'GET' if method == 'HEAD' else method} {path}" in OPEN  # SPEC SEC-48


# 1. Everything without a token: 401 and nothing else, in the same time; with a token without grants: 403. -------------


def test_outsider_1_every_path_and_method_without_a_token_is_401_and_nothing_else(admin: Guarded) -> None:
    nobody, told = admin.by(None), set()
    for path in all_paths(admin):
        for method in METHODS:
            if is_open(method, path):
                continue
            reply = nobody.call(method, path)
            assert reply.status == 401, (method, path, reply)
            if method != "HEAD" and (method, path) != ("GET", "/"):
                told.add((reply.body, tuple(sorted(name for name in reply.headers if name != "date"))))
    assert len(told) == 1, "the same answer to all of them"


def test_outsider_1_with_a_token_without_grants_everything_is_403(admin: Guarded) -> None:
    nobody = admin.caller("no.grants")
    for path in all_paths(admin):
        for method in METHODS:
            if not is_open(method, path):
                assert nobody.call(method, path).status == 403, (method, path)


def medians(tries: Sequence[Callable[[], object]], count: int) -> list[float]:
    """The median time of each, in turns, so that a busy moment is in all of them."""
    times: list[list[float]] = [[] for _ in tries]
    for _ in range(count):
        for one, its_times in zip(tries, times, strict=True):
            began = time.perf_counter()
            one()
            its_times.append(time.perf_counter() - began)
    return [statistics.median(one) for one in times]


def assert_same_time(tries: Sequence[Callable[[], object]], *, count: int, within: float) -> None:
    """A difference that is there in each of several rounds is one; a busy machine makes one in some."""
    seen = []
    for _ in range(5):
        found = medians(tries, count)
        seen.append(max(found) / min(found))
        if seen[-1] <= within:
            return
    raise AssertionError(f"the slowest took {seen} times as long as the fastest")


def test_outsider_1_without_a_token_every_answer_takes_the_same_time(admin: Guarded) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", admin.port, timeout=30)

    def ask(path: str, method: str = "GET") -> Callable[[], None]:
        def asked() -> None:
            connection.request(method, path)
            reply = connection.getresponse()
            assert (reply.status, len(reply.read()) > 0) == (401, True)

        return asked

    paths = (
        "/v1/topics/orders",
        "/v1/topics/nothing",
        "/v1/secrets",
        "/v1/groups/billing",
        "/v1/auth/principals/admin",
    )
    with contextlib.closing(connection):
        assert_same_time([ask(path) for path in paths] + [ask(paths[0], "DELETE")], count=60, within=1.5)


# 2. A key that may only publish; rotation; revocation on two processes. -----------------------------------------------


def test_outsider_2_a_key_that_may_only_publish(admin: Guarded) -> None:
    sender = admin.caller("only.sends", ("topic", "orders", "publish"))
    may = {
        "POST /v1/topics/{topic}/messages": 200,
        "GET /v1/topics/{topic}": 200,  # the route: where to send
        "GET /v1/topics/{topic}/retention": 200,  # without the names of groups
        "GET /v1/topics/{topic}/offsets": 200,
        "GET /schemas/associations/resources/{namespace}/{topic}": 200,  # there are none
        "POST /v1/topics/{topic}/check": 422,  # allowed, and the topic is not static
        "DELETE /v1/topics/{topic}/messages/{message_id:path}": 400,  # its own delayed messages; there is none
        "DELETE /v1/topics/{topic}/delayed/{message_id:path}": 404,
        "POST /v1/topics/{topic}/quarantine/replay": 422,  # as sending; the topic has no schema
        **{name: 200 for name, text in CALLS.items() if text in ("any", "open")},
    }
    for name in CALLS:
        method, _, template = name.partition(" ")
        names = {"topic": "orders", "group": "billing", "partition": "orders%40broker-a"}
        path = re.sub(r"\{(\w+)(:path)?\}", lambda found, names=names: names.get(found[1], "x"), template)
        body = {"messages": [{"body": "a"}]} if template.endswith("/messages") and method == "POST" else None
        reply = sender.call(method, path, body)
        if name in may:
            assert reply.status not in (401, 403), (name, reply)
        else:
            assert reply.status == 403, (name, reply)
    assert sender.send("orders", "a").status == 200
    assert sender.call("GET", "/v1/topics").json == {"topics": ["orders"]}
    assert sender.call("GET", "/v1/groups").json == {"groups": []}


def test_outsider_2_revoked_at_one_process_is_401_at_both_within_5_s_and_streams_end(tmp_path: Path) -> None:
    for two in two_in(tmp_path / "warehouse"):
        _revoke_at_both(two)


def _revoke_at_both(two: Two) -> None:
    caller = consumer(two, "watched")
    streams = []
    for api, broker in ((two.a, "broker-a"), (two.b, "broker-b")):
        path = f"/v1/topics/watched/partitions/{quote('watched@' + broker)}/messages"
        streams.append(waiting(caller.at(api), path, None, "text/event-stream"))
    until(lambda: all(one.service.gate is not None and one.service.gate._waiting for one in two))
    began = time.monotonic()
    assert two.a.call("DELETE", f"/v1/auth/keys/{str(caller.token)[4:20]}").status == 204
    for api in two:
        assert refused(caller.at(api).call("GET", "/v1/topics")) == (401, "unauthenticated")
    for thread, found in streams:
        thread.join(18)
        assert b'"code":"unauthenticated"' in found[0].body.rpartition(b"event: refused")[2]
    assert time.monotonic() - began < 15


# 4. schemathesis. -----------------------------------------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.timeout(1_800)
def test_outsider_4_schemathesis_finds_no_call_that_ignores_authentication(tmp_path: Path) -> None:
    with guarded(tmp_path / "warehouse") as admin:
        found = subprocess.run(
            [
                *(sys.executable, "-m", "schemathesis.cli", "run", f"http://127.0.0.1:{admin.port}/openapi.json"),
                *("--header", f"Authorization: Bearer {admin.token}", "--checks", "ignored_auth"),
                *("--max-examples", "10", "--phases", "examples,fuzzing", "--seed", "7", "--no-color"),
                *("--generation-database", "none", "--request-timeout", "60"),
                # It finds its own key and principal there, and removes them.
                *("--exclude-path-regex", "^/v1/auth/(keys|principals|acls)/"),
            ],
            capture_output=True,
            text=True,
            cwd=tmp_path,
        )
        assert found.returncode == 0, found.stdout[-8_000:] + found.stderr[-2_000:]
        tried = admin.service.metrics.requests["access", 401]
        assert tried > 30, "it asked again without a token, and with a wrong one"
        assert admin.call("GET", "/v1/topics").status == 200, "its key is still one"


# 5. Names that mean something else. -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def prefixed(admin: Guarded) -> Guarded:
    """Who may read what begins with `orders.`, where there is more."""
    for topic in ("secret", "orders.x", "ordersx"):
        admin.put_topic(topic)
    return admin.caller("prefixed", ("topic", "orders.*", "describe", "subscribe"))


def raw(admin: Guarded, line: bytes) -> int:
    """The status of a request whose path is sent as it is."""
    with contextlib.closing(socket.create_connection(("127.0.0.1", admin.port), timeout=30)) as plain:
        token = str(admin.token).encode()
        plain.sendall(
            line + b" HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer " + token + b"\r\nConnection: close\r\n\r\n"
        )
        return int(plain.makefile("rb").readline().split()[1])


@pytest.mark.parametrize(
    "name",
    [
        b"..",
        b"%2e%2e",
        b"%252e%252e",
        b"../topics/secret",
        b"orders.x/../secret",
        b"orders.x%2f..%2fsecret",
        b"orders.x%2F%2e%2e%2Fsecret",
        b"orders.x/..%2fsecret",
        b"orders.x%00/secret",
        b"orders.x\\..\\secret",
        b"orders",
        b"ordersx",
        b"orders%2Ex%2f..",
        b"ORDERS.x",
        b"Orders.x",
        b"%20orders.x",
        b"orders%E2%80%A4x",  # one dot leader
        b"orders%EF%BC%8Ex",  # full-width full stop
        b"%D0%BErders.x",  # the first letter is Cyrillic
        b"or%C4%91ers.x",
        b"%E2%80%AEorders.x",
        b"secret",
        b"secret%3Forders.x",
        b"secret;orders.x",
    ],
)
def test_outsider_5_a_pattern_opens_no_other_name_however_it_is_written(prefixed: Guarded, name: bytes) -> None:
    caller = prefixed
    for rest in (b"", b"/offsets", b"/partitions/secret%40broker-a/messages"):
        assert raw(caller, b"GET /v1/topics/" + name + rest) in (400, 403, 404), rest
    assert raw(caller, b"GET /v1/topics/orders.x") == 200
    assert raw(caller, b"GET /v1/topics/orders%2Ex") == 200, "a name may be written so, and is the same"
    # Another topic's partition is none of this topic's.
    assert raw(caller, b"GET /v1/topics/orders.x/partitions/secret%40broker-a/messages") == 404


# 6. Timing of wrong keys. ---------------------------------------------------------------------------------------------


def test_outsider_6_how_much_of_a_key_is_right_does_not_show_in_the_time() -> None:
    from deltamq.api.auth.credentials import Credentials
    from deltamq.mq.errors import Unauthenticated

    key, token = new_key("root", b"r" * 8, b"R" * 32, 1)
    state = AuthState().apply_all(decide_first_administrator(AuthState(), key))
    credentials = Credentials(lambda: state, lambda: 10)

    def changed(at: int) -> Callable[[], None]:
        wrong = token[:at] + ("A" if token[at] != "A" else "B") + token[at + 1 :]
        if at < 20:  # in the id, of hexadecimal digits: nobody's
            wrong = token[:at] + ("a" if token[at] != "a" else "b") + token[at + 1 :]

        def tried() -> None:
            for _ in range(20):
                with contextlib.suppress(Unauthenticated):
                    credentials.of(wrong)

        return tried

    assert_same_time([changed(at) for at in (4, 19, 21, 40, len(token) - 1)], count=300, within=1.15)


# The table of where each line is. -------------------------------------------------------------------------------------


def test_outsider_every_test_that_the_table_names_exists() -> None:
    named = re.findall(r"`(test_\w+)`", (HERE / "README.md").read_text(encoding="utf-8"))
    sources = "\n".join(path.read_text(encoding="utf-8") for path in HERE.parents[1].rglob("test_*.py"))
    assert len(named) > 15
    assert [name for name in named if f"def {name}(" not in sources] == []
