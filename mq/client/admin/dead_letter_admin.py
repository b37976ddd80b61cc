"""Dead letters of groups over REST, as typed values: list, count, send back, delete (SPEC RETRY-3, RETRY-8)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Literal, TypeAlias

import msgspec

from deltamq.mq.client.http.calls import PagedCalls, read_answer, time_text
from deltamq.mq.client.http.endpoint import path_of
from deltamq.mq.client.shells.both import both
from deltamq.mq.names import check_group
from deltamq.mq.queue.dead_letters import LetterState
from deltamq.mq.wire.stored import (
    DeadLetterCounts,
    DeletedLetters,
    DeleteLettersRequest,
    MessageOrigin,
    Replayed,
    ReplayRequest,
)

#: Offsets of dead letters by their partition.
LetterOffsets: TypeAlias = Mapping[str, Sequence[int]]


class DeadLetter(msgspec.Struct, frozen=True, kw_only=True):
    """A message that the group gave up; `partition` and `offset` say where it is among the group's dead letters.

    `origin` is where it was first stored, `reason` why the group gave it up, `attempts` the number of deliveries.
    `state` is `new`, `sent_back` or `deleted`. It was last sent back at `sent_back_time` by the principal
    `sent_back_by`.
    """

    partition: str
    offset: int
    topic: str | None = None
    reason: str | None = None
    attempts: int = 0
    state: LetterState = "new"
    sent_back_time: datetime | None = None
    sent_back_by: str | None = None
    body: str | None = None
    body_base64: bytes | None = None
    key: str | None = None
    tag: str | None = None
    headers: dict[str, str | None] | None = None
    message_id: str | None = None
    born_time: datetime | None = None
    append_time: datetime | None = None
    origin: MessageOrigin | None = None

    @property
    def payload(self) -> bytes:
        """The body as bytes."""
        return (self.body_base64 or b"") if self.body is None else self.body.encode()


class DeadLetterPage(msgspec.Struct, frozen=True):
    """A page of the `total` dead letters that were asked for.

    `next_offset` and `cursor` are where the next page begins, None on the last page. A `cursor` stays
    valid when dead letters are sent back or deleted.
    """

    total: int
    messages: list[DeadLetter]
    next_offset: int | None = None
    cursor: str | None = None


class DeadLetterAdmin(PagedCalls):
    """The part of `Admin` that manages dead letters.

    In every call, `state`, `reason`, `topic` and `since` select the dead letters that match every given one. `since`
    is the earliest time at which they became dead.
    """

    @both
    async def dead_letters(
        self,
        group: str,
        *,
        limit: int = 100,
        offset: int = 0,
        cursor: str | None = None,
        state: LetterState | None = None,
        reason: str | None = None,
        topic: str | None = None,
        since: datetime | None = None,
    ) -> DeadLetterPage:
        """Return at most `limit` dead letters after the first `offset`, or from `cursor` on, the oldest first.

        They come broker by broker. Without a `state`, deleted ones are left out.
        """
        query: dict[str, str | int] = {"limit": limit, **_filter(state=state, reason=reason, topic=topic, since=since)}
        query |= {"offset": offset} if cursor is None else {"cursor": cursor}
        return read_answer(await self._call("GET", _letters_path(group), query=query), DeadLetterPage)

    @both
    async def count_dead_letters(
        self,
        group: str,
        *,
        by: Literal["reason", "topic"] | None = None,
        reason: str | None = None,
        topic: str | None = None,
        since: datetime | None = None,
    ) -> DeadLetterCounts:
        """Return how many dead letters a group has in each state, and `by` reason or topic if asked."""
        query = _filter(by=by, reason=reason, topic=topic, since=since)
        return read_answer(await self._call("GET", _letters_path(group, "counts"), query=query), DeadLetterCounts)

    @both
    async def replay_dead_letters(
        self,
        group: str,
        *,
        offsets: LetterOffsets | None = None,
        to: Literal["origin", "retry"] = "origin",
        state: LetterState | None = None,
        reason: str | None = None,
        topic: str | None = None,
        since: datetime | None = None,
    ) -> Replayed:
        """Send dead letters back: the new ones, or any that `offsets` or `state` name.

        A repeated call stores nothing twice. With `offsets` or `state` this holds for a day, as long as partitions
        remember requests.

        Parameters
        ----------
        offsets
            Offsets of the dead letters to send, by their partition.
        to
            `origin`: to the topic that they came from, for all groups; `retry`: only to this group.
        """
        request = ReplayRequest(
            offsets=_offsets(offsets), to=to, state=state, reason=reason, topic=topic, from_time=_time(since)
        )
        answer = await self._call("POST", _letters_path(group, "replay"), body=msgspec.json.encode(request))
        return read_answer(answer, Replayed)

    @both
    async def delete_dead_letters(
        self,
        group: str,
        *,
        offsets: LetterOffsets | None = None,
        state: LetterState | None = None,
        reason: str | None = None,
        topic: str | None = None,
        since: datetime | None = None,
        everything: bool = False,
    ) -> DeletedLetters:
        """Delete dead letters: they are shown only on request, and never sent back; retention removes them in time.

        Parameters
        ----------
        offsets
            Offsets of the dead letters to delete, by their partition.
        everything
            Delete all; a call needs this or a selection.
        """
        request = DeleteLettersRequest(
            offsets=_offsets(offsets), state=state, reason=reason, topic=topic, from_time=_time(since), all=everything
        )
        answer = await self._call("DELETE", _letters_path(group), body=msgspec.json.encode(request))
        return read_answer(answer, DeletedLetters)


def _letters_path(group: str, *more: str) -> str:
    return path_of("groups", check_group(group), "dead-letters", *more)


def _offsets(offsets: LetterOffsets | None) -> dict[str, list[int]] | None:
    return None if offsets is None else {partition: list(chosen) for partition, chosen in offsets.items()}


def _filter(*, since: datetime | None, **given: str | None) -> dict[str, str]:
    return {name: value for name, value in {**given, "from_time": _time(since)}.items() if value is not None}


def _time(since: datetime | None) -> str | None:
    return None if since is None else time_text(since, "since")
