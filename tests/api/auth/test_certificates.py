"""Certificates of clients as principals, beside keys and tokens, also between processes (SPEC SEC-17)."""

from __future__ import annotations

import contextlib
import http.client
import json
import ssl
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deltamq.api.auth.caller import Certificates
from deltamq.api.auth.forwarded import called_by, caller_header
from deltamq.mq.auth.callers import Credential
from deltamq.tables.config import ConfigInvalid, load
from deltamq.tables.config_sections import Secret, TlsClientAuth, TlsPrincipal
from tests.api.auth.test_guarded_service import check_stream_ends, refused, waiting
from tests.api.guarded import SECRET, Guarded, guarded
from tests.api.running import JSON, Reply, until
from tests.certificates import Authority, Pair


def shown(name: str | None, common_name: str | None = None, *uris: str, until_ms: int | None = None) -> dict[str, Any]:
    """The scope of a request whose client has shown this."""
    told = {"client_cert_name": name, "client_common_name": common_name, "client_uris": uris}
    return {"extensions": {"tls": {**told, "client_cert_until_ms": until_ms}}}


def principal(by: TlsPrincipal, scope: dict[str, Any]) -> str | None:
    found = Certificates(by).credential(scope)
    return None if found is None else found.principal


@pytest.mark.parametrize(
    ("uri", "name"),
    [
        ("spiffe://example.org/ns/prod/sa/billing", "spiffe:example.org:ns:prod:sa:billing"),
        ("spiffe://example.org", "spiffe:example.org"),
        ("spiffe://example.org/", None),
        ("spiffe://example.org//a", None),
        ("spiffe://example.org:8/a", None),
        ("spiffe://example.org/a:b", None),
        ("spiffe://example.org/a%2fb", None),
        ("spiffe://example.org/a b", None),
        ("spiffe://example.org/\u0430", None),
        ("spiffe:example.org:a", None),
        ("group://analysts", None),
        ("", None),
        ("spiffe://" + "a" * 200, None),
    ],
)
def test_sec_17_a_uri_is_a_principal_in_one_way(uri: str, name: str | None) -> None:
    assert principal(TlsPrincipal.URI, shown("CN=x", "x", uri)) == name


def test_sec_17_a_certificate_with_several_uris_or_none_names_nobody() -> None:
    assert principal(TlsPrincipal.URI, shown("CN=x", "x")) is None
    assert principal(TlsPrincipal.URI, shown("CN=x", "x", "a://b", "a://c")) is None


@pytest.mark.parametrize(
    "name", ["billing", "a@example.org", "", "..", "a b", "a\n", "group:x", "gr\u00fc\u00dfe", None]
)
def test_sec_17_a_common_name_is_a_principal_if_it_may_be_one(name: str | None) -> None:
    found = principal(TlsPrincipal.COMMON_NAME, shown("CN=...", name))
    assert found == (name if name in ("billing", "a@example.org") else None)


def test_sec_17_without_a_setting_a_certificate_or_tls_nobody_is_named() -> None:
    for by in TlsPrincipal:
        assert principal(by, {}) is principal(by, {"extensions": {}}) is principal(by, shown(None)) is None
    assert principal(TlsPrincipal.NONE, shown("CN=billing", "billing", "a://b")) is None


@given(st.text(max_size=20), st.text(max_size=20))
def test_sec_17_two_subjects_are_two_principals(one: str, other: str) -> None:
    names = [principal(TlsPrincipal.SUBJECT, shown(f"CN={text}")) for text in (one, other)]
    assert None not in names and (names[0] == names[1]) == (one == other)


def test_sec_17_a_certificate_is_good_until_it_ends() -> None:
    found = Certificates(TlsPrincipal.COMMON_NAME).credential(shown("CN=a", "a", until_ms=50))
    assert found == Credential(principal="a", until_ms=50)


