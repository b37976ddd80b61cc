from __future__ import annotations

import http.client
import ssl
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deltamq.api.app import App, create_app
from deltamq.api.ports import Ports
from deltamq.api.tls import TlsPeer, peer_of
from deltamq.api.wire.request import Receive, Scope, Send
from deltamq.tables.config import Config
from deltamq.tables.config_sections import TlsClientAuth
from tests.api.running import config_for, running
from tests.certificates import Authority


class Shown:
    """A TLS connection whose client has shown a certificate with this subject."""

    def __init__(self, *subject: tuple[tuple[str, str], ...]) -> None:
        self._shown = {"subject": subject} if subject else None

    def getpeercert(self) -> Any:
        return self._shown

    def version(self) -> str:
        return "TLSv1.3"


def named(*subject: tuple[str, str]) -> TlsPeer:
    peer = peer_of(Shown(*((one,) for one in subject)))  # type: ignore[arg-type] # it has what is used
    assert peer is not None
    return peer


def test_sec_26_a_connection_without_tls_or_certificate_has_no_name() -> None:
    assert peer_of(None) is None
    assert peer_of(Shown()) == TlsPeer(None, None, "TLSv1.3")  # type: ignore[arg-type] # it has what is used


@pytest.mark.parametrize(
    ("subject", "name"),
    [
        ((("organizationName", "Example"), ("commonName", "billing")), "CN=billing,O=Example"),
        ((("commonName", "a,CN=admin"),), r"CN=a\,CN\=admin"),
        ((("commonName", ' #"+<>;\\ '),), r"CN=\ #\"\+\<\>\;\\\ "),
        ((("commonName", "a\r\nb\0"),), r"CN=a\0D\0Ab\00"),
        ((("emailAddress", "a@example.org"),), "emailAddress=a@example.org"),
        ((("commonName", ""),), "CN="),
    ],
)
def test_sec_26_a_subject_is_written_as_rfc_4514_says(subject: tuple[tuple[str, str], ...], name: str) -> None:
    assert named(*subject).name == name


@given(st.lists(st.tuples(st.sampled_from(["commonName", "organizationName"]), st.text(max_size=8)), max_size=3))
def test_sec_26_different_subjects_have_different_names(subject: list[tuple[str, str]]) -> None:
    found = named(*subject).name or ""
    for index in range(len(subject)):
        kind, value = subject[index]
        other = [*subject]
        other[index] = (kind, value + "x")
        assert named(*other).name != found
    # Splitting at signs that are not escaped gives as many attributes as there are.
    parts, escaped = 1, False
    for character in found:
        parts += character == "," and not escaped
        escaped = character == "\\" and not escaped
    assert parts == max(1, len(subject))


def test_sec_26_two_common_names_are_no_common_name() -> None:
    assert named(("commonName", "a"), ("commonName", "admin")).common_name is None
    assert named(("commonName", "a")).common_name == "a"


def test_sec_26_the_application_sees_the_subject_of_a_verified_certificate(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    server, client = authority.server(), authority.client("billing", uri="spiffe://example.org/billing")
    seen: list[Any] = []

    class Witness(App):
        async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
            if scope["type"] == "http":
                seen.append(scope["extensions"].get("tls"))
            await super().__call__(scope, receive, send)

    def make(config: Config, ports: Ports) -> App:
        return Witness(create_app(config, ports).fastapi, config, ports, traces=None)

    config = config_for(
        tmp_path / "warehouse",
        tls_cert=server.cert,
        tls_key=server.key,
        tls_client_ca=authority.ca,
        tls_client_auth=TlsClientAuth.OPTIONAL,
    )
    with running(config, make=make) as api:
        for pair in (None, client):
            context = ssl.create_default_context(cafile=authority.ca)
            if pair is not None:
                context.load_cert_chain(pair.cert, pair.key)
            with closing(http.client.HTTPSConnection("127.0.0.1", api.port, timeout=30, context=context)) as connection:
                connection.request("GET", "/healthz")
                assert connection.getresponse().status == 200
        stranger = Authority(tmp_path / "another").client("admin")
        context = ssl.create_default_context(cafile=authority.ca)
        context.load_cert_chain(stranger.cert, stranger.key)
        connection = http.client.HTTPSConnection("127.0.0.1", api.port, timeout=30, context=context)
        with closing(connection), pytest.raises(OSError):
            connection.request("GET", "/healthz")
            connection.getresponse()
    assert [one["client_cert_name"] for one in seen] == [None, "CN=billing,O=Example"]
    assert [one["client_common_name"] for one in seen] == [None, "billing"]
    assert [one["client_uris"] for one in seen] == [(), ("spiffe://example.org/billing",)]
    now_ms = time.time() * 1_000
    assert seen[0]["client_cert_until_ms"] is None and now_ms < seen[1]["client_cert_until_ms"] < now_ms + 90_000_000
