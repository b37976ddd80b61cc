"""Tokens of an identity provider, with a real provider and a real service (SPEC SEC-15, SEC-16)."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

import pytest
from cryptography.hazmat.primitives.asymmetric.padding import PKCS1v15
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from deltamq.api.auth.credentials import KeyTimes
from deltamq.api.ports import Ports
from deltamq.mq.errors import Refused
from deltamq.mq.limits import AUTHORIZATION_BYTES_MAX, JWKS_BYTES_MAX
from tests.api.auth.test_guarded_service import check_stream_ends, refused, waiting
from tests.api.guarded import Guarded, guarded
from tests.api.running import JSON, until
from tests.identity_provider import AUDIENCE, DISCOVERY, IdentityProvider, elliptic, jwk_of, provider, rsa_key
from tests.set_clock import AheadClock

#: Reads follow each other fast, so that tests need not wait; nothing is read only because it is old.
TIMES = KeyTimes(retry_ms=50, read_ms=2_000, wait_ms=10_000)
SKEW_S = 60


class World(NamedTuple):
    idp: IdentityProvider
    admin: Guarded
    clock: AheadClock

    def by(self, token: str) -> Guarded:
        return self.admin.by(token)

    def status(self, token: str) -> int:
        return self.by(token).call("GET", "/v1/topics/orders").status


@pytest.fixture(scope="module")
def running_world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    clock = AheadClock()
    with provider() as idp:
        oidc = idp.settings(groups_claim="groups", algorithms=("RS256", "ES256"))
        folder = tmp_path_factory.mktemp("tokens")
        with guarded(folder, Ports(key_times=TIMES, clock=clock), oidc=oidc) as admin:
            admin.put_topic("orders")
            admin.caller("reports", ("topic", "orders", "subscribe"), ("group", "reports", "subscribe"))
            yield World(idp, admin, clock)


@pytest.fixture
def world(running_world: World) -> Iterator[World]:
    """The provider as it was at first: with its first key alone, which the service has read."""
    yield running_world
    idp = running_world.idp
    idp.may_answer.set()
    idp.instead.clear()
    idp.published = [jwk_of(rsa_key("one"), "one")]
    running_world.clock.ahead_ms = 0
    reads = idp.reads
    until(lambda: running_world.status(idp.token(kid=str(idp.reads))) == 401 and idp.reads >= reads + 2)
    assert running_world.status(idp.token()) == 200


def signed(header: dict[str, object], claims: dict[str, object], sign: Callable[[bytes], bytes]) -> str:
    """A token made by hand."""
    parts = [base64.urlsafe_b64encode(json.dumps(one).encode()).rstrip(b"=") for one in (header, claims)]
    signature = base64.urlsafe_b64encode(sign(b".".join(parts))).rstrip(b"=")
    return b".".join([*parts, signature]).decode()


def signer(name: str) -> Callable[[bytes], bytes]:
    """What signs with the key of this name."""
    return lambda data: rsa_key(name).sign(data, PKCS1v15(), SHA256())


def claims_of(token: str) -> dict[str, Any]:
    part = token.split(".")[1]
    found: dict[str, Any] = json.loads(base64.urlsafe_b64decode(part + "=" * (-len(part) % 4)))
    return found


@pytest.mark.promise("AUTH-7")
def test_sec_15_a_token_is_its_principal(world: World) -> None:
    caller = world.by(world.idp.token())
    assert caller.call("GET", "/v1/topics").json == {"topics": ["orders"]}
    assert refused(caller.send("orders", "a")) == (403, "forbidden")
    assert refused(caller.call("GET", "/v1/auth/keys")) == (403, "forbidden")
    assert world.status(world.idp.token(aud=["other", AUDIENCE])) == 200
    assert world.status(world.idp.token(without=("nbf", "iat"))) == 200
    by_hand = {"alg": "RS256", "kid": "one", "x": 1}
    assert world.status(signed(by_hand, claims_of(world.idp.token()), signer("one"))) == 200


def test_sec_15_groups_of_a_token_grant_and_deny(world: World) -> None:
    admin, idp = world.admin, world.idp
    admin.put_topic("shared")
    admin.put_principal("member")
    for group in ("group:writers", "group:guests"):
        admin.put_principal(group)
    admin.rule("group:writers", "topic", "shared", "publish")
    admin.rule("group:guests", "topic", "*", "publish", effect="deny")
    sent = [
        world.by(idp.token("member", groups=groups)).send("shared", "a").status
        for groups in ([], ["writers"], ["guests"], ["writers", "guests"], "writers", ["no such", "writers"])
    ]
    assert sent == [403, 200, 403, 403, 200, 200]
    assert world.by(idp.token("member", groups=["writers"])).call("GET", "/v1/topics").json == {"topics": ["shared"]}
    assert refused(admin.call("POST", "/v1/auth/keys", {"principal": "group:writers"})) == (422, "invalid_value")
    assert admin.call("DELETE", "/v1/auth/principals/group:writers").status == 204
    assert world.by(idp.token("member", groups=["writers"])).send("shared", "a").status == 403


def public_key_as_secret() -> bytes:
    return rsa_key("one").public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)


def _by_hmac(data: bytes) -> bytes:
    return hmac.new(public_key_as_secret(), data, hashlib.sha256).digest()


def forged(idp: IdentityProvider) -> dict[str, str]:
    """Tokens that must not be good, by what is wrong with them."""
    now, good = int(time.time()), idp.token()
    header, body, signature = good.split(".")
    claims = claims_of(good)
    attacker = jwk_of(rsa_key("attacker"), "one")
    with_key = {"alg": "RS256", "kid": "one"}

    return {
        "alg none": signed({"alg": "none", "kid": "one"}, claims, lambda _: b""),
        "alg none with a signature": signed({"alg": "none", "kid": "one"}, claims, lambda _: b"x"),
        "alg None": signed({"alg": "None", "kid": "one"}, claims, lambda _: b"x"),
        "signed with the public key": signed({"alg": "HS256", "kid": "one"}, claims, _by_hmac),
        "another algorithm of the same key": idp.token(algorithm="RS512"),
        "algorithm of another kind of key": idp.token(key=elliptic("one"), algorithm="ES256"),
        "no algorithm": signed({"kid": "one"}, claims, lambda _: b"x"),
        "audience": idp.token(aud="other"),
        "audience as a part": idp.token(aud=AUDIENCE + "2"),
        "no audience": idp.token(without=("aud",)),
        "issuer": idp.token(iss="https://example.org"),
        "issuer with a slash": idp.token(iss=idp.url + "/"),
        "no issuer": idp.token(without=("iss",)),
        "expired": idp.token(exp=now - SKEW_S - 1),
        "without an end": idp.token(without=("exp",)),
        "not yet valid": idp.token(nbf=now + SKEW_S + 30),
        "issued in the future": idp.token(iat=now + SKEW_S + 30, without=("nbf",)),
        "times that are none": idp.token(exp="tomorrow"),
        "key of somebody else": idp.token(key=rsa_key("attacker")),
        "no key id": idp.token(kid=None),
        "key in the header": signed({**with_key, "jwk": attacker}, claims, signer("attacker")),
        "key at an address": signed({**with_key, "jku": idp.url + "/keys"}, claims, signer("attacker")),
        "critical extension": signed({**with_key, "crit": ["x"], "x": 1}, claims, signer("one")),
        "body of another token": f"{header}.{idp.token('admin').split('.')[1]}.{signature}",
        "header of another token": f"{idp.token(kid='two').split('.')[0]}.{body}.{signature}",
        "no signature": f"{header}.{body}.",
        "two parts": f"{header}.{body}",
        "four parts": f"{good}.{signature}",
        "bad base64": f"{header}.{body}!.{signature}",
        "bad base64 in the header": f"{header[:-1]}.{body}.{signature}",
        "header that is no JSON": f"AAAA.{body}.{signature}",
        "header that is deep": base64.urlsafe_b64encode(b"[" * 6_000).decode() + f".{body}.{signature}",
        "principal that is not known": idp.token("stranger"),
        "principal that is a group": idp.token("group:writers"),
        "no principal": idp.token(without=("sub",)),
        "odd principal": idp.token("../admin"),
        "look-alike": idp.token("rep\u043erts"),
        "groups that are none": idp.token(groups={"a": 1}),
        "huge": idp.token(pad="x" * AUTHORIZATION_BYTES_MAX),
    }


WRONG = [
    "alg none", "alg none with a signature", "alg None", "signed with the public key",
    "another algorithm of the same key", "algorithm of another kind of key", "no algorithm", "audience",
    "audience as a part", "no audience", "issuer", "issuer with a slash", "no issuer", "expired", "without an end",
    "not yet valid", "issued in the future", "times that are none", "key of somebody else", "no key id",
    "key in the header", "key at an address", "critical extension", "body of another token", "header of another token",
    "no signature", "two parts", "four parts", "bad base64", "bad base64 in the header", "header that is no JSON",
    "header that is deep", "principal that is not known", "principal that is a group", "no principal", "odd principal",
    "look-alike", "groups that are none", "huge",
]  # fmt: skip


@pytest.mark.promise("AUTH-7")
@pytest.mark.parametrize("what", WRONG)
def test_sec_15_a_token_that_is_not_right_is_refused_and_nothing_tells_why(world: World, what: str) -> None:
    tokens = forged(world.idp)
    assert tokens.keys() == set(WRONG)
    reply = world.by(tokens[what]).call("GET", "/v1/topics")
    assert refused(reply) == (401, "unauthenticated")
    # A key that does not exist is answered with the same words; what is too long is not looked at.
    unknown = world.by("mqk_0011223344556677_" + "a" * 43).call("GET", "/v1/topics")
    assert what == "huge" or reply.body == unknown.body
    assert world.status(world.idp.token()) == 200


def test_sec_15_a_token_may_be_long_and_is_remembered(world: World) -> None:
    token = world.idp.token(pad="x" * 8_000)
    assert len(token) > 8_000 and world.status(token) == 200
    gate = world.admin.service.gate
    assert gate is not None and f"Bearer {token}".encode() in gate._known
    world.admin.put_principal("somebody")
    assert world.status(world.idp.token()) == 200
    assert f"Bearer {token}".encode() not in gate._known, "newer metadata empty it"


def test_sec_15_the_times_of_a_token_are_those_of_the_clock_now(world: World) -> None:
    token = world.idp.token()
    assert world.status(token) == 200
    for ahead_s, status in ((600 + SKEW_S + 2, 401), (0, 200), (600 + SKEW_S - 5, 200), (-SKEW_S - 5, 401), (5, 200)):
        world.clock.ahead_ms = ahead_s * 1_000
        assert world.status(token) == status, ahead_s
    # The keys do not depend on that clock.
    world.clock.ahead_ms = 86_400_000 * 365
    assert world.status(world.idp.token(now_s=lambda: time.time() + 86_400 * 365)) == 200


def test_sec_16_keys_change_at_the_provider_without_a_failed_request(world: World) -> None:
    idp, statuses, ended = world.idp, list[int](), threading.Event()
    kid = ["one"]

    def ask() -> None:
        while not ended.is_set():
            name = kid[0]
            statuses.append(world.status(idp.token(kid=name, key=rsa_key(name))))

    threads = [threading.Thread(target=ask) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        for name in ("two", "three", "two", "three"):
            idp.published = [*idp.published[-1:], jwk_of(rsa_key(name), name)]
            kid[0] = name
            reached = len(statuses) + 12
            until(lambda reached=reached: len(statuses) >= reached)
            assert world.status(idp.token(kid=name, key=rsa_key(name))) == 200
            idp.published = [jwk_of(rsa_key(name), name)]
    finally:
        ended.set()
        for thread in threads:
            thread.join()
    assert set(statuses) == {200} and len(statuses) > 40


def test_sec_16_an_elliptic_key_signs_too(world: World) -> None:
    world.idp.published.append(jwk_of(elliptic("one"), "curve"))
    assert world.status(world.idp.token(kid="curve", key=elliptic("one"), algorithm="ES256")) == 200


def test_sec_16_unknown_keys_do_not_flood_the_provider(world: World) -> None:
    before, began = world.idp.reads, time.monotonic()
    threads = [
        threading.Thread(target=lambda n=n: [world.status(world.idp.token(kid=f"k{n}.{m}")) for m in range(5)])
        for n in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert world.idp.reads - before <= (time.monotonic() - began) * 1_000 / TIMES.retry_ms + 1
    assert world.status(world.idp.token()) == 200


LIES: dict[str, tuple[int, bytes]] = {
    "not JSON": (200, b"<html>sign in</html>"),
    "huge": (200, b" " * (JWKS_BYTES_MAX + 1)),
    "an error": (500, b"{}"),
    "a redirect": (302, b""),
    "no keys": (200, b'{"keys": []}'),
    "deep": (200, b"[" * 200_000),
    "private keys": (200, json.dumps({"keys": [jwk_of(rsa_key("two"), "two", private=True)]}).encode()),
    "symmetric keys": (200, json.dumps({"keys": [{"kty": "oct", "kid": "two", "k": "c2VjcmV0"}]}).encode()),
}


@pytest.mark.parametrize("lie", LIES)
def test_sec_16_a_wrong_answer_of_the_provider_changes_nothing(world: World, lie: str) -> None:
    idp = world.idp
    kept, before = idp.token(), idp.reads
    assert world.status(kept) == 200
    idp.answer_keys(*LIES[lie])
    until(lambda: world.status(idp.token(kid="two", key=rsa_key("two"))) == 401 and idp.reads > before)
    secret = hmac.new(b"secret", digestmod=hashlib.sha256)

    def sign(data: bytes) -> bytes:
        made = secret.copy()
        made.update(data)
        return made.digest()

    assert world.status(signed({"alg": "HS256", "kid": "two"}, claims_of(kept), sign)) == 401
    assert world.status(kept) == 200 and world.status(idp.token()) == 200


def test_sec_16_another_key_under_the_same_id_ends_the_first(world: World) -> None:
    idp = world.idp
    first = idp.token()
    assert world.status(first) == 200
    idp.published = [jwk_of(rsa_key("two"), "one")]
    until(lambda: world.status(idp.token(kid="unknown")) == 401 and world.status(first) == 401)
    assert world.status(idp.token(key=rsa_key("two"))) == 200
    idp.published.append(jwk_of(rsa_key("one"), "one"))
    until(lambda: world.status(idp.token(kid="unknown")) == 401 and idp.asked)
    assert world.status(first) == 401, "both under one id are nobody's"


def test_sec_16_while_the_provider_hangs_its_known_keys_are_used(world: World) -> None:
    idp = world.idp
    idp.may_answer.clear()
    began = time.monotonic()
    assert world.status(idp.token(kid="two", key=rsa_key("two"))) == 401
    assert time.monotonic() - began < 10
    assert all(world.status(idp.token(number=number)) == 200 for number in range(20))
    idp.published.append(jwk_of(rsa_key("two"), "two"))
    idp.may_answer.set()
    until(lambda: world.status(idp.token(kid="two", key=rsa_key("two"))) == 200)


@pytest.mark.parametrize(
    ("found", "told"),
    [
        ({"issuer": "https://example.org", "jwks_uri": "{url}/keys"}, "of another issuer"),
        ({"issuer": "{url}", "jwks_uri": "http://example.org/keys"}, "jwks_uri"),
        ({"issuer": "{url}", "jwks_uri": "file:///etc/passwd"}, "jwks_uri"),
        ({"issuer": "{url}"}, "cannot be read"),
        (None, "cannot be read"),
    ],
)
def test_sec_16_a_discovery_document_that_leads_elsewhere_is_not_followed(
    world: World, caplog: pytest.LogCaptureFixture, found: dict[str, str] | None, told: str
) -> None:
    idp = world.idp
    text = json.dumps(found).replace("{url}", idp.url).encode()
    idp.instead[DISCOVERY] = 200, text
    before = idp.reads
    idp.published.append(jwk_of(rsa_key("two"), "two"))
    until(lambda: world.status(idp.token(kid="two", key=rsa_key("two"))) == 401 and told in caplog.text)
    assert idp.reads == before and world.status(idp.token()) == 200


@pytest.mark.promise("AUTH-8")
def test_sec_15_a_principal_that_is_removed_is_refused_though_its_token_lives(world: World) -> None:
    admin = world.admin
    admin.put_topic("leaving")
    admin.put_principal("leaver")
    admin.rule("leaver", "topic", "leaving", "subscribe")
    caller = world.by(world.idp.token("leaver"))
    path = f"/v1/topics/leaving/partitions/{quote('leaving@broker-a')}/messages"
    thread, found = waiting(caller, path, None, "text/event-stream")
    began = time.monotonic()
    assert admin.call("DELETE", "/v1/auth/principals/leaver").status == 204
    assert refused(caller.call("GET", "/v1/topics/leaving")) == (401, "unauthenticated")
    thread.join(18)
    assert time.monotonic() - began < 15 and b'"code":"unauthenticated"' in found[0].body.rpartition(b"refused")[2]


def test_sec_19_a_principal_that_is_disabled_is_refused_though_its_token_lives(world: World) -> None:
    admin = world.admin
    admin.put_principal("resting")
    admin.rule("resting", "topic", "orders", "subscribe")
    caller = world.by(world.idp.token("resting"))
    check_stream_ends(
        caller, lambda: admin.call("POST", "/v1/auth/principals/resting/disable").status == 200, "principal_disabled"
    )
    for token in (str(caller.token), world.idp.token("resting", nonce="another")):
        assert refused(world.by(token).call("GET", "/v1/topics/orders")) == (403, "principal_disabled")
    assert admin.call("POST", "/v1/auth/principals/resting/enable").status == 200
    assert caller.call("GET", "/v1/topics/orders").status == 200


@pytest.mark.promise("AUTH-8")
@pytest.mark.parametrize("call", ["pop", "stream"])
def test_sec_15_what_waits_ends_with_its_token(world: World, call: str) -> None:
    now_ms = world.admin.service.now_ms()
    caller = world.by(world.idp.token(exp=now_ms / 1_000 - SKEW_S + 1.5, nonce=call))
    path, body, accept = {
        "pop": ("/v1/groups/reports/topics/orders/pop", {"wait_ms": 20_000}, JSON),
        "stream": (f"/v1/topics/orders/partitions/{quote('orders@broker-a')}/messages", None, "text/event-stream"),
    }[call]
    thread, found = waiting(caller, path, body, accept)
    thread.join(18)
    assert found and now_ms + 1_400 <= world.admin.service.now_ms() < now_ms + 10_000
    assert found[0].status == (200 if body is None else 401), "a stream has begun its answer"
    assert refused(caller.call("GET" if body is None else "POST", path, body)) == (401, "unauthenticated")


def test_sec_16_what_waits_ends_when_the_key_of_its_token_is_withdrawn(world: World) -> None:
    idp = world.idp
    idp.published = [jwk_of(rsa_key(name), name) for name in ("one", "two")]
    path = f"/v1/topics/orders/partitions/{quote('orders@broker-a')}/messages"
    two = world.by(idp.token(kid="two", key=rsa_key("two")))
    ends, found = waiting(two, path, None, "text/event-stream")
    stays, still = waiting(world.by(idp.token()), path, None, "text/event-stream")
    gate = world.admin.service.gate
    assert gate is not None
    until(lambda: len(gate._waiting) == 2)
    idp.published = [jwk_of(rsa_key("one"), "one")]
    until(lambda: world.status(idp.token(kid="unknown")) == 401 and len(gate._waiting) == 1)
    ends.join(10)
    assert b'"code":"unauthenticated"' in found[0].body and not still
    two_again = world.by(idp.token("reports", exp=time.time() - 1_000))
    assert two_again.call("GET", "/v1/topics").status == 401
    rule = world.admin.call("GET", "/v1/auth/acls?principal=reports").json["acls"]
    topic_rule = next(one for one in rule if one["resource"] == "topic")
    assert world.admin.call("DELETE", f"/v1/auth/acls/{topic_rule['acl_id']}").status == 204
    stays.join(10)
    world.admin.rule("reports", "topic", "orders", "subscribe")
    assert b'"code":"forbidden"' in still[0].body


def test_sec_15_two_processes_take_the_same_token_and_refuse_it_together(tmp_path: Path) -> None:
    from deltamq.tables.config_sections import Secret
    from tests.api.guarded import SECRET

    with provider() as idp:
        more: dict[str, Any] = {"oidc": idp.settings(), "cluster_secret": Secret(SECRET)}
        ports = Ports(key_times=TIMES)
        with (
            guarded(tmp_path / "w", ports, brokers=("broker-a",), **more) as a,
            guarded(tmp_path / "w", ports, token=a.token, brokers=("broker-b",), **more) as b,
        ):
            until(lambda: b.service.hosting.hosts("broker-b"))
            until(lambda: all(len(one.service.meta.now.brokers.available) == 2 for one in (a, b)))
            a.put_topic("orders", partitions=2)
            a.caller("reports", ("topic", "orders", "publish", "subscribe"), ("group", "g", "subscribe"))
            token = idp.token()
            for api in (a, b):
                for broker in ("broker-a", "broker-b"):
                    partition = f"orders@{broker}"
                    assert api.by(token).send("orders", {"body": "x", "partition": partition}).status == 200
            # A pop at `a` that waits at `b`.
            path = "/v1/groups/g/topics/orders/pop"
            asked = {"partition": "orders@broker-b", "wait_ms": 20_000, "max_messages": 32}
            assert len(a.by(token).call("POST", path, asked).json["messages"]) == 2
            thread, found = waiting(a.by(token), path, asked, JSON)
            until(lambda: b.service.gate is not None and b.service.gate._waiting)
            began = time.monotonic()
            assert b.call("DELETE", "/v1/auth/principals/reports").status == 204
            for api in (a, b):
                assert refused(api.by(token).call("GET", "/v1/topics")) == (401, "unauthenticated")
            thread.join(18)
            assert found and time.monotonic() - began < 15


def test_sec_24_the_sdk_and_the_command_line_get_their_tokens_from_the_issuer(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    from click.testing import CliRunner

    from deltamq import Admin, PullConsumer
    from deltamq.mq.client.cli.root import cli
    from deltamq.mq.client.http.oidc import OidcClientCredentials

    idp, url = world.idp, f"http://127.0.0.1:{world.admin.port}"
    idp.clients["reports"] = "s3cret"
    token = OidcClientCredentials(issuer=idp.url, client_id="reports", client_secret="s3cret")
    with Admin(url, token=token) as admin:
        assert admin.list_topics() == ["orders"]
    world.admin.send("orders", "a")
    with PullConsumer(url, "orders", token=token, start="first") as reader:
        until(lambda: reader.poll())
    assert idp.asked.count("/token") == 1
    monkeypatch.delenv("DELTAMQ_CLIENT_TOKEN", raising=False)
    for name, value in {"ISSUER": idp.url, "CLIENT_ID": "reports", "CLIENT_SECRET": "s3cret"}.items():
        monkeypatch.setenv(f"DELTAMQ_CLIENT_OIDC_{name}", value)
    shown = CliRunner().invoke(cli, ["topic", "list", "--url", url, "--json"])
    assert json.loads(shown.output) == {"topics": ["orders"]}, shown.output
    monkeypatch.setenv("DELTAMQ_CLIENT_OIDC_CLIENT_SECRET", "wr0ng")
    refused_one = CliRunner().invoke(cli, ["topic", "list", "--url", url])
    assert getattr(refused_one.exception, "code", "") == "token_refused"
    assert "wr0ng" not in refused_one.output + str(refused_one.exception)


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"oidc.algorithms": ["HS256"]}, "shared secret"),
        ({"oidc.algorithms": ["RS256", "none"]}, "no signature"),
        ({"oidc.algorithms": []}, "at least one"),
        ({"oidc.issuer": "http://example.org", "oidc.audience": "a"}, "https"),
        ({"oidc.issuer": "https://example.org?a=b", "oidc.audience": "a"}, "https"),
        ({"oidc.issuer": "https://user:password@example.org", "oidc.audience": "a"}, "https"),
        ({"oidc.issuer": "https://example.org"}, "oidc.audience"),
        ({"oidc.issuer": "https://example.org", "oidc.audience": "a", "oidc.jwks_url": "http://x.org/k"}, "https"),
        ({"oidc.audience": "a"}, "oidc.issuer"),
        ({"oidc.principal_claim": ""}, "claim"),
    ],
)
def test_sec_15_settings_that_would_believe_too_much_are_refused_at_the_start(
    settings: dict[str, Any], told: str
) -> None:
    from deltamq.tables.config import load

    with pytest.raises(Refused, match=told):
        load(None, settings, environ={})


def test_sec_15_an_issuer_without_authentication_or_with_a_wrong_file_ends_the_start(tmp_path: Path) -> None:
    from click.testing import CliRunner

    from deltamq.api.command import serve_command

    base = {"DELTAMQ_OIDC_ISSUER": "https://example.org", "DELTAMQ_OIDC_AUDIENCE": "a"}
    for more, told in (
        ({}, "service.auth"),
        ({"DELTAMQ_SERVICE_AUTH": "true", "DELTAMQ_OIDC_CA": str(tmp_path / "none.pem")}, "oidc.ca"),
    ):
        result = CliRunner(env={**base, **more}).invoke(
            serve_command, ["--warehouse", str(tmp_path / "w"), "--port", "0"]
        )
        assert result.exit_code != 0 and told in result.output, result.output


def test_sec_50_the_page_may_ask_the_provider_for_tokens_and_nothing_else(tmp_path: Path) -> None:
    with provider() as idp:
        idp.instead["/.well-known/openid-configuration"] = (
            200,
            json.dumps(
                {**idp.discovery, "token_endpoint": f"{idp.url}/token", "end_session_endpoint": "http://elsewhere/"}
            ).encode(),
        )
        settings = idp.settings(console_client_id="console", jwks_url=f"{idp.url}/keys")
        with guarded(tmp_path, oidc=settings) as admin:
            until(lambda: admin.by(None).call("GET", "/v1/auth/sign-in").json.get("issuer") == idp.url)
            found = admin.by(None).call("GET", "/v1/auth/sign-in").json
            assert (found["client_id"], found["scope"]) == ("console", "openid")
            assert found["end_session_endpoint"] is None, "no browser is sent where no TLS is"
            for caller in (admin, admin.by(None)):
                policy = caller.call("GET", "/").headers["content-security-policy"]
                assert f"connect-src 'self' {idp.url};" in policy and "form-action 'none'" in policy
            assert "connect-src 'self';" in admin.call("GET", "/console/app.js").headers["content-security-policy"]


@pytest.mark.parametrize("endpoint", [None, "http://idp.example.org/token", "https://a;b/token", "https://u:p@h/token"])
def test_sec_50_no_sign_in_is_offered_at_an_endpoint_that_no_page_may_ask(tmp_path: Path, endpoint: str | None) -> None:
    with provider() as idp:
        idp.instead["/.well-known/openid-configuration"] = (
            200,
            json.dumps({**idp.discovery, "token_endpoint": endpoint}).encode(),
        )
        with guarded(tmp_path, oidc=idp.settings(console_client_id="console")) as admin:
            until(lambda: idp.reads > 0)
            assert set(admin.by(None).call("GET", "/v1/auth/sign-in").json.values()) == {None}
            assert "connect-src 'self';" in admin.call("GET", "/").headers["content-security-policy"]
