"""What operators look at, over REST: messages by what is in them, delayed ones, who holds what (SPEC LOOK)."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from datetime import datetime
from typing import Final, TypedDict, Unpack

from deltamq.mq.client.http.calls import Calls, read_answer, time_text
from deltamq.mq.client.http.endpoint import path_of
from deltamq.mq.client.shells.both import both
from deltamq.mq.client.shells.rows import both_rows
from deltamq.mq.errors import NotFound
from deltamq.mq.names import check_group, check_partition, check_reader, check_topic
from deltamq.mq.wire.cluster import HistoryAnswer, HistorySeries
from deltamq.mq.wire.groups import DeliveriesAnswer, InFlightAnswer, RetriesAnswer
from deltamq.mq.wire.stored import DelayedList, DelayedMessage, FoundMessage, LatestValue, SearchAnswer


class Wanted(TypedDict, total=False):
    """What a search looks for: messages that have all that is given."""

    key: str | None
    message_id: str | None
    tag: str | None
    #: `name:value`, or `name` for any value.
    header: str | None
    #: Text that is anywhere in the body.
    text: str | None
    #: Only messages that were stored at `since` or later, and before `until`.
    since: datetime | None
    until: datetime | None
    #: Only this partition, or logical queue.
    partition: str | None


#: What the service calls what is wanted, where that is another name.
_PARAMETERS: Final = {"message_id": "id", "since": "from_time", "until": "to_time"}


class InspectionAdmin(Calls):
    """The part of `Admin` that looks."""

    @both
    async def search_page(
        self, topic: str, *, limit: int = 100, cursor: str | None = None, **wanted: Unpack[Wanted]
    ) -> SearchAnswer:
        """Look at a bounded part of a topic for messages that have all that is given (`Wanted`).

        The answer says how far it has looked, and its `cursor` is where to go on, None at the end.
        """
        query = {"limit": str(limit)} | ({} if cursor is None else {"cursor": cursor})
        for name, value in wanted.items():
            if value is not None:
                text = time_text(value, name) if isinstance(value, datetime) else str(value)
                query[_PARAMETERS.get(name, name)] = text
        return read_answer(
            await self._call("GET", path_of("topics", check_topic(topic), "search"), query=query), SearchAnswer
        )

    @both_rows
    async def search(self, topic: str, **wanted: Unpack[Wanted]) -> AsyncGenerator[FoundMessage, None]:
        """Yield the messages of a topic that have all that is given (`Wanted`), page by page.

        Give up by asking for no more.

        Raises
        ------
        Conflict
            `topic_made_again`: the topic was deleted and made again meanwhile.
        """
        cursor: str | None = None
        while True:
            page = await InspectionAdmin.search_page.core(self, topic, limit=1_000, cursor=cursor, **wanted)
            for message in page.messages:
                yield message
            cursor = page.cursor
            if cursor is None:
                return

    @both
    async def latest(self, topic: str, key: str) -> LatestValue | None:
        """Return the newest value of a key of a topic with a schema; None if it has none, or the newest message none.

        What was acknowledged before the call counts, however late the job `latest` is.

        Raises
        ------
        Unprocessable
            `no_schema`: the topic has none.
        Unavailable
            `latest_behind`: too many messages are behind the job's table for one call.
        """
        path = path_of("topics", check_topic(topic), "latest", key)
        try:
            return read_answer(await self._call("GET", path), LatestValue)
        except NotFound as error:
            if error.code == "key_not_found":
                return None
            raise

    @both
    async def deliveries(self, topic: str, partition: str, offset: int) -> DeliveriesAnswer:
        """Return what each group did with the message at an offset of a partition, or logical queue.

        Raises
        ------
        NotFound
            `message_not_found`, `partition_not_found`, `topic_not_found`.
        """
        path = path_of(
            "topics",
            check_topic(topic),
            "partitions",
            check_partition(partition),
            "messages",
            str(offset),
            "deliveries",
        )
        return read_answer(await self._call("GET", path), DeliveriesAnswer)

    @both
    async def in_flight(self, group: str, *, topic: str | None = None, limit: int = 100) -> InFlightAnswer:
        """Return the messages that clients of a group hold, the oldest delivery first, and how many each client holds.

        Raises
        ------
        NotFound
            There is no such group.
        """
        query = {"limit": str(limit)} | ({} if topic is None else {"topic": topic})
        path = path_of("groups", check_reader(group), "in-flight")
        return read_answer(await self._call("GET", path, query=query), InFlightAnswer)

    @both
    async def retries(self, group: str, *, topic: str | None = None, limit: int = 100) -> RetriesAnswer:
        """Return the messages of a group that are delivered again, the next due first, and how many by attempt.

        With the handle of a `waiting` one, `PopClient.change_invisible(handle, 0)` brings it forward, and
        `PopClient.dead` makes it a dead letter.

        Raises
        ------
        NotFound
            There is no such group.
        """
        query = {"limit": str(limit)} | ({} if topic is None else {"topic": topic})
        path = path_of("groups", check_reader(group), "retries")
        return read_answer(await self._call("GET", path, query=query), RetriesAnswer)

    @both
    async def delayed_page(self, topic: str, *, limit: int = 100, cursor: str | None = None) -> DelayedList:
        """Return a page of the messages that wait for their deliver time; `cursor` is that of the page before."""
        query = {"limit": str(limit)} | ({} if cursor is None else {"cursor": cursor})
        return read_answer(
            await self._call("GET", path_of("topics", check_topic(topic), "delayed"), query=query), DelayedList
        )

    @both_rows
    async def delayed(self, topic: str) -> AsyncGenerator[DelayedMessage, None]:
        """Yield the messages that wait for their deliver time, the next due first, page by page.

        `cancel_message` cancels one.
        """
        cursor: str | None = None
        while True:
            page = await InspectionAdmin.delayed_page.core(self, topic, limit=1_000, cursor=cursor)
            for message in page.messages:
                yield message
            cursor = page.cursor
            if cursor is None:
                return

    @both
    async def history(
        self,
        metric: str,
        *,
        group: str | None = None,
        topic: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        step_ms: int | None = None,
    ) -> list[HistorySeries]:
        """Return samples of a metric over the last day at most, by default over the last hour.

        Parameters
        ----------
        metric
            `lag`, `oldest_s`, `in_flight`, `clients`, `dead_letters`, `delayed`, or a rate a second: `sent`,
            `sent_bytes`, `consumed`.
        step_ms
            Time between two points: a multiple of 15,000. By default a series has 240 points at most.
        """
        wanted = {
            "metric": metric,
            "group": None if group is None else check_group(group),
            "topic": None if topic is None else check_topic(topic),
            "from_time": None if since is None else time_text(since, "since"),
            "to_time": None if until is None else time_text(until, "until"),
            "step_ms": None if step_ms is None else str(step_ms),
        }
        query = {name: value for name, value in wanted.items() if value is not None}
        return list(read_answer(await self._call("GET", path_of("history"), query=query), HistoryAnswer).series)
