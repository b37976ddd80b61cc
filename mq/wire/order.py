"""Exclusive groups: heartbeats, pull locks, and messages that a client gives up."""

from __future__ import annotations

from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta

from deltamq.mq.limits import (
    NAME_LENGTH_MAX,
    OFFSET_MAX,
    PARTITIONS_MAX,
    POP_MESSAGES_MAX,
    REASON_LENGTH_MAX,
    SUBSCRIPTIONS_MAX,
    WAIT_MS_MAX,
)
from deltamq.mq.wire.filters import FilterText

#: Visible ASCII without the slash, which separates segments of a path.
CLIENT_PATTERN: Final = rf"^[!-.0-~]{{1,{NAME_LENGTH_MAX}}}$"
#: The id of a client in a body; the service checks it, as in paths and queries.
ClientText = Annotated[str, Meta(extra_json_schema={"pattern": CLIENT_PATTERN})]
_ATTEMPTS_MAX: Final = 2**31 - 1
_Offset = Annotated[int, Meta(ge=0, le=OFFSET_MAX)]
_Partitions = Annotated[list[str], Meta(max_length=PARTITIONS_MAX)]
_Numbers = Annotated[dict[str, _Offset], Meta(max_length=PARTITIONS_MAX)]


class SubscriptionRequest(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """How a client consumes a topic."""

    order: Annotated[bool | None, Meta(description="Whether the client wants the messages in order.")] = None
    tags: Annotated[str | None, Meta(description="`*` (default, all messages) or `TagA||TagB`.")] = None
    filter: FilterText | None = None


_Subscriptions = Annotated[dict[str, SubscriptionRequest], Meta(max_length=SUBSCRIPTIONS_MAX)]


class HeartbeatRequest(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """The topics that a client consumes, or that it leaves, so that its partitions are handed over at once."""

    topics: Annotated[_Subscriptions | None, Meta(description="By topic; needed unless the client leaves.")] = None
    online: Annotated[bool | None, Meta(description="False if the client leaves; by default true.")] = None


class LocksRequest(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """Partitions that a client of an exclusive group wants to pull."""

    client_id: ClientText
    partitions: Annotated[_Partitions | None, Meta(description="Partitions whose locks are requested.")] = None
    held: Annotated[
        _Partitions | None,
        Meta(description="Partitions whose locks the client has held without a break; they are renewed."),
    ] = None
    # No maximum in the schema: a tool that probes boundaries would wait that long.
    wait_ms: Annotated[
        Annotated[int, Meta(ge=0)] | None,
        Meta(
            description=f"Milliseconds to wait for the first lock, at most {WAIT_MS_MAX}; only if one process serves"
            " all of the partitions."
        ),
    ] = None


class LocksGiven(msgspec.Struct, frozen=True):
    """Numbers of the granted locks and the group's offsets, by partition.

    For `unanswered` partitions it is not known whether the lock was granted.
    """

    locks: dict[str, int]
    offsets: dict[str, int] = {}
    #: Number of earlier attempts at the message at that offset, if there were any.
    attempts: dict[str, int] = {}
    refused: list[str] = []
    unanswered: list[str] = []


class ReleaseRequest(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """Partitions whose locks a client gives back."""

    client_id: ClientText
    partitions: Annotated[list[str], Meta(min_length=1, max_length=PARTITIONS_MAX)]
    locks: Annotated[_Numbers | None, Meta(description="Numbers of the client's locks.")] = None


class AsideRequest(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """Failed messages of one partition, each of which the client has tried `attempts` times."""

    client_id: ClientText
    partition: Annotated[str, Meta(description="`NAME@BROKER`.")]
    offsets: Annotated[list[_Offset], Meta(min_length=1, max_length=POP_MESSAGES_MAX)]
    to: Literal["dead", "retry"]
    lock: Annotated[_Offset | None, Meta(description="The number of the client's lock.")] = None
    reason: Annotated[str, Meta(min_length=1, max_length=REASON_LENGTH_MAX)] | None = None
    attempts: Annotated[int, Meta(ge=1, le=_ATTEMPTS_MAX)] | None = None
