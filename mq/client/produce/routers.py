"""Queues a producer's messages: finds the topic's router (`TopicRouter`) and executor, and takes room in the buffer.

A batch is cut into parts, each queued at one executor; together they make the caller's result (`Parts`).
"""

from __future__ import annotations

import dataclasses
import random
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, TypeAlias, TypeVar

import msgspec
import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from deltamq.mq.client.messages.message import Failure, Message, Sent, SentBatch, SentRange, summed_up
from deltamq.mq.client.produce.entry import Entry, timed_out_in_queue
from deltamq.mq.client.produce.executor import Executor
from deltamq.mq.client.produce.shared import SendSettings, Shared
from deltamq.mq.client.produce.slices import Slice, split_messages, split_rows
from deltamq.mq.client.produce.topic_router import TopicRouter
from deltamq.mq.client.shells.shell import Outcome, Shell
from deltamq.mq.errors import DeltaMQError, Unavailable, Unknown
from deltamq.mq.names import check_client_topic

if TYPE_CHECKING:
    from deltamq.mq.client.tracing.spans import BatchSpan

#: Seconds beyond the deadline in which the last attempt of a batch may still be answered.
_GRACE_S = 0.25

Indexes = NDArray[np.int64]
PartFuture: TypeAlias = Outcome[tuple[SentRange, ...]]
Result = TypeVar("Result")


class _Part(msgspec.Struct, frozen=True):
    executor: Executor
    entry: Entry
    future: PartFuture
    indexes: Indexes


class Parts:
    """The queued parts of a batch of `count` messages, and its failures; `span` is the batch's, if it is traced."""

    def __init__(self, shell: Shell, count: int, span: BatchSpan | None = None) -> None:
        self._shell = shell
        self._count = count
        self.span = span
        self._parts: list[_Part] = []
        self._failures: list[Failure] = []

    def add(self, executor: Executor, entry: Entry, future: PartFuture, indexes: Indexes) -> None:
        """Note a queued part."""
        self._parts.append(_Part(executor, entry, future, indexes))

    def failed(self, indexes: Indexes, error: DeltaMQError) -> None:
        """Note messages that are not stored, or not known to be."""
        self._failures.append(Failure(indexes=indexes, error=error))

    async def result(self, deadline: float) -> SentBatch:
        """Wait for all parts; raises if one of them is not stored (`PartlySent` if others are)."""
        ranges: list[SentRange] = []
        for part in self._parts:
            try:
                placed = await wait_for(self._shell, part.executor, part.entry, part.future, deadline)
            except DeltaMQError as error:
                self.failed(part.indexes, error)
            else:
                ranges += [self._in_batch(r, part.indexes) for r in placed]
        return summed_up(ranges, self._failures)

    async def wait(self, deadline: float) -> None:
        """Wait until every part is resolved, with whatever outcome; at the deadline, queued parts are withdrawn."""
        with suppress(DeltaMQError):
            await self.result(deadline)

    def _in_batch(self, placed: SentRange, indexes: Indexes) -> SentRange:
        """Return the range with indexes counted from the batch's first message."""
        mine = indexes if placed.indexes is None else indexes[placed.indexes]
        whole = len(mine) == self._count
        return dataclasses.replace(placed, indexes=None if whole else mine)


async def wait_for(shell: Shell, executor: Executor, entry: Entry, future: Outcome[Result], deadline: float) -> Result:
    """Return the future's result; at the deadline, a queued entry is withdrawn, and one in flight is unknown.

    If the caller gives up, a queued entry is withdrawn, too, and one in flight is sent and repeated as if it had not.
    """
    try:
        return await shell.outcome(future, max(deadline, shell.now()) + _GRACE_S)
    except TimeoutError:
        if executor.withdraw(entry):
            raise timed_out_in_queue() from None
        if future.done() and not isinstance(future.exception(), TimeoutError):
            return future.result()
        raise Unknown("no answer within the send's timeout; the outcome is not known") from None
    except DeltaMQError:
        raise
    except BaseException:
        if executor.withdraw(entry) and not future.cancelled():
            future.exception()  # it is known to the caller, and not logged as one that nobody has seen
        raise


_DRAW_BITS = 30


class Closed(msgspec.Struct, frozen=True, kw_only=True):
    """What a producer left undone when it closed.

    `not_sent` messages never left the process; for `unresolved` ones it is not known whether they are stored.
    """

    not_sent: int
    unresolved: int

    def __bool__(self) -> bool:
        """Return whether every message was resolved."""
        return self.not_sent == 0 and self.unresolved == 0


