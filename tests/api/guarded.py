"""A service with authentication, and callers with keys of their own."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from deltamq.api.first_start import make_administrator
from deltamq.api.ports import REAL, Ports
from deltamq.tables.oidc_settings import OidcSettings
from tests.api.running import Api, Reply, config_for, running

__all__ = ["SECRET", "Guarded", "guarded"]

SECRET = "0123456789abcdef" * 4


@dataclass
class Guarded(Api):
    """A service as one caller sees it; without a `token` it sends none."""

    token: str | None = None

    def call(self, method: str, path: str, body: Any = None, kind: str | None = None, **headers: str) -> Reply:
        if self.token is not None:
            headers.setdefault("Authorization", f"Bearer {self.token}")
        return super().call(method, path, body, kind, **headers)

    def by(self, token: str | None) -> Guarded:
        """The same service, called with another key."""
        return Guarded(self.port, self.service, token=token, ca=self.ca)

    def at(self, other: Guarded) -> Guarded:
        """The same caller at another service."""
        return Guarded(other.port, other.service, token=self.token, ca=other.ca)

    def put_principal(self, name: str, note: str = "") -> Any:
        reply = self.call("PUT", f"/v1/auth/principals/{name}", {"note": note})
        assert reply.status in (200, 201), reply
        return reply.json

    def key(self, principal: str, **more: object) -> Any:
        """Make a key; only an administrator may."""
        reply = self.call("POST", "/v1/auth/keys", {"principal": principal, **more})
        assert reply.status == 201, reply
        return reply.json

    def rule(self, principal: str, resource: str, pattern: str, *verbs: str, effect: str = "allow") -> str:
        """Put an access rule, and return its id."""
        asked = {"principal": principal, "resource": resource, "pattern": pattern, "verbs": verbs, "effect": effect}
        reply = self.call("POST", "/v1/auth/acls", {**asked, "verbs": list(verbs)})
        assert reply.status == 201, reply
        return str(reply.json["acl_id"])

    def caller(self, principal: str, *rules: tuple[str, ...]) -> Guarded:
        """A new principal with these rules, each a resource, a pattern, and verbs."""
        self.put_principal(principal)
        for resource, pattern, *verbs in rules:
            self.rule(principal, resource, pattern, *verbs)
        return self.by(self.key(principal)["key"])


@contextlib.contextmanager
def guarded(
    folder: Path,
    ports: Ports = REAL,
    *,
    token: str | None = None,
    oidc: OidcSettings | None = None,
    ca: str | None = None,
    **service: Any,
) -> Iterator[Guarded]:
    """Run a service with authentication, as its administrator sees it; `token` if the warehouse has one already.

    `ca` is the file of the authority behind its `tls_cert`.
    """
    config = replace(config_for(folder, auth=True, **service), oidc=oidc or OidcSettings())
    found = token or make_administrator(config, "admin")[1]
    with running(config, ports) as api:
        yield Guarded(api.port, api.service, token=found, ca=ca)