@pytest.mark.parametrize(
    "values", [(), (b"a", b"a"), (b"",), (b"group:a",), (b"a,b",), (b"a,",), (b"a b",), (b"\xd0\xb0",)]
)
def test_sec_17_a_process_names_one_caller_or_nobody(values: tuple[bytes, ...]) -> None:
    assert called_by([(b"mq-caller", one) for one in values]) is None
    assert called_by([(b"host", b"x"), (b"mq-caller", b"a")]) == Credential(principal="a")


@pytest.mark.parametrize("groups", [(), ("group:a",), ("group:a", "group:b")])
def test_sec_17_a_process_names_the_groups_of_a_token_too(groups: tuple[str, ...]) -> None:
    credential = Credential(principal="a", groups=groups)
    assert called_by([caller_header(credential)]) == credential


@pytest.mark.parametrize(
    "given_settings",
    [
        {"service.tls_client_auth": "optional", "service.tls_client_ca": "ca.pem", "service.tls_cert": "a.pem"},
        {"service.auth": True},
        {},
    ],
)
def test_sec_17_what_checks_no_certificate_takes_no_principal_from_one(given_settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigInvalid, match=r"service.auth and service.tls_client_auth"):
        load(None, {**given_settings, "service.tls_principal": "common_name"}, environ={})


# With real connections ------------------------------------------------------------------------------------------------


@dataclass
class Secured(Guarded):
    """A service with TLS, as a client with or without a certificate sees it."""

    context: ssl.SSLContext | None = None

    def call(self, method: str, path: str, body: Any = None, kind: str | None = None, **headers: str) -> Reply:
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        if self.token is not None:
            sent.setdefault("Authorization", f"Bearer {self.token}")
        if isinstance(body, (dict, list)):
            body, kind = json.dumps(body).encode(), kind or JSON
        if kind is not None:
            sent["Content-Type"] = kind
        connection = http.client.HTTPSConnection("127.0.0.1", self.port, timeout=30, context=self.context)
        with contextlib.closing(connection):
            connection.request(method, path, body=body, headers=sent)
            answer = connection.getresponse()
            return Reply(answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read())

    def by(self, token: str | None) -> Secured:
        return Secured(self.port, self.service, token=token, context=self.context)

    def at(self, other: Guarded) -> Secured:
        return Secured(other.port, other.service, token=self.token, context=self.context)


