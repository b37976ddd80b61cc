"""A topic's quarantine over REST: messages whose bodies did not fit, requests about them (SPEC TYPE-6 to TYPE-8)."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from deltamq.mq.limits import OFFSET_MAX
from deltamq.mq.wire.stored import StoredMessage

_CODE_LENGTH_MAX = 64
_Offsets = dict[str, list[Annotated[int, Meta(ge=0, le=OFFSET_MAX)]]]


class Misfit(msgspec.Struct, frozen=True, omit_defaults=True):
    """Why a body did not fit: a code, the path of the field, a sentence, and the schema that it was read with."""

    code: str
    field: str | None = None
    reason: str | None = None
    schema_id: int | None = None


class QuarantinedMessage(StoredMessage, kw_only=True):
    """A message in quarantine: no consumer is handed it. `partition` is as clients know it, also `offset`."""

    partition: str
    invalid: Misfit


class Quarantine(msgspec.Struct, frozen=True, kw_only=True):
    """Messages in quarantine, partition by partition, the oldest first.

    `cursor` is where the next call goes on, null after the last message; a page may have no messages and a cursor.
    """

    topic: str
    messages: list[QuarantinedMessage]
    cursor: str | None = None


class QuarantineRequest(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """Which messages in quarantine: by offsets, by the code of what did not fit, or all."""

    offsets: Annotated[
        Annotated[_Offsets, Meta(min_length=1)] | None, Meta(description="Offsets by partition or logical queue.")
    ] = None
    code: Annotated[
        Annotated[str, Meta(max_length=_CODE_LENGTH_MAX)] | None,
        Meta(description="Those whose `invalid.code` is this."),
    ] = None
    all: Annotated[bool, Meta(description="All of them: a request that deletes must say so, or which.")] = False
    cursor: Annotated[str | None, Meta(description="The `cursor` of the answer before, with the same request.")] = None


class StillQuarantined(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A message that stays in quarantine, and why.

    `code` is what does not fit the newest schema, with field and reason; or `not_quarantined`, `offset_out_of_range`,
    `forbidden` or another code.
    """

    partition: str
    offset: int
    code: str
    field: str | None = None
    reason: str | None = None


class QuarantineDone(msgspec.Struct, frozen=True, kw_only=True):
    """So many messages left the quarantine; `duplicates` others had left it before.

    `failed` names the first thousand of `failed_total`. With a `cursor`, the request has not come to the end: repeat it
    with the cursor.
    """

    done: int
    duplicates: int = 0
    failed: list[StillQuarantined] = []
    failed_total: int = 0
    cursor: str | None = None
