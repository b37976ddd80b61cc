"""Tokens: their form, and where a client may get one."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

from deltamq.mq.errors import Refused
from deltamq.mq.limits import TOKEN_BYTES_MAX

#: Code of a request that was not sent, because there was no token for it.
TOKEN_UNAVAILABLE: Final = "token_unavailable"
#: The form of a token: nothing that could end the header's line.
_FORM: Final = re.compile(r"[A-Za-z0-9\-._~+/]+=*", re.ASCII)


def check_token(token: object) -> str:
    """Return a token without the white space around it; raises `invalid_token`, which does not show it."""
    text = token.strip() if isinstance(token, str) else ""
    if len(text) > TOKEN_BYTES_MAX or _FORM.fullmatch(text) is None:
        raise Refused(
            f"a token is a text of 1 to {TOKEN_BYTES_MAX:,} letters, digits and - . _ ~ + / =",
            code="invalid_token",
            field="token",
        )
    return text


Token = str | Callable[[], str]

#: The variable with the provider of a client that has no token; the provider's other variables begin alike.
OIDC_ENV: Final = "DELTAMQ_CLIENT_OIDC_ISSUER"
