"""A group's offsets: commits, resets, and the replay of its dead letters."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from deltamq.mq.limits import COMMIT_METADATA_BYTES_MAX, MAX_ATTEMPTS_MAX, OFFSET_MAX, PRODUCER_ID_LENGTH_MAX

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
