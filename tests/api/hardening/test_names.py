"""No name leaves its folder, and none looks like another (SPEC SEC-33)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from deltamq.mq.errors import Refused
from deltamq.mq.names import check_group
from tests.api.running import Api, config_for, running

CALLS = (
    ("PUT", "/v1/topics/{}"),
    ("GET", "/v1/topics/{}"),
    ("DELETE", "/v1/topics/{}"),
    ("POST", "/v1/topics/{}/messages"),
    ("GET", "/v1/topics/{}/partitions/x@broker-a/messages"),
    ("GET", "/v1/topics/orders/partitions/{}/messages"),
    ("PUT", "/v1/topics/orders/partitions/{}"),
    ("PUT", "/v1/groups/{}"),
    ("DELETE", "/v1/groups/{}"),
    ("PUT", "/v1/brokers/{}"),
    ("POST", "/v1/groups/{}/ack"),
    ("POST", "/v1/groups/{}/topics/orders/pop"),
    ("POST", "/v1/groups/billing/topics/{}/pop"),
)
ODD = (
    "..",
    ".",
    "../../etc/passwd",
    "..\\..\\x",
    "/etc/passwd",
    "a/../../b",
    "a\0b",
    "orders\n",
    "orders\u2028",
    "ordеrs",  # with a Cyrillic letter
    "ｏｒｄｅｒｓ",
    "．．",
    "orders\u200d",
    "\u202eorders",
    "con:",
    "~root",
    "$HOME",
    " orders",
    "a" * 256,
)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("place")


@pytest.fixture(scope="module")
def api(place: Path) -> Iterator[Api]:
    with running(config_for(place / "warehouse")) as found:
        found.put_topic("orders", partitions=1)
        found.call("PUT", "/v1/groups/billing", {})
        yield found


def _sent(api: Api, method: str, path: str) -> int:
    body = None if method in ("GET", "DELETE") else (b"{}" if method == "PUT" else b'{"messages": [{"body": "x"}]}')
    return api.call(method, path, body, None if body is None else "application/json").status


def _is_group(name: str) -> bool:
    try:
        return check_group(name) == name
    except Refused:
        return False


@pytest.mark.parametrize("name", ODD, ids=ascii)
def test_sec_33_a_name_that_could_leave_its_folder_is_refused_by_every_call(api: Api, place: Path, name: str) -> None:
    for method, path in CALLS:
        if path.startswith("/v1/groups/{}") and _is_group(name):
            _sent(api, method, path.format(quote(name, safe="")))  # Kafka's clients may call a group so (SPEC MODEL-5)
            continue
        for written in (quote(name, safe=""), quote(name, safe=".").replace(".", "%2e")):
            assert 400 <= _sent(api, method, path.format(written)) < 500, (method, path, written)
    assert [one.name for one in place.iterdir()] == ["warehouse"]
    assert sorted(one.name for one in (place / "warehouse" / "topics").iterdir()) == ["orders"]


def test_sec_33_names_are_decoded_once(api: Api, place: Path) -> None:
    # A percent sign is a character of names, so this is one, and no way out.
    assert _sent(api, "PUT", "/v1/topics/%252e%252e%252fx") == 201
    assert [one.name for one in place.iterdir()] == ["warehouse"]
    assert api.call("DELETE", "/v1/topics/%252e%252e%252fx").status == 204


@given(name=st.text(max_size=40) | st.text(alphabet="./\\%2eE\0", max_size=12))
@settings(
    max_examples=settings.default.max_examples * 2,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
def test_sec_33_whatever_a_name_says_nothing_is_made_outside_of_the_topics_folder(
    api: Api, place: Path, name: str
) -> None:
    status = _sent(api, "PUT", f"/v1/topics/{quote(name.encode('utf-8', 'surrogatepass'), safe='')}")
    assert status < 500
    assert [one.name for one in place.iterdir()] == ["warehouse"]
    for folder in (place / "warehouse" / "topics").iterdir():
        assert folder.name.isascii() and folder.resolve().parent == (place / "warehouse" / "topics").resolve()