class Routers:
    """The topic routers of one producer."""

    def __init__(self, shared: Shared) -> None:
        self._shared = shared
        self._routers: dict[str, TopicRouter] = {}
        self._lock = threading.Lock()
        self._closed = False

    @property
    def is_closed(self) -> bool:
        """Whether the producer was closed."""
        return self._closed

    @property
    def _settings(self) -> SendSettings:
        return self._shared.settings

    def router(self, topic: str) -> TopicRouter:
        """Return the router of `topic`; raises `Refused` for a name that a client may not produce to."""
        if self._closed:
            raise Unavailable("the producer is closed; nothing was sent", code="producer_closed")
        router = self._routers.get(topic)
        if router is None:
            check_client_topic(topic)
            with self._lock:
                router = self._routers.setdefault(topic, TopicRouter(topic, self._shared))
        return router

    def put_now(self, router: TopicRouter, message: Message, entry: Entry) -> Executor | None:
        """Queue one message if its executor is known, takes it, and there is room; returns None otherwise."""
        executor = router.known_executor(message, self._shared.shell.now())
        if executor is None or not self._shared.buffer.try_take(entry.size, entry.count):
            return None
        return executor if self._put_in_room(executor, entry) else None

    async def put(self, router: TopicRouter, message: Message, entry: Entry, *, waits: bool, here: bool) -> Executor:
        """Queue one message, for a caller that `waits` for it; `here`: the caller sends it if no other is ahead."""
        executor = router.known_executor(message, self._shared.shell.now()) or await router.executor_for(
            message, entry.deadline
        )
        if not self._shared.buffer.try_take(entry.size, entry.count):
            await self._take_room(entry, wait=waits or self._settings.when_full == "wait")
        while True:
            try:
                taken = await executor.put_here(entry) if here else executor.put(entry)
            except DeltaMQError:
                self._shared.buffer.give_back(entry.size, entry.count)
                raise
            if taken:
                return executor
            try:
                executor = await router.executor_for(message, entry.deadline)
            except BaseException:  # the caller's task may be cancelled while it waits for a route
                self._shared.buffer.give_back(entry.size, entry.count)
                raise

    def gather(self, executor: Executor, message: Message, deadline: float, future: Outcome[Sent] | None) -> bool:
        """Queue one message if there is room for it, and the executor takes it; returns whether it is queued."""
        buffer = self._shared.buffer
        size = buffer.fitted(message.size_bytes())
        if not buffer.try_take(size, 1):
            return False
        taken = False
        try:
            taken = executor.gather(message, size, deadline, future)
        finally:
            if not taken:
                buffer.give_back(size, 1)
        return taken

    def _put_in_room(self, executor: Executor, entry: Entry) -> bool:
        """Queue messages that have room already; they lose it if the executor does not take them."""
        taken = False
        try:
            taken = executor.put(entry)
        finally:
            if not taken:
                self._shared.buffer.give_back(entry.size, entry.count)
        return taken

    async def put_slice(self, parts: Parts, router: TopicRouter, given: Slice, deadline: float) -> None:
        """Queue many messages, split by the current route; those that cannot be queued are noted in `parts`."""
        try:
            pieces = [given] if given.named else await self._split(router, given, deadline)
        except DeltaMQError as error:
            parts.failed(given.indexes, error)
            return
        for piece in pieces:
            for request in self._requests(piece):
                try:
                    await self._put_request(parts, router, request, deadline)
                except DeltaMQError as error:
                    parts.failed(request.indexes, error)

    async def _split(self, router: TopicRouter, given: Slice, deadline: float) -> list[Slice]:
        view = await router.bulk_view(deadline)
        draw = random.getrandbits(_DRAW_BITS)
        if given.rows is None:
            pieces = split_messages(given.messages, view, draw)
        else:
            pieces = split_rows(given.rows, view, draw)
        return [replace(piece, indexes=given.indexes[piece.indexes]) for piece in pieces]

    async def _put_request(self, parts: Parts, router: TopicRouter, request: Slice, deadline: float) -> None:
        """Queue the messages of one request; they are split again if the route has changed since."""
        while True:
            if request.named:
                assert request.partition is not None
                executor: Executor | None = await router.named(request.partition, deadline)
            else:
                executor = router.executor_of(request.partition)
            if executor is None:
                await self.put_slice(parts, router, request, deadline)
                return
            if await self._put_part(parts, executor, request, deadline):
                return

    async def _put_part(self, parts: Parts, executor: Executor, request: Slice, deadline: float) -> bool:
        future: PartFuture = self._shared.shell.future()
        entry = Entry(
            list(request.messages),
            len(request.indexes),
            self._shared.buffer.fitted(request.size_bytes),
            deadline,
            [future],
            [time.time_ns() // 1000],
            rows=request.rows,
            named=request.named,
            span=parts.span,
        )
        await self._take_room(entry, wait=True)
        taken = self._put_in_room(executor, entry)
        if taken:
            parts.add(executor, entry, future, request.indexes)
        return taken

    async def _take_room(self, entry: Entry, *, wait: bool) -> None:
        await self._shared.buffer.take(entry.size, entry.count, deadline=entry.deadline, wait=wait)

    def _requests(self, piece: Slice) -> Iterator[Slice]:
        """Cut a slice into halves until each fits a request."""
        count = len(piece.indexes)
        over = piece.size_bytes > self._settings.batch_bytes_max
        if piece.rows is None:
            over = over or count > self._settings.batch_messages_max
        if count <= 1 or not over:
            yield piece
            return
        yield from self._requests(piece.part(0, count // 2))
        yield from self._requests(piece.part(count // 2, count))

    # The end ----------------------------------------------------------------------------------------------------

    async def close(self, timeout_s: float) -> Closed:
        """Wait at most `timeout_s` until every message is resolved, then fail queued messages and end all retries."""
        with self._lock:
            self._closed = True
            routers = list(self._routers.values())
        not_sent = 0
        if not await self._shared.buffer.wait_empty(self._shared.shell.now() + timeout_s):
            self._shared.stop.set()
            not_sent = sum(router.abandon() for router in routers)
        unresolved = self._shared.buffer.messages
        self._shared.stop.set()
        await self._shared.workers.close()
        await self._shared.hosts.close()
        await self._shared.shell.close()
        return Closed(not_sent=not_sent, unresolved=unresolved)
