from __future__ import annotations

import base64
import json
import os
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs

import pytest

from deltamq.mq.client.admin.admin import Admin
from deltamq.mq.client.http.credentials import Credentials
from deltamq.mq.client.http.oidc import OidcClientCredentials
from deltamq.mq.client.shells.shell import run_now
from deltamq.mq.errors import Refused, Unauthenticated, Unavailable
from deltamq.tables.config import load
from tests.identity_provider import DISCOVERY, IdentityProvider
from tests.identity_provider import provider as running_provider
from tests.unit.client.stub_service import StubService


class Provider:
    """An identity provider's token endpoint."""

    def __init__(self) -> None:
        self.granted = 0
        self.asked: list[tuple[str, dict[str, list[str]]]] = []
        self.expires_in: object = 600
        self.answer: tuple[int, bytes] | None = None
        self.may_answer = threading.Event()
        self.may_answer.set()
        provider = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                form = parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())
                provider.asked.append((self.headers["Authorization"], form))
                provider.may_answer.wait(20)
                if provider.answer is None:
                    provider.granted += 1
                    text = '{"access_token": "t%d", "token_type": "Bearer", "expires_in": %s}'
                    status, body = 200, (text % (provider.granted, provider.expires_in)).encode()
                else:
                    status, body = provider.answer
                self.send_response(status)
                self.send_header("Location", "http://127.0.0.1:1/elsewhere")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}/token"
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()

    def close(self) -> None:
        self.may_answer.set()
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def provider() -> Iterator[Provider]:
    made = Provider()
    yield made
    made.close()


@pytest.fixture
def idp() -> Iterator[IdentityProvider]:
    with running_provider() as made:
        yield made


class Clock:
    now_s = 1_000.0

    def __call__(self) -> float:
        return self.now_s


def made_with(provider: Provider, clock: Clock, secret: str = "s3cret/+") -> OidcClientCredentials:
    return OidcClientCredentials(provider.url, "app", secret, "all-apis", now_s=clock)


def test_sec_24_a_token_is_asked_for_as_oauth_says_and_kept(provider: Provider) -> None:
    token = made_with(provider, Clock())
    assert [token() for _ in range(3)] == ["t1"] * 3
    [(authorization, form)] = provider.asked
    assert base64.b64decode(authorization.removeprefix("Basic ")) == b"app:s3cret%2F%2B"
    assert form == {"grant_type": ["client_credentials"], "scope": ["all-apis"]}


def test_sec_24_the_next_token_is_fetched_before_the_present_one_expires(provider: Provider) -> None:
    clock = Clock()
    token = made_with(provider, clock)
    assert token() == "t1"
    clock.now_s += 539
    assert token() == "t1"
    clock.now_s += 2
    assert token() == "t2"


def test_sec_24_while_the_next_token_is_fetched_the_present_one_is_used(provider: Provider) -> None:
    clock = Clock()
    token = made_with(provider, clock)
    assert token() == "t1"
    clock.now_s += 550
    provider.may_answer.clear()
    fetched: list[str] = []
    fetching = threading.Thread(target=lambda: fetched.append(token()))
    fetching.start()
    while len(provider.asked) < 2:
        fetching.join(0.01)
    assert [token() for _ in range(8)] == ["t1"] * 8
    provider.may_answer.set()
    fetching.join()
    assert fetched == ["t2"] and token() == "t2"
    assert len(provider.asked) == 2


def test_sec_24_a_provider_that_is_away_fails_nothing_while_the_token_is_valid(provider: Provider) -> None:
    clock = Clock()
    token = made_with(provider, clock)
    assert token() == "t1"
    provider.answer = (503, b"")
    clock.now_s += 550
    assert [token() for _ in range(4)] == ["t1"] * 4
    assert len(provider.asked) == 2, "it is asked again only after a while"
    clock.now_s += 6
    assert token() == "t1" and len(provider.asked) == 3
    clock.now_s += 60
    with pytest.raises(Unavailable) as caught:
        token()
    assert caught.value.code == "token_unavailable"
    provider.answer = None
    assert token() == "t2"


def test_sec_24_short_lives_are_refreshed_at_four_fifths(provider: Provider) -> None:
    provider.expires_in = '"10"'
    clock = Clock()
    token = made_with(provider, clock)
    assert token() == "t1"
    clock.now_s += 7.9
    assert token() == "t1"
    clock.now_s += 0.2
    assert token() == "t2"


@pytest.mark.parametrize("status", [400, 401, 403])
def test_sec_24_a_refused_secret_is_told_and_never_shown(provider: Provider, status: int) -> None:
    provider.answer = (status, b'{"error": "invalid_client", "secret": "s3cret"}')
    token = made_with(provider, Clock())
    with pytest.raises(Unauthenticated) as caught:
        token()
    assert caught.value.code == "token_refused"
    assert "s3cret" not in str(caught.value) + repr(caught.value) + repr(token)


@pytest.mark.parametrize(
    "answer",
    [(302, b""), (500, b"x"), (200, b"<html>"), (200, b"{}"), (200, b'{"access_token": 5}'), (200, b"x" * 70_000)],
)
def test_sec_24_an_answer_without_a_token_is_unavailable(provider: Provider, answer: tuple[int, bytes]) -> None:
    provider.answer = answer
    with pytest.raises(Unavailable):
        made_with(provider, Clock())()
    assert len(provider.asked) == 1, "no redirect is followed"


