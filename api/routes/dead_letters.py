"""A group's dead letters over REST: list, count, send back, delete (SPEC RETRY-3, RETRY-8).

A request chooses dead letters by state, reason, topic, time or offsets, page by page; `api.sending.letters` has their
logs and marks.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Annotated, Final, Literal, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
from fastapi import APIRouter, Query, Request, Response
from numpy.typing import NDArray

from deltamq.api.routes.groups import GroupName
from deltamq.api.sending.letters import KEPT_STATES, LetterCount, LetterFailures, Letters, LettersWanted, some_letters
from deltamq.api.service.dependencies import Asking, Running
from deltamq.api.wire.fields import is_offset, json_answer, parse_time
from deltamq.api.wire.json_body import JsonBody
from deltamq.api.wire.message_json import dead_letters, shown_origins
from deltamq.api.wire.openapi_parts import answers
from deltamq.mq.errors import Corrupt, Forbidden, NotFound, Refused
from deltamq.mq.limits import MIB, NAME_LENGTH_MAX, OFFSET_MAX, REASON_LENGTH_MAX
from deltamq.mq.names import broker_of
from deltamq.mq.queue.dead_letters import Deleted, LetterState
from deltamq.mq.wire.stored import (
    CountedLetters,
    DeadLetterCounts,
    DeadLetters,
    DeletedLetters,
    DeleteLettersRequest,
    FailedReplay,
    LetterFilter,
    Replayed,
    ReplayRequest,
)
from deltamq.tables.queue.dead_marks import LETTER_STATES

log = logging.getLogger("deltamq.api")

router = APIRouter(prefix="/v1/groups/{group}/dead-letters", tags=["groups"])

LIST_MAX: Final = 1_000
_LIST_DEFAULT: Final = 100
#: Maximum number of reasons or topics that an answer counts by.
_COUNTS_MAX: Final = 1_000
_DELETED: Final = "dead_letter_deleted"

_REPLAY: Final = JsonBody(ReplayRequest, {"offsets": {"%DLQ%billing@broker-a": [0, 7]}, "to": "retry"}, required=False)
_DELETE: Final = JsonBody(DeleteLettersRequest, {"offsets": {"%DLQ%billing@broker-a": [0, 7]}})

_State = Annotated[
    LetterState | None, Query(description="Only letters in this state; by default all that are not deleted.")
]
_Reason = Annotated[str | None, Query(description="Only letters with this reason.", max_length=REASON_LENGTH_MAX)]
_OfTopic = Annotated[str | None, Query(description="Only letters from this topic.", max_length=NAME_LENGTH_MAX)]
_FromTime = Annotated[str | None, Query(description="RFC 3339: only letters that are dead since then or later.")]


# List -----------------------------------------------------------------------------------------------------------------


@router.get(
    "",
    summary="A group's dead letters, broker by broker, oldest first",
    responses=answers(DeadLetters, 400, 404, 422, 429, 500),
)
async def list_dead_letters(
    group: GroupName,
    service: Running,
    caller: Asking,
    limit: Annotated[int, Query(ge=1, le=LIST_MAX)] = _LIST_DEFAULT,
    offset: Annotated[
        int, Query(ge=0, le=OFFSET_MAX, description="Number to skip; with `partition`, the first offset there.")
    ] = 0,
    partition: Annotated[str | None, Query(description="Only this one: `%DLQ%{group}@{broker}`.")] = None,
    state: _State = None,
    reason: _Reason = None,
    topic: _OfTopic = None,
    from_time: _FromTime = None,
    cursor: Annotated[str | None, Query(description="The `cursor` of the page before; instead of `offset`.")] = None,
) -> Response:
    known_group = await service.groups.require(group)
    # Other clients of the group may have consumed topics that this caller may not.
    wanted = letters_wanted(
        KEPT_STATES if state is None else (state,),
        reason=reason,
        topic=topic,
        from_time=from_time,
        may_read=caller.filter("topic", "subscribe"),
    )
    letters = await service.dead_letters.of(known_group)
    chosen = await service.partitions.run(partial(_chosen, letters, wanted))
    total = sum(len(part.offsets) for part in chosen.values())
    if partition is not None:
        named(letters, partition, "partition")
        chosen = {name: part for name, part in chosen.items() if name == partition}
    if cursor is not None:
        begin_at(chosen, cursor)
    elif partition is not None:
        begin_at(chosen, cursor_to(partition, offset))
    else:
        skip(chosen, offset)
    with service.answers.enter() as ticket:
        page = await service.partitions.run(partial(page_of, chosen, limit))
        ticket.grow(sum(rows.nbytes for _, rows in page.rows))
        shown_queue_of = service.topics.shown_queue_of
        messages = [
            letter
            for source, rows in page.rows
            for letter in dead_letters(source.log.ref.name, shown_origins(rows, shown_queue_of), source.marks)
        ]
        following = None
        if page.next is not None:
            following = page.next[1] if partition is not None else offset + page.taken
        after = None if page.next is None else cursor_to(*page.next)
        return json_answer(DeadLetters(group, total, messages, following, after))


def _chosen(letters: Mapping[str, Letters | None], wanted: LettersWanted) -> dict[str, Chosen]:
    return {name: Chosen(part, part.offsets(wanted)) for name, part in letters.items() if part is not None}


# Count ----------------------------------------------------------------------------------------------------------------


@router.get(
    "/counts",
    summary="How many dead letters a group has, by state, and by reason or topic",
    responses=answers(DeadLetterCounts, 400, 404, 422, 500),
)
async def count_dead_letters(
    group: GroupName,
    service: Running,
    caller: Asking,
    by: Annotated[Literal["reason", "topic"] | None, Query(description="Also count by this.")] = None,
    reason: _Reason = None,
    topic: _OfTopic = None,
    from_time: _FromTime = None,
) -> Response:
    known_group = await service.groups.require(group)
    wanted = letters_wanted(
        LETTER_STATES,
        reason=reason,
        topic=topic,
        from_time=from_time,
        may_read=caller.filter("topic", "subscribe"),
    )
    letters = [part for part in (await service.dead_letters.of(known_group)).values() if part is not None]
    return json_answer(await service.partitions.run(partial(_counts, group, letters, wanted, by)))


def _counts(group: str, letters: Sequence[Letters], wanted: LettersWanted, by: str | None) -> DeadLetterCounts:
    total, by_value = LetterCount(), dict[str | None, LetterCount]()
    for part in letters:
        total.add(part.count(wanted))
        if by is not None:
            part.count_by(by, wanted, by_value)
    most = sorted(by_value.items(), key=lambda entry: (-entry[1].new - entry[1].sent_back, entry[0] or ""))
    counts = tuple(
        CountedLetters(**{by or "": value}, new=count.new, sent_back=count.sent_back, deleted=count.deleted)
        for value, count in most[:_COUNTS_MAX]
    )
    return DeadLetterCounts(group=group, new=total.new, sent_back=total.sent_back, deleted=total.deleted, counts=counts)


# Send back, delete ----------------------------------------------------------------------------------------------------


@router.post(
    "/replay",
    summary="Send dead letters back: those that are new, or those that are asked for",
    responses=answers(Replayed, 400, 404, 409, 413, 415, 422, 500, 507),
    openapi_extra=_REPLAY.described,
)
async def replay_dead_letters(group: GroupName, service: Running, caller: Asking, request: Request) -> Response:
    asked = await _REPLAY.read(request)
    known_group = await service.groups.require(group)
    letters, failures = await service.dead_letters.of(known_group), LetterFailures()
    chosen = await service.partitions.run(partial(chosen_by, letters, asked, failures))
    before, to_send = 0, []
    for part in chosen:
        failures.add(part.letters.log.ref.name, part.in_state("deleted"), _DELETED)
        sent, new = part.in_state("sent_back"), part.in_state("new")
        if asked.offsets is None and asked.state is None:
            # Its target may have forgotten the request: it would get the message a second time.
            before += len(sent)
        else:
            new = np.union1d(new, sent)
        to_send.append((part.letters, new))
    done = await service.replayer.replay(known_group, to_send, asked.to or "origin", caller, failures)
    answer = Replayed(
        replayed=done.replayed,
        duplicates=before + done.duplicates,
        failed=_failed(failures),
        failed_total=failures.total,
    )
    return json_answer(answer)


@router.delete(
    "",
    summary="Delete dead letters: lists show them no more, nothing sends them back",
    responses=answers(DeletedLetters, 400, 404, 409, 413, 415, 422, 500, 507),
    openapi_extra=_DELETE.described,
)
async def delete_dead_letters(group: GroupName, service: Running, caller: Asking, request: Request) -> Response:
    asked = await _DELETE.read(request)
    if asked.all is not asked.is_empty:
        wrong = "nothing else with it" if asked.all else "which: offsets, state, reason, topic, from_time; or all: true"
        raise Refused(f"all: say {wrong}", field="all")
    known_group = await service.groups.require(group)
    letters, failures = await service.dead_letters.of(known_group), LetterFailures()
    may_read = caller.filter("topic", "subscribe")
    chosen = await service.partitions.run(partial(chosen_by, letters, asked, failures, may_read))
    now_ms, deleted = service.now_ms(), 0
    for part in chosen:
        offsets = np.union1d(part.in_state("new"), part.in_state("sent_back"))
        if len(offsets):
            await service.dead_letters.mark(
                known_group, part.letters.log.ref.name, offsets, lambda ranges: Deleted(ranges, now_ms, caller.name)
            )
        deleted += len(offsets)
    log.info("event=dead_letters_deleted group=%r count=%d", group, deleted)
    duplicates = sum(len(part.in_state("deleted")) for part in chosen)
    answer = DeletedLetters(
        deleted=deleted, duplicates=duplicates, failed=_failed(failures), failed_total=failures.total
    )
    return json_answer(answer)


def _failed(failures: LetterFailures) -> list[FailedReplay]:
    return [FailedReplay(partition, offset, code) for partition, offset, code in failures.listed]


Int64s = NDArray[np.int64]

_PAGE_BYTES: Final = 16 * MIB
_OUT_OF_RANGE: Final = "offset_out_of_range"


class Chosen(msgspec.Struct):
    """The dead letters of one partition that are asked for, by offset, ascending."""

    letters: Letters
    offsets: Int64s

    def in_state(self, state: LetterState) -> Int64s:
        """Return the offsets of the letters in one state."""
        offsets: Int64s = self.offsets[self.letters.states(self.offsets) == LETTER_STATES.index(state)]
        return offsets


class Page(NamedTuple):
    """The rows of a page, how many dead letters it covers, and where the next one begins: partition and offset."""

    rows: list[tuple[Letters, pa.Table]]
    taken: int
    next: tuple[str, int] | None


def letters_wanted(
    states: Collection[LetterState],
    *,
    reason: str | None,
    topic: str | None,
    from_time: str | None,
    may_read: Callable[[str], bool] | None = None,
) -> LettersWanted:
    """Return what a request asks for; refuse an invalid time."""
    from_us = None if from_time is None else parse_time(from_time, "from_time")
    return LettersWanted(states=states, reason=reason, topic=topic, from_us=from_us, may_read=may_read)


def named(letters: Mapping[str, Letters | None], partition: str, field: str) -> Letters | None:
    """Return the dead letters of a partition that a request names in `field`; None if there are none yet."""
    if partition not in letters:
        raise NotFound(
            f"{field}: there are no dead letters in {partition!r}, but in {', '.join(letters)}",
            code="partition_not_found",
            field=field,
        )
    return letters[partition]


# Pages ----------------------------------------------------------------------------------------------------------------


def begin_at(chosen: Mapping[str, Chosen], cursor: str) -> None:
    """Drop what comes before a cursor, as `cursor_to` writes it."""
    broker, _, text = cursor.rpartition(":")
    if not broker or not is_offset(text):
        raise Refused("cursor: send the cursor of the page before as it is", field="cursor")
    for name, part in chosen.items():
        if broker_of(name) < broker:
            part.offsets = part.offsets[:0]
        elif broker_of(name) == broker:
            part.offsets = part.offsets[np.searchsorted(part.offsets, int(text)) :]


def cursor_to(partition: str, offset: int) -> str:
    """Return the cursor of a page that begins there; it holds whatever is sent back or deleted meanwhile."""
    return f"{broker_of(partition)}:{offset}"


def skip(chosen: Mapping[str, Chosen], count: int) -> None:
    """Drop the first `count`."""
    for part in chosen.values():
        here = min(count, len(part.offsets))
        part.offsets = part.offsets[here:]
        count -= here


def page_of(chosen: Mapping[str, Chosen], limit: int) -> Page:
    """Return at most `limit` rows; what retention took meanwhile is left out. Blocks."""
    rows: list[tuple[Letters, pa.Table]] = []
    room, taken = _PAGE_BYTES, 0
    for name, part in chosen.items():
        left = part.offsets
        while len(left):
            if taken >= limit or (room <= 0 and rows):
                return Page(rows, taken, (name, int(left[0])))
            picked, count = some_letters(part.letters.log, left[: limit - taken], max(1, room))
            for offset, error in picked.unreadable.items():
                raise Corrupt(f"offset {offset} of {name} cannot be read: {error}", code="dead_letter_corrupt")
            rows.append((part.letters, pa.Table.from_batches([picked.rows])))
            left = left[count:]
            taken += count
            room -= picked.rows.nbytes
    return Page(rows, taken, None)


# Requests that name offsets, or a filter ------------------------------------------------------------------------------


def chosen_by(
    letters: Mapping[str, Letters | None],
    asked: LetterFilter,
    failures: LetterFailures,
    may_read: Callable[[str], bool] | None = None,
) -> list[Chosen]:
    """Return the dead letters that a request is about; named ones that do not exist are added to `failures`.

    Without a state these are all that it names, or else all that are not deleted. Letters that the caller may not read
    are left out, or added to `failures` if they are named. Blocks.

    Raises
    ------
    NotFound
        A partition is named in which there are no dead letters.
    """
    states: Collection[LetterState] = KEPT_STATES if asked.offsets is None else LETTER_STATES
    wanted = letters_wanted(
        states if asked.state is None else (asked.state,),
        reason=asked.reason,
        topic=asked.topic,
        from_time=asked.from_time,
        may_read=may_read,
    )
    if asked.offsets is None:
        return [Chosen(part, part.offsets(wanted)) for part in letters.values() if part is not None]
    by_name = {name: named(letters, name, f"offsets.{name}") for name in asked.offsets}
    chosen = []
    for partition, part in by_name.items():
        offsets = np.unique(np.array(asked.offsets[partition], dtype=np.int64))
        here = np.zeros(len(offsets), dtype=bool) if part is None else part.here(offsets)
        failures.add(partition, offsets[~here], _OUT_OF_RANGE)
        if part is None:
            continue
        offsets = offsets[here]
        if may_read is not None:
            readable = np.isin(offsets, part.offsets(LettersWanted(states=LETTER_STATES, may_read=may_read)))
            failures.add(partition, offsets[~readable], Forbidden.code)
        chosen.append(Chosen(part, offsets[np.isin(offsets, part.offsets(wanted))]))
    return chosen
