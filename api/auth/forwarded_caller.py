"""Whom a process asks another one for, if the caller has no `Authorization` that goes along (SPEC SEC-17, KAFKA-11).

A client that has shown a certificate, and Kafka's clients, which show who they are once for a connection, are known to
the process that they are connected to. It names them in `Mq-Caller`, which its proof is about.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from deltamq.api.wire.answer import Header
from deltamq.mq.auth.callers import Credential
from deltamq.mq.auth.principals import check_caller, check_principal, is_group
from deltamq.mq.errors import Refused

#: The header with the principal, and the groups of its token.
CALLED_BY: Final = b"mq-caller"


def caller_header(credential: Credential) -> Header:
    """Return the header that names a caller; neither principals nor groups have a comma."""
    return CALLED_BY, ",".join((credential.principal, *credential.groups)).encode()


def called_by(headers: Collection[Header]) -> Credential | None:
    """Return the caller that a process names in a request that it forwards: believe it only with a proof."""
    named = [value for name, value in headers if name == CALLED_BY]
    if len(named) != 1:
        return None
    principal, *groups = named[0].decode("ascii", "replace").split(",")
    try:
        found = Credential(principal=check_caller(principal), groups=tuple(map(check_principal, groups)))
    except Refused:
        return None
    return found if all(map(is_group, groups)) else None
