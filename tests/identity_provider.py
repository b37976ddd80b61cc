"""An identity provider on this machine: discovery, keys, and tokens that it signs, or that others forge."""

from __future__ import annotations

import base64
import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, rsa

from deltamq.tables.oidc_settings import OidcSettings

__all__ = ["AUDIENCE", "DISCOVERY", "IdentityProvider", "elliptic", "jwk_of", "provider", "rsa_key"]

PrivateKey = rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey

AUDIENCE = "deltamq"
DISCOVERY = "/.well-known/openid-configuration"
_JWKS, _TOKEN = "/keys", "/token"


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
        #: The paths that were asked for.
        self.asked: list[str] = []
        provider = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self._send(*provider._answer(self.path))

            def do_POST(self) -> None:
                form = self.rfile.read(int(self.headers["Content-Length"])).decode()
                self._send(*provider._grant(self.headers["Authorization"] or "", form))

            def _send(self, status: int, body: bytes) -> None:
                self.send_response(status)
                self.send_header("Location", f"{provider.url}{_JWKS}")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.handle_error = lambda *_: None  # type: ignore[method-assign] # the caller may have gone
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()

    def _grant(self, authorization: str, form: str) -> tuple[int, bytes]:
        """The answer of the token endpoint: a token for a client that is known, whose id is its principal."""
        self.asked.append(_TOKEN)
        given = base64.b64decode(authorization.removeprefix("Basic ")).decode().partition(":")
        if "grant_type=client_credentials" not in form or self.clients.get(given[0]) != given[2]:
            return 401, b'{"error": "invalid_client"}'
        life_s = 600
        granted = {"access_token": self.token(given[0]), "token_type": "Bearer", "expires_in": life_s}
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
        return {"issuer": self.url, "jwks_uri": self.url + _JWKS, "token_endpoint": self.url + _TOKEN, "other": [1]}

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