def test_sec_24_a_token_with_a_line_end_is_refused(provider: Provider) -> None:
    provider.answer = (200, rb'{"access_token": "a\r\nX: y"}')
    with pytest.raises(Refused):
        made_with(provider, Clock())()


def test_sec_24_the_token_endpoint_is_found_at_the_issuer_once(idp: IdentityProvider) -> None:
    idp.clients["app"] = "s3cret"
    clock = Clock()
    token = OidcClientCredentials(issuer=idp.url, client_id="app", client_secret="s3cret", now_s=clock)
    assert repr(token) == f"OidcClientCredentials({idp.url!r})" and idp.asked == []
    first = token()
    clock.now_s += 700
    assert token() and len(first.split(".")) == 3
    assert idp.asked == ["/.well-known/openid-configuration", "/token", "/token"]


@pytest.mark.parametrize(
    "found",
    [
        {"issuer": "https://idp.example.org"},
        {"token_endpoint": "http://idp.example.org/token"},
        {"token_endpoint": "https://u:p@idp.example.org/token"},
        {"token_endpoint": "file:///etc/passwd"},
        {"token_endpoint": ""},
        {"token_endpoint": None},
    ],
)
def test_sec_24_the_secret_goes_nowhere_if_the_discovery_document_is_not_the_issuers(
    idp: IdentityProvider, found: dict[str, object]
) -> None:
    idp.clients["app"] = "s3cret"
    idp.instead[DISCOVERY] = 200, json.dumps({**idp.discovery, **found}).encode()
    token = OidcClientCredentials(issuer=idp.url, client_id="app", client_secret="s3cret")
    with pytest.raises(Unavailable) as caught:
        token()
    assert caught.value.code == "token_unavailable" and "s3cret" not in str(caught.value)
    assert "/token" not in idp.asked
    del idp.instead[DISCOVERY]
    assert token()


@pytest.mark.parametrize(
    "answer", [(404, b"{}"), (302, b""), (200, b"<html>"), (200, b"[" * 50_000), (200, b"x" * 70_000)]
)
def test_sec_24_an_issuer_without_a_discovery_document_is_unavailable(
    idp: IdentityProvider, answer: tuple[int, bytes]
) -> None:
    idp.instead[DISCOVERY] = answer
    with pytest.raises(Unavailable):
        OidcClientCredentials(issuer=idp.url, client_id="app", client_secret="s3cret")()


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"url": "https://a/token", "issuer": "https://a", "client_id": "a", "client_secret": "b"},
        {"issuer": "https://a", "client_id": "a"},
        {"issuer": "https://a", "client_secret": "b"},
        {"issuer": "http://idp.example.org", "client_id": "a", "client_secret": "b"},
        {"issuer": "https://u:p@idp.example.org", "client_id": "a", "client_secret": "b"},
    ],
)
def test_sec_24_half_a_provider_is_refused(given: dict[str, str]) -> None:
    with pytest.raises(Refused):
        OidcClientCredentials(**given)


def test_sec_24_the_environment_may_name_the_provider(idp: IdentityProvider, monkeypatch: pytest.MonkeyPatch) -> None:
    idp.clients["app"] = "s3cret"
    monkeypatch.delenv("DELTAMQ_CLIENT_TOKEN", raising=False)
    assert run_now(Credentials().token()) is None
    monkeypatch.setenv("DELTAMQ_CLIENT_OIDC_ISSUER", idp.url)
    with pytest.raises(Refused, match="DELTAMQ_CLIENT_OIDC_CLIENT_ID"):
        Credentials()
    monkeypatch.setenv("DELTAMQ_CLIENT_OIDC_CLIENT_ID", "app")
    monkeypatch.setenv("DELTAMQ_CLIENT_OIDC_CLIENT_SECRET", "s3cret")
    assert len((run_now(Credentials().token()) or "").split(".")) == 3
    assert run_now(Credentials("").token()) is None and run_now(Credentials("given").token()) == "given"
    monkeypatch.setenv("DELTAMQ_CLIENT_TOKEN", "from-env")
    assert run_now(Credentials().token()) == "from-env"
    assert load(environ=dict(os.environ)).client.oidc_client_id == "app", "the settings know these variables"


@pytest.mark.parametrize(
    "url", ["http://idp.example.org/token", "ftp://127.0.0.1/", "idp", "", "https://u:p@idp.example.org/token"]
)
def test_sec_24_a_secret_is_not_sent_in_the_clear(url: str) -> None:
    with pytest.raises(Refused):
        OidcClientCredentials(url, "app", "s3cret")


def test_sec_24_a_token_that_the_service_refuses_is_replaced_though_it_has_not_expired(
    provider: Provider, stub: StubService
) -> None:
    token = OidcClientCredentials(provider.url, "app", "s3cret")
    stub.valid_tokens = {"t1"}
    with Admin(stub.url, token=token) as admin:
        admin.list_topics()
        stub.valid_tokens = {"t2"}
        admin.list_topics()
    assert provider.granted == 2
