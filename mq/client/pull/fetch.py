"""Fetches: one request for messages of a partition, its answer, and the open fetches of a consumer.

A consumer keeps a request open for each of its partitions and waits for all of them at once: it needs no thread for
each, and reads first from the partition whose messages arrive first. Connections are kept when idle, and bounded.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping, Sequence
from typing import Final, Generic, NamedTuple, Protocol, TypeVar

import msgspec
import pyarrow as pa

from deltamq.mq.client.http.endpoint import Endpoint, Query, path_of
from deltamq.mq.client.produce.wire import ARROW
from deltamq.mq.errors import DeltaMQError, Unknown

FETCH_HEADERS: Final = {"Accept": ARROW}


class FetchAsk(msgspec.Struct, frozen=True, kw_only=True):
    """A fetch from one partition: messages from `offset` on, with a wait of up to `wait_ms` for the first."""

    topic: str
    partition: str
    offset: int
    max_messages: int
    max_bytes: int
    wait_ms: int
    tags: str
    filter: str | None = None
    #: The exclusive group and its client that fetch, if the fetch needs a pull lock (SPEC ORDER-4).
    group: str | None = None
    client_id: str | None = None
    #: The topic's id, so that no offset is used in another life of it (SPEC MODEL-6).
    topic_id: str | None = None
    #: Whether rows have the column `value`.
    typed: bool = False

    @property
    def path(self) -> str:
        return path_of("topics", self.topic, "partitions", self.partition, "messages")

    @property
    def query(self) -> Query:
        query: dict[str, str | int] = {
            "offset": self.offset,
            "max_messages": self.max_messages,
            "max_bytes": self.max_bytes,
            "wait_ms": self.wait_ms,
        }
        if self.tags != "*":
            query["tags"] = self.tags
        if self.filter is not None:
            query["filter"] = self.filter
        if self.group is not None:
            query["group"] = self.group
        if self.client_id is not None:
            query["client_id"] = self.client_id
        if self.topic_id is not None:
            query["topic_id"] = self.topic_id
        if self.typed:
            query["typed"] = "true"
        return query


class Fetched(msgspec.Struct, frozen=True, kw_only=True):
    """A fetch's answer; `status` is one of `found`, `no_new_message`, `offset_too_small`, `offset_too_large`."""

    status: str
    rows: pa.Table
    next_offset: int
    min_offset: int
    max_offset: int


Tag = TypeVar("Tag", bound=Hashable)


class Finished(NamedTuple, Generic[Tag]):
    """A fetch that has ended: whose it was, where it was sent, and its answer or its error."""

    tag: Tag
    endpoint: Endpoint
    result: Fetched | DeltaMQError


class Fetches(Protocol[Tag]):
    """The open fetches of one consumer, at most one for each tag."""

    async def start(self, tag: Tag, endpoint: Endpoint, ask: FetchAsk) -> bool:
        """Send a fetch; returns False if too many are open. A failure is a result, too."""

    async def finished(self, timeout_s: float) -> Sequence[Finished[Tag]]:
        """Return the fetches that have ended, after a wait for the first; none at the timeout, or after `wake`."""

    def drop(self, tag: Tag) -> None:
        """Forget the open fetch of this tag, if there is one; its answer is not read."""

    def wake(self) -> None:
        """Let a waiting `finished` return; safe in any thread."""

    def keep(self, endpoints: Collection[Endpoint]) -> None:
        """Close the idle connections to other hosts than these, which may have left the cluster."""

    async def close(self) -> None:
        """Drop everything."""


def read_fetched(headers: Mapping[str, str], body: bytes) -> Fetched:
    try:
        rows = pa.ipc.open_stream(pa.py_buffer(body)).read_all()
        return Fetched(
            status=headers["mq-status"],
            rows=rows,
            next_offset=int(headers["mq-next-offset"]),
            min_offset=int(headers["mq-min-offset"]),
            max_offset=int(headers["mq-max-offset"]),
        )
    except (KeyError, ValueError, OSError, pa.ArrowException) as error:
        raise Unknown(f"the answer to a fetch is unreadable: {error}", code="answer_unreadable") from error