class Place:
    """An authority, and services whose clients it signs."""

    def __init__(self, folder: Path) -> None:
        self.authority = Authority(folder / "tls")
        self.folder = folder
        self._made = 0

    def context(self, common_name: str | None, *, organization: str = "Example", uri: str | None = None) -> Any:
        context = ssl.create_default_context(cafile=self.authority.ca)
        if common_name is not None:
            self._made += 1
            pair: Pair = self.authority.client(common_name, organization, f"client{self._made}", uri=uri)
            context.load_cert_chain(pair.cert, pair.key)
        return context

    @contextlib.contextmanager
    def serving(self, *, token: str | None = None, **more: Any) -> Iterator[Secured]:
        """The service for its administrator, with a key, and a certificate only if one is required."""
        server = self.authority.server()
        settings = {
            "tls_cert": server.cert,
            "tls_key": server.key,
            "tls_ca": self.authority.ca,
            "tls_client_ca": self.authority.ca,
            "tls_client_auth": TlsClientAuth.OPTIONAL,
            "tls_principal": TlsPrincipal.COMMON_NAME,
            **more,
        }
        with guarded(self.folder / "w", token=token, **settings) as api:
            required = settings["tls_client_auth"] is TlsClientAuth.REQUIRED
            context = self.context("operator" if required else None)
            yield Secured(api.port, api.service, token=api.token, context=context)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    return Place(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def admin(place: Place) -> Iterator[Secured]:
    with place.serving() as admin:
        admin.put_topic("orders")
        admin.put_principal("billing")
        admin.rule("billing", "topic", "orders", "subscribe")
        admin.caller("sender", ("topic", "orders", "publish"))
        yield admin


def with_certificate(admin: Secured, context: ssl.SSLContext, token: str | None = None) -> Secured:
    return Secured(admin.port, admin.service, token=token, context=context)


@pytest.mark.promise("AUTH-9")
def test_sec_17_a_certificate_is_its_principal(place: Place, admin: Secured) -> None:
    billing = with_certificate(admin, place.context("billing"))
    assert billing.call("GET", "/v1/topics").json == {"topics": ["orders"]}
    assert refused(billing.send("orders", "a")) == (403, "forbidden")
    assert refused(with_certificate(admin, place.context(None)).call("GET", "/v1/topics")) == (401, "unauthenticated")


@pytest.mark.promise("AUTH-9")
def test_sec_17_a_certificate_of_nobody_opens_nothing_and_the_log_says_whose_it_would_be(
    place: Place, admin: Secured, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "deltamq.api")
    for name in ("stranger", "Billing", "b\u0456lling", "group:writers", "admin\n"):
        caller = with_certificate(admin, place.context(name))
        for path in ("/v1/topics", "/v1/auth/keys", "/nothing"):
            assert refused(caller.call("GET", path)) == (401, "unauthenticated")
    assert caplog.text.count("event=certificate_of_nobody") == 5 and "principal='stranger'" in caplog.text


def test_sec_17_a_key_or_token_wins_and_a_wrong_one_is_not_made_good_by_a_certificate(
    place: Place, admin: Secured
) -> None:
    sender = admin.key("sender")["key"]
    both = with_certificate(admin, place.context("billing"), sender)
    assert both.send("orders", "a").status == 200
    assert refused(both.fetch("orders", "orders@broker-a")) == (403, "forbidden"), "the certificate adds nothing"
    stranger = with_certificate(admin, place.context("stranger"), sender)
    assert stranger.send("orders", "a").status == 200
    billing = with_certificate(admin, place.context("billing"))
    for header in ("", "Bearer", "Bearer x", "Basic YWRtaW46YWRtaW4=", "Bearer mqk_0011223344556677_" + "a" * 43):
        assert refused(billing.call("GET", "/v1/topics", Authorization=header)) == (401, "unauthenticated")
    connection = http.client.HTTPSConnection("127.0.0.1", admin.port, timeout=30, context=billing.context)
    with contextlib.closing(connection):
        connection.putrequest("GET", "/v1/topics")
        for _ in range(2):
            connection.putheader("Authorization", f"Bearer {sender}")
        connection.endheaders()
        assert connection.getresponse().status == 400, (
            "two headers are refused, and no reason to look at the certificate"
        )


def test_sec_17_what_a_client_says_of_its_caller_is_not_believed(place: Place, admin: Secured) -> None:
    forged = {"Mq_Caller": "admin", "Mq_Forwarded": admin.service.hosting.id, "Mq_Proof": f"{int(time.time())}.00"}
    for context in (place.context(None), place.context("stranger"), place.context("billing")):
        caller = with_certificate(admin, context)
        assert caller.call("GET", "/v1/auth/keys", Mq_Caller="admin").status in (401, 403)
        assert caller.call("GET", "/v1/auth/keys", **forged).status in (401, 403)
        assert refused(caller.call("GET", "/v1/topics", **forged)) == (401, "unauthenticated"), "of a process, it says"


def test_sec_17_access_by_a_certificate_ends_with_its_principal(place: Place, admin: Secured) -> None:
    admin.put_principal("leaver")
    admin.rule("leaver", "topic", "orders", "subscribe")
    caller = with_certificate(admin, place.context("leaver"))
    check_stream_ends(
        caller, lambda: admin.call("DELETE", "/v1/auth/principals/leaver").status == 204, "unauthenticated"
    )
    assert refused(caller.call("GET", "/v1/topics")) == (401, "unauthenticated")


def test_sec_19_a_certificate_of_a_disabled_principal_opens_nothing(place: Place, admin: Secured) -> None:
    admin.put_principal("resting")
    admin.rule("resting", "topic", "orders", "subscribe")
    caller = with_certificate(admin, place.context("resting"))
    check_stream_ends(
        caller, lambda: admin.call("POST", "/v1/auth/principals/resting/disable").status == 200, "principal_disabled"
    )
    assert refused(caller.call("GET", "/v1/topics/orders")) == (403, "principal_disabled")
    assert admin.call("POST", "/v1/auth/principals/resting/enable").status == 200
    assert caller.call("GET", "/v1/topics/orders").status == 200


@pytest.mark.parametrize("by", [TlsPrincipal.URI, TlsPrincipal.SUBJECT])
def test_sec_17_other_parts_of_a_certificate_may_name_it(
    tmp_path: Path, by: TlsPrincipal, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "deltamq.api")
    place = Place(tmp_path)
    with place.serving(tls_principal=by) as admin:
        admin.put_topic("orders")
        context = place.context("billing", organization="Example Inc", uri="spiffe://example.org/billing")
        caller = with_certificate(admin, context)
        assert caller.call("GET", "/v1/topics").status == 401
        name = caplog.text.rpartition("event=certificate_of_nobody")[2].rpartition("principal='")[2].partition("'")[0]
        assert name.startswith("spiffe:example.org:billing" if by is TlsPrincipal.URI else "cert:")
        admin.put_principal(name)
        admin.rule(name, "topic", "orders", "describe")
        assert caller.call("GET", "/v1/topics").json == {"topics": ["orders"]}
        other = place.context("billing", organization="Example", uri="spiffe://example.org/other")
        assert with_certificate(admin, other).call("GET", "/v1/topics").status == 401


@pytest.mark.promise("AUTH-9")
def test_sec_17_processes_with_certificates_of_their_own_ask_for_the_caller_and_not_for_themselves(
    tmp_path: Path,
) -> None:
    place = Place(tmp_path)
    more: dict[str, Any] = {"cluster_secret": Secret(SECRET), "tls_client_auth": TlsClientAuth.REQUIRED}
    with (
        place.serving(brokers=("broker-a",), **more) as a,
        place.serving(token=a.token, brokers=("broker-b",), **more) as b,
    ):
        until(lambda: b.service.hosting.hosts("broker-b"))
        until(lambda: all(len(one.service.meta.now.brokers.available) == 2 for one in (a, b)))
        a.put_topic("orders", partitions=2)
        a.put_principal("billing")
        for resource, pattern in (("topic", "orders"), ("group", "billing")):
            a.rule("billing", resource, pattern, "subscribe")
        # The name in the processes' own certificate: what they forward must not become its.
        a.put_principal("deltamq")
        for resource in ("topic", "group"):
            a.rule("deltamq", resource, "*", "publish" if resource == "topic" else "alter", "describe")
        billing = with_certificate(a, place.context("billing"))
        for partition in ("orders@broker-a", "orders@broker-b"):
            assert a.send("orders", {"body": "x", "partition": partition}).status == 200
            denied = billing.send("orders", {"body": "x", "partition": partition})
            assert refused(denied) == (403, "forbidden")
        for api in (billing, billing.at(b)):
            for partition in ("orders@broker-a", "orders@broker-b"):
                fetched = api.fetch("orders", partition)
                assert fetched.status == 200 and len(fetched.json["messages"]) == 1, fetched
                popped = api.call("POST", "/v1/groups/billing/topics/orders/pop", {"partition": partition})
                assert popped.status == 200, popped
                committed = api.call("PUT", "/v1/groups/billing/topics/orders/offsets", {"offsets": {partition: 1}})
                assert committed.status == 200, committed
            assert api.call("GET", "/v1/groups/billing").status == 200
        asked = {"partition": "orders@broker-b", "wait_ms": 20_000}
        thread, found = waiting(billing, "/v1/groups/billing/topics/orders/pop", asked, JSON)
        assert b.call("DELETE", "/v1/auth/principals/billing").status == 204
        thread.join(10)
        assert found and (found[0].status == 401 or not found[0].json["messages"])
        assert {billing.at(api).call("GET", "/v1/topics").status for api in (a, b)} == {401}
