"""Settings of the identity provider whose tokens the service takes."""

from __future__ import annotations

from typing import Final
from urllib.parse import urlsplit

import msgspec

from deltamq.mq.request_values import is_loopback
from deltamq.tables.settings import SettingsDisagree

#: Algorithms with a key pair, of which the service has the public key. Whoever checks tokens with a shared
#: secret could make them.
OIDC_ALGORITHMS: Final = (
    *("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"),
    *("ES256", "ES384", "ES512", "EdDSA"),
)


class OidcSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of the identity provider; without an issuer no tokens are taken."""

    #: URL of the provider, exactly as its tokens have it in `iss`; if empty, no tokens are taken, only keys.
    issuer: str = ""
    #: The name of this service at the provider: what tokens must have in `aud`.
    audience: str = ""
    #: Algorithms with which tokens may be signed: RS256 to RS512, PS256 to PS512, ES256 to ES512, EdDSA.
    algorithms: tuple[str, ...] = ("RS256",)
    #: URL of the provider's public keys; if empty, ISSUER/.well-known/openid-configuration names it.
    jwks_url: str = ""
    #: The claim that is the principal's name; choose one that users cannot change.
    principal_claim: str = "sub"
    #: The claim with the groups, which access rules name as group:NAME; if empty, tokens have none.
    groups_claim: str = ""
    #: Certificates of the authorities that sign the provider's, a file in PEM; if empty, the system's.
    ca: str = ""
    #: The id of the console as a public client at the provider: people sign in there; if empty, they type keys.
    console_client_id: str = ""
    #: What the console asks the provider for; its access tokens must be for `audience`.
    console_scope: str = "openid"
    #: The audience that the console asks for, where the provider wants it said; if empty, none.
    console_audience: str = ""

    def __post_init__(self) -> None:
        wrong = [algorithm for algorithm in self.algorithms if algorithm not in OIDC_ALGORITHMS]
        if wrong or not self.algorithms:
            raise SettingsDisagree(
                f"must name at least one of {', '.join(OIDC_ALGORITHMS)}, and no others: with a shared secret (HS...) "
                "whoever checks tokens could make them, and `none` is no signature",
                "oidc.algorithms",
            )
        for key, url in (("oidc.issuer", self.issuer), ("oidc.jwks_url", self.jwks_url)):
            if url and not is_private(url):
                raise SettingsDisagree("must be https://HOST..., or http on this machine, without user or query", key)
        if self.issuer and not self.audience:
            raise SettingsDisagree(
                "must be set, too: a token for another service must not be accepted here", "oidc.audience"
            )
        others = {
            "oidc.audience": self.audience,
            "oidc.jwks_url": self.jwks_url,
            "oidc.ca": self.ca,
            "oidc.console_client_id": self.console_client_id,
        }
        dependent = [key for key, value in others.items() if value and not self.issuer]
        if dependent:
            raise SettingsDisagree(f"must be set, too, if {dependent[0]} is", "oidc.issuer", *dependent)
        if not self.principal_claim:
            raise SettingsDisagree("must name a claim", "oidc.principal_claim")


def is_private(url: str) -> bool:
    """Whether a URL has only host and path, and is fetched over TLS or from this machine."""
    try:
        parts = urlsplit(url)
        host, port_is_right = parts.hostname or "", parts.port != 0
    except ValueError:
        return False
    plain = parts.username is None and not parts.query and not parts.fragment and port_is_right and url.isascii()
    reached = parts.scheme == "https" or (parts.scheme == "http" and is_loopback(host))
    return bool(host) and plain and reached and url.isprintable() and " " not in url
