"""An identity provider on this machine: discovery, keys, and tokens that it signs, or that others forge."""

from __future__ import annotations

import base64
import hashlib
import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, urlencode

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, rsa

from deltamq.tables.oidc_settings import OidcSettings

__all__ = ["AUDIENCE", "DISCOVERY", "IdentityProvider", "elliptic", "jwk_of", "provider", "rsa_key"]

PrivateKey = rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey

AUDIENCE = "deltamq"
DISCOVERY = "/.well-known/openid-configuration"
_JWKS, _TOKEN, _AUTHORIZE, _LOGOUT = "/keys", "/token", "/authorize", "/logout"


@cache
def rsa_key(name: str, bits: int = 2_048) -> rsa.RSAPrivateKey:
    """A key of this name: the same one each time, because making one takes long."""
    return rsa.generate_private_key(public_exponent=65_537, key_size=bits)


@cache
def elliptic(name: str) -> ec.EllipticCurvePrivateKey:
    """The same with an elliptic curve."""
    return ec.generate_private_key(ec.SECP256R1())


def jwk_of(key: PrivateKey, kid: str, *, private: bool = False, **more: object) -> dict[str, Any]:
    """The key as providers publish it; with its secret part if it is `private`."""
    if isinstance(key, rsa.RSAPrivateKey):
        told = jwt.algorithms.RSAAlgorithm.to_jwk(key if private else key.public_key(), as_dict=True)
    else:
        told = jwt.algorithms.ECAlgorithm.to_jwk(key if private else key.public_key(), as_dict=True)
    told.pop("key_ops", None)
    return {**told, "kid": kid, "use": "sig", **more}


