"""Groups: commits and resets of offsets; heartbeats, pull locks and messages set aside of exclusive groups."""

from __future__ import annotations

from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta

from deltamq.mq.limits import (
    COMMIT_METADATA_BYTES_MAX,
    MAX_ATTEMPTS_MAX,
    NAME_LENGTH_MAX,
    OFFSET_MAX,
    PARTITIONS_MAX,
    POP_MESSAGES_MAX,
    PRODUCER_ID_LENGTH_MAX,
    REASON_LENGTH_MAX,
    SUBSCRIPTIONS_MAX,
    WAIT_MS_MAX,
)
from deltamq.mq.wire.pop import FilterText

#: `first`, `last`, or an RFC 3339 time, for `Start.from_json`.
StartText = Annotated[str, Meta(extra_json_schema={"anyOf": [{"enum": ["first", "last"]}, {"format": "date-time"}]})]
_Offset = Annotated[int, Meta(ge=0, le=OFFSET_MAX)]
_Offsets = Annotated[dict[str, _Offset], Meta(min_length=1, description="By partition, `NAME@BROKER`.")]
_Attempts = dict[str, Annotated[int, Meta(ge=0, le=MAX_ATTEMPTS_MAX)]]


class CommitRequest(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """Offsets up to which a client has consumed, each of them the next one that the group wants."""

    offsets: _Offsets
    client_id: Annotated[
        Annotated[str, Meta(min_length=1, max_length=PRODUCER_ID_LENGTH_MAX)] | None,
        Meta(description="The client that commits; in an exclusive group it must hold the pull locks."),
    ] = None
    locks: Annotated[
        dict[str, _Offset] | None, Meta(description="Numbers of the client's pull locks, by partition.")
    ] = None
    epochs: Annotated[
        dict[str, _Offset] | None,
        Meta(description="Epochs with which the offsets were read; refused (`epoch_over`) if they were reset since."),
    ] = None
    topic_id: Annotated[
        str | None, Meta(description="The topic's id when it was read; refused if it was made again since.")
    ] = None
    attempts: Annotated[
        _Attempts | None,
        Meta(
            description="In an exclusive group: how often the message at the offset has failed; the lock's next holder "
            "gets this number."
        ),
    ] = None
    metadata: Annotated[
        dict[str, str] | None,
        Meta(
            description=f"Texts to store with the offsets, by partition, of at most {COMMIT_METADATA_BYTES_MAX} bytes. "
            "A commit without one removes that of before, unless it is earlier and ignored."
        ),
    ] = None


class ResetRequest(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """The position to which a group is reset: in the whole topic, or in each named partition."""

    to: Annotated[
        StartText | _Offsets, Meta(description="`first`, `last`, a time, or an object of partition to offset.")
    ]
    retries: Annotated[
        Literal["keep", "drop"] | None,
        Meta(description="Whether messages that wait for redelivery are kept (default) or dropped."),
    ] = None


# Exclusive groups.

#: Visible ASCII without the slash, which separates segments of a path.
CLIENT_PATTERN: Final = rf"^[!-.0-~]{{1,{NAME_LENGTH_MAX}}}$"
#: The id of a client in a body; the service checks it, as in paths and queries.
ClientText = Annotated[str, Meta(extra_json_schema={"pattern": CLIENT_PATTERN})]
_ATTEMPTS_MAX: Final = 2**31 - 1
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
