"""What a bearer token may consist of (RFC 6750)."""

from __future__ import annotations

import re
from typing import Final

from deltamq.mq.errors import Refused
from deltamq.mq.limits import TOKEN_BYTES_MAX

#: Code of a request that was not sent, because its token could not be had.
TOKEN_UNAVAILABLE: Final = "token_unavailable"
#: What it may consist of: nothing that could end the header's line.
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