class IdentityProvider:
    """Answers until `close`; what it answers may be changed while it runs."""

    def __init__(self) -> None:
        #: The keys in its answer.
        self.published = [jwk_of(rsa_key("one"), "one")]
        #: Secrets of clients that get tokens, by their ids.
        self.clients: dict[str, str] = {}
        #: Status and body in place of the right ones, by path.
        self.instead: dict[str, tuple[int, bytes]] = {}
        #: Cleared: no answer is given.
        self.may_answer = threading.Event()
        self.may_answer.set()
        self.begin()
        provider = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                path, _, query = self.path.partition("?")
                if path in (_AUTHORIZE, _LOGOUT):
                    self._send(302, b"", provider._sent_back(path, dict(parse_qsl(query))))
                else:
                    self._send(*provider._answer(self.path))

            def do_POST(self) -> None:
                form = self.rfile.read(int(self.headers["Content-Length"])).decode()
                self._send(*provider._grant(self.headers["Authorization"] or "", form))

            def _send(self, status: int, body: bytes, location: str = "") -> None:
                self.send_response(status)
                self.send_header("Location", location or f"{provider.url}{_JWKS}")
                self.send_header("Access-Control-Allow-Origin", "*")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.handle_error = lambda *_: None  # type: ignore[method-assign] # the caller may have gone
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()

    def begin(self) -> None:
        """Begin again with people: nobody has signed in."""
        #: What people who sign in are: the principal of their tokens; and the public client that they may use.
        self.person, self.console = "ada", "console"
        #: Seconds for which a person's token lives; what replaces claims of ID tokens, and parts of the way back.
        self.person_life_s, self.id_claims, self.sends_back = 600, dict[str, Any](), dict[str, str]()
        #: The requests of codes and refresh tokens that are good, by these.
        self.codes, self.refreshes = dict[str, dict[str, str]](), dict[str, dict[str, str]]()
        #: The paths that were asked for.
        self.asked: list[str] = []

    def _grant(self, authorization: str, form: str) -> tuple[int, bytes]:
        """The answer of the token endpoint: a token for a client that is known, whose id is its principal."""
        self.asked.append(_TOKEN)
        if not authorization:
            return self._grant_person(dict(parse_qsl(form)))
        given = base64.b64decode(authorization.removeprefix("Basic ")).decode().partition(":")
        if "grant_type=client_credentials" not in form or self.clients.get(given[0]) != given[2]:
            return 401, b'{"error": "invalid_client"}'
        life_s = 600
        granted = {"access_token": self.token(given[0]), "token_type": "Bearer", "expires_in": life_s}
        return 200, json.dumps(granted).encode()

    def _sent_back(self, path: str, query: dict[str, str]) -> str:
        """Where a person's browser goes from here: back to the console, signed in at once, or signed out."""
        self.asked.append(path)
        if path == _LOGOUT:
            return query["post_logout_redirect_uri"]
        assert query["response_type"] == "code" and query["code_challenge_method"] == "S256", query
        code = f"code-{len(self.codes)}"
        self.codes[code] = query
        answer = {"code": code, "state": query["state"], "iss": self.url} | self.sends_back
        return query["redirect_uri"] + "?" + urlencode(answer)

    def _grant_person(self, form: dict[str, str]) -> tuple[int, bytes]:
        """The answer to the console: a code once, with the verifier of its challenge, or a refresh token once."""
        asked = (
            self.codes.pop(form.get("code", ""), None)
            if form["grant_type"] == "authorization_code"
            else self.refreshes.pop(form.get("refresh_token", ""), None)
        )
        if asked is None or {form["client_id"], asked["client_id"]} != {self.console}:
            return 400, b'{"error": "invalid_grant", "error_description": "the grant is not good"}'
        if "code" in form:
            hashed = hashlib.sha256(form["code_verifier"].encode()).digest()
            challenge = base64.urlsafe_b64encode(hashed).decode().rstrip("=")
            if challenge != asked["code_challenge"] or form["redirect_uri"] != asked["redirect_uri"]:
                return 400, b'{"error": "invalid_grant", "error_description": "the verifier is wrong"}'
        refresh = f"refresh-{len(self.asked)}"
        self.refreshes[refresh] = asked
        now = int(time.time())
        about: dict[str, Any] = {"aud": self.console, "nonce": asked["nonce"]} | self.id_claims
        granted = {
            "access_token": self.token(self.person, exp=now + self.person_life_s),
            "id_token": self.token(self.person, **about),
            "refresh_token": refresh,
            "token_type": "Bearer",
            "expires_in": self.person_life_s,
        }
        return 200, json.dumps(granted).encode()

    def _answer(self, path: str) -> tuple[int, bytes]:
        self.asked.append(path)
        self.may_answer.wait(60)
        if path in self.instead:
            return self.instead[path]
        if path == DISCOVERY:
            return 200, json.dumps(self.discovery).encode()
        if path == _JWKS:
            return 200, json.dumps({"keys": self.published}).encode()
        return 404, b"{}"

    @property
    def discovery(self) -> dict[str, object]:
        """Its discovery document."""
        return {
            "issuer": self.url,
            "jwks_uri": self.url + _JWKS,
            "token_endpoint": self.url + _TOKEN,
            "authorization_endpoint": self.url + _AUTHORIZE,
            "end_session_endpoint": self.url + _LOGOUT,
            "other": [1],
        }

    @property
    def reads(self) -> int:
        """How often its keys were asked for."""
        return self.asked.count(_JWKS)

    def answer_keys(self, status: int, body: bytes) -> None:
        """Answer this in place of the keys."""
        self.instead[_JWKS] = status, body

    def settings(self, **more: Any) -> OidcSettings:
        """The settings of a service that takes its tokens."""
        return OidcSettings(**{"issuer": self.url, "audience": AUDIENCE, **more})

    def token(
        self,
        principal: str = "reports",
        *,
        kid: str | None = "one",
        key: Any = None,
        algorithm: str = "RS256",
        now_s: Callable[[], float] = time.time,
        without: tuple[str, ...] = (),
        **claims: object,
    ) -> str:
        """A token, right unless something is given; `claims` go over the right ones, `without` leaves some out."""
        now = int(now_s())
        told = {"iss": self.url, "aud": AUDIENCE, "sub": principal, "iat": now, "nbf": now, "exp": now + 600, **claims}
        signing = rsa_key("one") if key is None else key
        headers = {} if kid is None else {"kid": kid}
        told = {name: value for name, value in told.items() if name not in without}
        return jwt.PyJWS().encode(json.dumps(told).encode(), signing, algorithm, headers)

    def close(self) -> None:
        self.may_answer.set()
        self._server.shutdown()
        self._server.server_close()


@contextmanager
def provider() -> Iterator[IdentityProvider]:
    """Run a provider until the block ends."""
    made = IdentityProvider()
    try:
        yield made
    finally:
        made.close()
