"""Calls with handles: acknowledge, return, change the invisible time, give up."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from deltamq.mq.limits import HANDLE_CHARS_MAX, HANDLES_MAX, INVISIBLE_MS_CEILING, REASON_LENGTH_MAX

HandleText = Annotated[str, Meta(max_length=HANDLE_CHARS_MAX)]
Handles = Annotated[list[HandleText], Meta(max_length=HANDLES_MAX)]
Milliseconds = Annotated[int, Meta(ge=0, le=INVISIBLE_MS_CEILING)]
Count = Annotated[int, Meta(ge=0)]


class AckRequest(msgspec.Struct, forbid_unknown_fields=True):
    """Handles of messages to be acknowledged."""

    handles: Handles


class InvisibleRequest(msgspec.Struct, forbid_unknown_fields=True):
    """A message's new invisible time in milliseconds, from now on; 0 returns the message at once."""

    handle: HandleText
    invisible_ms: Milliseconds


class NackRequest(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """Messages that failed: delivered again after `delay_ms`, by default as the group's retry policy says."""

    handles: Handles
    delay_ms: Milliseconds | None = None


class DeadRequest(msgspec.Struct, forbid_unknown_fields=True):
    """Messages to be sent to the dead letters."""

    handles: Handles
    reason: Annotated[str, Meta(min_length=1, max_length=REASON_LENGTH_MAX)] = "rejected"


class FailedHandle(msgspec.Struct, frozen=True, gc=False):
    """A handle that was refused, with the reason as `code`.

    `handle_invalid`: no valid handle of this group. `handle_expired`: the message is delivered again, or about to be.
    `forbidden`: the caller may not consume its topic.
    `outcome_unknown`: acknowledged in time, but stored so late that the message may be delivered again all the same.
    """

    handle: str
    code: str


class AckAnswer(msgspec.Struct):
    """The number of handles that were acknowledged, and those that were refused."""

    acked: Count
    failed: list[FailedHandle]


class NackAnswer(msgspec.Struct):
    """The number of messages that are delivered again or dead after their last attempt, and the refused handles."""

    nacked: Count
    failed: list[FailedHandle]


class DeadAnswer(msgspec.Struct):
    """The number of messages that go to the dead letters, and the refused handles."""

    dead: Count
    failed: list[FailedHandle]


class InvisibleAnswer(msgspec.Struct):
    """The message's new handle; the previous one is no longer valid."""

    handle: str
