"""What administrators do by Kafka's calls, recorded as by REST's (SPEC SEC-40)."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import Any

from deltamq.api.audit.acts import Asking
from deltamq.api.audit.audit import Audit
from deltamq.api.kafka.access.needs import Asker
from deltamq.mq.audit import ANONYMOUS


def recorded(
    audit: Audit | None, asker: Asker, resource: str, name: str, asked: Mapping[str, Any]
) -> AbstractAsyncContextManager[object]:
    """Return a context whose block is one act: it is begun when it is recorded, and confirmed when its end is.

    Without an `audit` nothing is recorded.

    Raises
    ------
    Unavailable
        `audit_unavailable`: it cannot be recorded, and is not begun.
    Unknown
        `audit_incomplete`: it was carried out, and its end cannot be recorded.
    """
    if audit is None:
        return nullcontext()
    principal = asker.caller.name or ANONYMOUS
    return audit.acts.carried_out(Asking(principal, asker.address, asker.call, resource, name, asked))
