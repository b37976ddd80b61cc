"""Groups, their offsets, and the cancelling of delayed messages over REST, as typed values."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Final, Literal, TypeAlias

import msgspec

from deltamq.mq.client.admin.dead_letter_admin import DeadLetterAdmin
from deltamq.mq.client.http.calls import read_answer
from deltamq.mq.client.http.endpoint import path_of
from deltamq.mq.client.shells.both import both
from deltamq.mq.client.shells.shell import Answer
from deltamq.mq.errors import NotFound, Unprocessable
from deltamq.mq.meta.allocation import Strategy
from deltamq.mq.meta.group_settings import ConsumeStrategy, Ordering
from deltamq.mq.names import check_client_topic, check_group, check_reader, check_topic
from deltamq.mq.wire.groups import (
    CommitRequest,
    FencedOffsets,
    GroupInfo,
    GroupList,
    GroupStatistics,
    ResetOffsets,
    ResetPlan,
    ResetRequest,
    RetryPolicyJson,
)

_CREATED: Final = 201

#: Target of an offset reset: `first`, `last`, a time, or offsets by partition.
ResetTarget: TypeAlias = Literal["first", "last"] | str | datetime | Mapping[str, int]


class GroupAdmin(DeadLetterAdmin):
    """The part of `Admin` that manages groups."""

    # Groups -----------------------------------------------------------------------------------------------------

    @both
    async def create_group(
        self,
        group: str,
        *,
        consume_strategy: ConsumeStrategy | None = None,
        allocation_strategy: Strategy | None = None,
        order: Ordering | None = None,
        consume_from: Literal["first", "last"] | str | datetime | None = None,
        max_attempts: int | None = None,
        retry_policy: RetryPolicyJson | None = None,
        invisible_ms: int | None = None,
    ) -> GroupInfo:
        """Create a group, or update an existing one; a setting left out keeps its value, or gets its default.

        Parameters
        ----------
        allocation_strategy
            How an exclusive group's partitions are given to clients: `sticky`, `average`, `circle`,
            `consistent_hash`.
        consume_from
            Where the group begins in a partition that it never consumed: `first`, `last`, or a time.
        max_attempts
            Number of deliveries after which a message becomes a dead letter.
        retry_policy
            Waits in milliseconds by attempt, `{"fixed_ms": 1000}`, or `{"exponential": {"initial_ms": 5000}}`.
        invisible_ms
            Invisible time, in milliseconds, of pops that name none.
        """
        made = await GroupAdmin.put_group.core(
            self,
            group,
            consume_strategy=consume_strategy,
            allocation_strategy=allocation_strategy,
            order=order,
            consume_from=_moment(consume_from) if isinstance(consume_from, datetime) else consume_from,
            max_attempts=max_attempts,
            retry_policy=retry_policy,
            invisible_ms=invisible_ms,
        )
        return made[0]

    @both
    async def put_group(self, group: str, /, **settings: object) -> tuple[GroupInfo, bool]:
        """Create or update as `create_group` does, and also return whether the group is new."""
        body = msgspec.json.encode({name: value for name, value in settings.items() if value is not None})
        answer = await self._call("PUT", path_of("groups", check_group(group)), body=body)
        return read_answer(answer, GroupInfo), answer.status == _CREATED

    @both
    async def list_groups(self) -> list[str]:
        """Return the names of all groups, sorted; they are fetched in pages, so that no answer is large."""
        return [group async for group in self._rows(["groups"], GroupList, lambda page: page.groups)]

    @both
    async def get_group(self, group: str) -> GroupInfo:
        """Return a group, or a client of a broadcast group (`GROUP@CLIENT`), with its progress; raises `NotFound`."""
        return read_answer(await self._call("GET", path_of("groups", check_reader(group))), GroupInfo)

    @both
    async def group_statistics(self, group: str, *, minutes: int = 5) -> GroupStatistics:
        """Return what the group did in the last `minutes` (1 to 15) and the running one: rates, ages, handling times.

        SQL has older minutes (`mq_statistics`). Raises `NotFound`.
        """
        path = path_of("groups", check_group(group), "statistics")
        return read_answer(await self._call("GET", path, query={"minutes": minutes}), GroupStatistics)

    @both
    async def pause_group(self, group: str, reason: str = "") -> GroupInfo:
        """Deliver nothing to a group until `resume_group`; messages in flight can still be acknowledged.

        Kafka's clients do not say for which group they fetch: they go on.
        """
        body = msgspec.json.encode({"reason": reason})
        return read_answer(
            await self._call("POST", path_of("groups", check_group(group), "pause"), body=body), GroupInfo
        )

    @both
    async def resume_group(self, group: str) -> GroupInfo:
        """Deliver messages to a paused group again."""
        return read_answer(await self._call("POST", path_of("groups", check_group(group), "resume")), GroupInfo)

    @both
    async def delete_group(self, group: str) -> None:
        """Remove a group with its progress, retries and dead letters; raises `NotFound` when there is no such group.

        If an answer was lost and the retry finds no group, the group counts as deleted.
        """
        await self._end(path_of("groups", check_reader(group)), NotFound)

    # Offsets ----------------------------------------------------------------------------------------------------

    @both
    async def group_offsets(self, group: str, topic: str) -> dict[str, int]:
        """Return the committed offset, the next to be consumed, of each partition in which the group has begun."""
        return (await GroupAdmin.fenced_offsets.core(self, group, topic)).offsets

    @both
    async def commit_offsets(
        self,
        group: str,
        topic: str,
        offsets: Mapping[str, int],
        *,
        client_id: str | None = None,
        metadata: Mapping[str, str] | None = None,
    ) -> dict[str, int]:
        """Commit offsets by partition; returns the committed offsets, which never go back (see `reset_offsets`).

        `metadata` has texts by partition, of at most 4,096 bytes each, which are stored with the offsets; a commit
        without a text removes the stored one. `get_group` shows them.
        """
        texts = dict(metadata) if metadata else None
        return (await self._commit(group, topic, CommitRequest(dict(offsets), client_id, metadata=texts))).offsets

    @both
    async def fenced_offsets(self, group: str, topic: str) -> FencedOffsets:
        """Return `group_offsets` with the epochs and the topic id that `commit_fenced` checks."""
        return read_answer(await self._call("GET", _offsets_path(group, topic)), FencedOffsets)

    @both
    async def commit_fenced(self, group: str, topic: str, place: FencedOffsets) -> FencedOffsets:
        """Commit `place.offsets`, if the epochs and the topic id in `place` are still current.

        Raises
        ------
        Conflict
            `epoch_over`: the group was reset, or the topic was made again. Read the place again, and go on from there.
        """
        epochs = {name: place.epochs[name] for name in place.offsets if name in place.epochs}
        return await self._commit(
            group, topic, CommitRequest(place.offsets, epochs=epochs or None, topic_id=place.topic_id)
        )

    async def _commit(self, group: str, topic: str, request: CommitRequest) -> FencedOffsets:
        body = msgspec.json.encode(request)
        return read_answer(await self._call("PUT", _offsets_path(group, topic), body=body), FencedOffsets)

    @both
    async def reset_offsets(
        self, group: str, topic: str, to: ResetTarget, *, keep_retries: bool = True
    ) -> dict[str, int]:
        """Reset the group's offsets in a topic, which begins a new epoch (POP-18); returns the new offsets.

        Handles of messages that clients hold now become void: such messages can no longer be acknowledged.

        Parameters
        ----------
        to
            `first`, `last`, a time, or offsets by partition (other partitions keep theirs).
        keep_retries
            Whether messages that wait for their next delivery are kept.
        """
        return read_answer(await self._reset(group, topic, to, keep_retries=keep_retries), ResetOffsets).offsets

    @both
    async def plan_reset(self, group: str, topic: str, to: ResetTarget, *, keep_retries: bool = True) -> ResetPlan:
        """Return what `reset_offsets` would do, and change nothing (POP-21)."""
        return read_answer(await self._reset(group, topic, to, keep_retries=keep_retries, plan=True), ResetPlan)

    async def _reset(
        self, group: str, topic: str, to: ResetTarget, *, keep_retries: bool, plan: bool = False
    ) -> Answer:
        target = dict(to) if isinstance(to, Mapping) else _moment(to) if isinstance(to, datetime) else to
        body = msgspec.json.encode(ResetRequest(target, "keep" if keep_retries else "drop", plan))
        return await self._call("POST", f"{_offsets_path(group, topic)}/reset", body=body)

    # Delayed messages -------------------------------------------------------------------------------------------

    @both
    async def cancel_message(self, topic: str, message_id: str) -> None:
        """Cancel a delayed message before it is due (RETRY-4).

        Raises
        ------
        NotFound
            `message_not_found`: no such message waits.
        Conflict
            `already_due`: it is delivered already, or about to be.
        """
        await self._end(path_of("topics", check_client_topic(topic), "messages", message_id), NotFound)


def _offsets_path(group: str, topic: str) -> str:
    return path_of("groups", check_reader(group), "topics", check_topic(topic), "offsets")


def _moment(moment: datetime) -> str:
    if moment.tzinfo is None:
        raise Unprocessable("a time needs a time zone", field="to")
    return moment.astimezone(UTC).isoformat().replace("+00:00", "Z")
