"""JSON that another process or another cluster answers, read into its type.

    process --> proxy, load balancer --> process
            <--                      <--

An answer may also be a page of what is in between (502, HTML), or of the server itself, which answers 500 in plain text
when a drain cuts a request off. Such a page says nothing of what became of the request, as a lost connection does not.
"""

from __future__ import annotations

from typing import TypeVar

import msgspec

from deltamq.mq.errors import Unavailable

T = TypeVar("T")


def json_of(body: object, kind: type[T], *, status: int = 200) -> T:
    """Return the body of an answer as this type; `status` is named if it is none.

    Raises
    ------
    Unavailable
        `broker_unavailable`: it is not what a process of DeltaMQ answers. What was sent may have been applied.
    """
    assert isinstance(body, bytes), "answers of other processes are whole"
    try:
        return msgspec.json.decode(body, type=kind)
    except ValueError as error:  # msgspec's own errors, and bytes that are not UTF-8
        raise unreadable(status) from error


def unreadable(status: int) -> Unavailable:
    """Return the error for an answer of this status that no process of DeltaMQ gives."""
    return Unavailable(
        f"what should answer this gave an answer that is not DeltaMQ's, of status {status}; ask again",
        code="broker_unavailable",
    )
