"""What operators look at, over REST: messages by what is in them (SPEC LOOK-1)."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

from deltamq.mq.client.http.calls import Calls, read_answer, time_text
from deltamq.mq.client.http.endpoint import path_of
from deltamq.mq.names import check_topic
from deltamq.mq.wire.stored import FoundMessage, SearchAnswer


class InspectionAdmin(Calls):
    """The part of `Admin` that looks."""

    def search_page(
        self,
        topic: str,
        *,
        key: str | None = None,
        message_id: str | None = None,
        tag: str | None = None,
        header: str | None = None,
        text: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        partition: str | None = None,
        limit: int = 100,
        cursor: str | None = None,
    ) -> SearchAnswer:
        """Look at a bounded part of a topic for messages that have all that is given; see `search`.

        The answer says how far it has looked, and its `cursor` is where to go on, None at the end.
        """
        wanted = {
            "key": key,
            "id": message_id,
            "tag": tag,
            "header": header,
            "text": text,
            "from_time": None if since is None else time_text(since, "since"),
            "to_time": None if until is None else time_text(until, "until"),
            "partition": partition,
            "limit": str(limit),
            "cursor": cursor,
        }
        query = {name: value for name, value in wanted.items() if value is not None}
        return read_answer(
            self._call("GET", path_of("topics", check_topic(topic), "search"), query=query), SearchAnswer
        )

    def search(
        self,
        topic: str,
        *,
        key: str | None = None,
        message_id: str | None = None,
        tag: str | None = None,
        header: str | None = None,
        text: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        partition: str | None = None,
    ) -> Iterator[FoundMessage]:
        """Yield the messages of a topic that have all that is given, page by page; give up by asking for no more.

        Parameters
        ----------
        header
            `name:value`, or `name` for any value.
        text
            Text that is anywhere in the body.
        since, until
            Only messages that were stored at `since` or later, and before `until`.
        partition
            Only this partition, or logical queue.

        Raises
        ------
        Conflict
            `topic_made_again`: the topic was deleted and made again meanwhile.
        """
        cursor: str | None = None
        while True:
            page = self.search_page(
                topic,
                key=key,
                message_id=message_id,
                tag=tag,
                header=header,
                text=text,
                since=since,
                until=until,
                partition=partition,
                limit=1_000,
                cursor=cursor,
            )
            yield from page.messages
            cursor = page.cursor
            if cursor is None:
                return
