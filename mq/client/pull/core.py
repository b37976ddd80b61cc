"""Reading partitions by offset, for both shells: what `PullConsumer` and `AsyncPullConsumer` have in common.

All partitions are read in turn, so none starves another. Fetches that find nothing wait at the service, for all
partitions at once. While the caller works on its messages, the next fetch is already under way.
"""

from __future__ import annotations

import inspect
import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from datetime import datetime
from functools import partial
from typing import Any, ClassVar, Final, Literal, Unpack

import pyarrow as pa

from deltamq.mq.client.admin.admin import Admin, AdminCalls, AsyncAdmin
from deltamq.mq.client.http.calls import ClientAccess, read_answer
from deltamq.mq.client.http.endpoint import Endpoint, path_of
from deltamq.mq.client.http.retries import Patience, is_worth_retrying
from deltamq.mq.client.messages.received import ReceivedMessage, messages_of, with_partition
from deltamq.mq.client.pull.blocking_fetches import BlockingFetches
from deltamq.mq.client.pull.fetch import FetchAsk, Fetched, Fetches
from deltamq.mq.client.pull.loop_fetches import LoopFetches
from deltamq.mq.client.pull.offsets import OffsetStore, Start, resume_offsets, start_offsets
from deltamq.mq.client.pull.partition_reader import PartitionReader, out_of_range
from deltamq.mq.client.shells.both import Client, both
from deltamq.mq.client.shells.first_array import before_arrays
from deltamq.mq.client.shells.forks import Birthplace
from deltamq.mq.errors import Conflict, DeltaMQError, NotFound, Refused
from deltamq.mq.limits import FETCH_BYTES_MAX, FETCH_MESSAGES_MAX, MIB, WAIT_MS_MAX
from deltamq.mq.names import check_topic
from deltamq.mq.wire.topics import TopicInfo

log = logging.getLogger("deltamq.client")

#: Maximum number of open fetches; more partitions take turns.
FETCHES_MAX: Final = 64
#: Milliseconds that a fetch may wait at the service while other partitions wait for a connection.
_TURN_MS: Final = 200
_FIND_TIMEOUT_S: Final = 2.0
_WAIT_S_MAX: Final = 3_600.0


class PullConsumerCore(Client):
    """What `PullConsumer` and `AsyncPullConsumer` have in common."""

    _admin_kind: ClassVar[type[Admin] | type[AsyncAdmin]]
    _fetches_kind: ClassVar[type[BlockingFetches[Any]] | type[LoopFetches[Any]]]

    def __init__(
        self,
        url: str | Sequence[str],
        topic: str,
        *,
        partitions: Sequence[str] | None = None,
        start: Start = "first",
        offsets: OffsetStore | None = None,
        tags: str = "*",
        filter: str | None = None,
        on_data_loss: Literal["raise", "skip"] = "raise",
        fetch_messages: int = 10_000,
        fetch_bytes: int = 4 * MIB,
        typed: bool = False,
        patience: Patience | None = None,
        partitions_age_s_max: float = 30.0,
        **access: Unpack[ClientAccess],
    ) -> None:
        self._birthplace = Birthplace(type(self).__name__)
        self.topic = check_topic(topic)
        #: Number of positions that `skip` has moved, and of messages lost to retention there.
        self.skips = 0
        self.lost_messages = 0
        if not 1 <= fetch_messages <= FETCH_MESSAGES_MAX:
            raise Refused(f"fetch_messages must be from 1 to {FETCH_MESSAGES_MAX}", field="fetch_messages")
        if not 1 <= fetch_bytes <= FETCH_BYTES_MAX:
            raise Refused(f"fetch_bytes must be from 1 to {FETCH_BYTES_MAX}", field="fetch_bytes")
        self._tags = tags
        self._filter = filter
        self._typed = typed
        self._offsets = offsets
        self._skip = on_data_loss == "skip"
        self._fetch_messages = fetch_messages
        self._fetch_bytes = fetch_bytes
        self._patience = patience if patience is not None else Patience()
        self.shell = self._make_shell()
        self._admin: AdminCalls = self._admin_kind(url, patience=self._patience, shell=self.shell, **access)
        self._hosts = self._admin.hosts
        self._hosts.follow()
        self._fetches: Fetches[PartitionReader] = self._fetches_kind(
            open_max=FETCHES_MAX, timeout_s=self._patience.request_timeout_s
        )
        #: The partitions' readers, in the order of their turns.
        self._readers: deque[PartitionReader] = deque()
        #: Whether partitions that an expansion adds are read, too, and whether those that are read may move.
        self._follows_route = self._looks = partitions is None
        self._partitions_age_s_max = partitions_age_s_max
        self._closed = False
        #: What is assigned before the first call.
        self._assignment: Sequence[str] | None = partitions
        self._start = start
        self._is_assigned = False
        self._made()

    def _made(self) -> None:  # not abstract: on an event loop there is nothing to do yet
        """Be called when the consumer is made."""

    async def _enter(self) -> None:
        try:
            await self._ready()
        except BaseException:
            await self._close()
            raise

    # Position ---------------------------------------------------------------------------------------------------

    @both
    async def assign(self, partitions: Sequence[str] | None = None, *, start: Start = "first") -> None:
        """Read these partitions (None: all) from `start` on, in place of the present ones.

        Partitions with a stored offset are read from that one.
        """
        await self._assign(partitions, start)

    async def _assign(self, partitions: Sequence[str] | None, start: Start) -> None:
        self._birthplace.check()
        self._start = start
        info = await self._topic()
        kept = {} if self._offsets is None else await self._stored(self._offsets.load, info.id)
        offsets = await resume_offsets(self._admin, info, start, kept, partitions)
        chosen = list(offsets) if partitions is None else list(dict.fromkeys(partitions))
        unknown = [name for name in chosen if name not in offsets]
        if unknown:
            raise NotFound(
                f"topic {self.topic} has no partition {unknown[0]!r}; it has {', '.join(info.named)}",
                code="partition_not_found",
                field="partitions",
            )
        for reader in self._readers:
            self._drop_fetch(reader)
        self._made_again = False
        self._topic_id = info.id
        self._follows_route = partitions is None
        self._looks = partitions is None or info.static
        self._readers = deque(
            PartitionReader(name, offsets[name], self._patience, info.named[name].broker) for name in chosen
        )
        self._partitions_until = self.shell.now() + self._partitions_age_s_max
        self._is_assigned = True

    async def _ready(self) -> None:
        """Assign what the consumer was made for, before its first call."""
        self._birthplace.check()
        if not self._is_assigned:
            await self._assign(self._assignment, self._start)

    async def _topic(self) -> TopicInfo:
        return await AdminCalls.get_topic.core(self._admin, self.topic)

    async def _stored(self, call: Callable[..., Any], *args: object) -> Any:
        """Call a store of offsets, whose methods are coroutine functions, or plain ones that may block."""
        if inspect.iscoroutinefunction(call):
            return await call(self._admin, self.topic, *args)
        return await self.shell.blocking(partial(call, self._admin, self.topic, *args))

    def partitions(self) -> tuple[str, ...]:
        """Return the partitions that are read, sorted."""
        return tuple(sorted(reader.partition for reader in self._readers))

    def position(self, partition: str) -> int:
        """Return the offset from which the next poll returns messages of `partition`."""
        return self._reader(partition).position

    def positions(self) -> dict[str, int]:
        """Return the `position` of every partition."""
        return {reader.partition: reader.position for reader in self._readers}

    @both
    async def commit(self) -> dict[str, int]:
        """Store the positions and return them. After a crash, messages polled since the last commit are read again.

        If the group was reset since the consumer loaded its offsets, nothing is stored: the consumer goes on from the
        new offsets, and returns those.
        """
        self._birthplace.check()
        if self._offsets is None:
            raise Refused("a consumer without `offsets` cannot commit", code="no_offsets", field="offsets")
        await self._ready()
        positions = self.positions()
        try:
            await self._stored(self._offsets.save, self._topic_id, positions)
        except Conflict as error:
            if error.code != "epoch_over":
                raise
            if "topic_id" in error.extra:
                await self._begin_again(_made_again(self.topic))
                return self.positions()
            await self._assign(None if self._follows_route else list(positions), self._start)
        return self.positions()

    @both
    async def seek(self, partition: str, to: str | int | datetime) -> None:
        """Continue reading `partition` at an offset, its first message, its end, or a time."""
        await self._ready()
        reader = self._reader(partition)
        offset = to if isinstance(to, int) else await self._offset_at(partition, to)
        self._drop_fetch(reader)
        reader.seek(offset)

    @both
    async def end_offsets(self) -> dict[str, int]:
        """Return the current end offset of every partition that is read."""
        await self._ready()
        return (await self._topic()).max_offsets(self.partitions())

    async def _offset_at(self, partition: str, to: str | datetime) -> int:
        return (await start_offsets(self._admin, await self._topic(), to, [partition]))[partition]

    def _reader(self, partition: str) -> PartitionReader:
        for reader in self._readers:
            if reader.partition == partition:
                return reader
        raise NotFound(f"this consumer does not read {partition!r}", code="partition_not_found", field="partition")

    # Reading ----------------------------------------------------------------------------------------------------

    @both
    async def poll(self, max_messages: int = 500, wait_ms: int = 1_000) -> list[ReceivedMessage]:
        """Return up to `max_messages` messages, after a wait of up to `wait_ms` for the first; empty if none came."""
        messages: list[ReceivedMessage] = []
        for partition, rows in await self._received(max_messages, wait_ms):
            messages += messages_of(partition, rows)
        return messages

    @both
    async def poll_arrow(self, max_messages: int = 100_000, wait_ms: int = 1_000) -> pa.Table | None:
        """Return messages as `poll` does, as an Arrow table whose first column is `partition`; None if none came."""
        taken = await self._received(max_messages, wait_ms)
        if not taken:
            return None
        await before_arrays(self.shell)
        return pa.concat_tables([with_partition(partition, rows) for partition, rows in taken])

    async def _received(self, max_messages: int, wait_ms: int) -> list[tuple[str, pa.Table]]:
        """Take messages; if the caller traces, the call that brings some is a span with links to theirs."""
        began_ns = time.time_ns()
        taken = await self._take(max_messages, wait_ms)
        if taken and (spans := self._hosts.tracing.spans) is not None:
            tables = [rows for _, rows in taken]
            spans.received(self.topic, None, tables, sum(map(len, tables)), began_ns)
        return taken

    async def _take(self, max_messages: int, wait_ms: int) -> list[tuple[str, pa.Table]]:
        if self._closed:
            raise Refused("the consumer is closed", code="consumer_closed")
        if max_messages < 1 or wait_ms < 0:
            raise Refused("max_messages must be at least 1 and wait_ms at least 0", field="max_messages")
        await self._ready()
        if self._made_again:
            await self._begin_again(_made_again(self.topic))
        deadline = self.shell.now() + wait_ms / 1000
        remaining_ms = wait_ms
        may_ask = True
        await self._read_ready(0.0)
        while True:
            taken = self._take_held(max_messages)
            if taken:
                # Open fetches while the caller has these messages. If connections are scarce, partitions that wait for
                # one come before others that have messages already.
                flowing = len(self._readers) <= FETCHES_MAX
                await self._ask_all(max_messages, wait_ms, only_flowing=flowing)
                return taken
            if may_ask:
                await self._ask_all(max_messages, remaining_ms, only_flowing=False)
            elif not any(reader.immediate for reader in self._readers):
                return []
            skipped = self.skips
            await self._receive(deadline)
            if self._made_again:
                await self._begin_again(_made_again(self.topic))
            await self._find_partitions()
            remaining_ms = max(0, round((deadline - self.shell.now()) * 1000))
            may_ask = remaining_ms > 0 or self.skips > skipped

    def _take_held(self, max_messages: int) -> list[tuple[str, pa.Table]]:
        """Hand out held messages, partition by partition; the last one served is the last in the next turn."""
        taken = []
        for _ in range(len(self._readers)):
            rows = self._readers[0].take(max_messages)
            if rows is not None:
                taken.append((self._readers[0].partition, rows))
                max_messages -= len(rows)
            if self._readers[0].holds and max_messages <= 0:
                self._readers.rotate(-1)
                break
            self._readers.rotate(-1)
        return taken

    # Fetching ---------------------------------------------------------------------------------------------------

    async def _ask_all(self, max_messages: int, wait_ms: int, *, only_flowing: bool) -> None:
        now = self.shell.now()
        # The least recently asked partition comes first, so that none starves if connections are scarce.
        for reader in sorted(self._readers, key=lambda r: r.asked_at):
            if reader.is_asked or reader.holds or now < reader.not_before:
                continue
            if only_flowing and not reader.flowing:
                continue
            if not await self._ask(reader, max_messages, wait_ms):
                return

    async def _ask(self, reader: PartitionReader, max_messages: int, wait_ms: int) -> bool:
        turn_ms = WAIT_MS_MAX if len(self._readers) <= FETCHES_MAX else _TURN_MS
        ask = FetchAsk(
            topic=self.topic,
            partition=reader.partition,
            offset=reader.fetch_offset,
            max_messages=min(max(max_messages, self._fetch_messages), FETCH_MESSAGES_MAX),
            max_bytes=self._fetch_bytes,
            wait_ms=min(wait_ms, turn_ms),
            tags=self._tags,
            filter=self._filter,
            topic_id=self._topic_id,
            typed=self._typed,
        )
        if not await self._fetches.start(reader, self._hosts.endpoint(reader.broker), ask):
            return False
        reader.is_asked = True
        reader.asked_at = self.shell.now()
        reader.immediate = ask.wait_ms == 0
        return True

    async def _receive(self, deadline: float) -> None:
        """Read the answers that have arrived; waits for the first until the deadline, or until a pause ends."""
        now = self.shell.now()
        until = [r.not_before for r in self._readers if not r.is_asked and r.not_before > now]
        if not any(reader.immediate for reader in self._readers):
            until.append(deadline)
        await self._read_ready(min(until, default=now + _WAIT_S_MAX) - now)

    async def _read_ready(self, timeout_s: float) -> None:
        failed: DeltaMQError | None = None
        for reader, endpoint, result in await self._fetches.finished(max(0.0, timeout_s)):
            reader.is_asked = reader.immediate = False
            try:
                self._read(reader, endpoint, result)
            except DeltaMQError as error:
                failed = failed or error
        if failed is not None:
            raise failed

    def _read(self, reader: PartitionReader, endpoint: Endpoint, result: Fetched | DeltaMQError) -> None:
        if isinstance(result, DeltaMQError):
            self._failed(reader, endpoint, result)
            return
        self._hosts.answered(endpoint)
        if result.status in ("offset_too_small", "offset_too_large"):
            self._out_of_range(reader, result)
        else:
            reader.answered(result)

    def _failed(self, reader: PartitionReader, endpoint: Endpoint, error: DeltaMQError) -> None:
        """Note a failed fetch; raises unless it may be retried, at any host, within `patience`."""
        self._hosts.failed(endpoint, error)
        if error.code == "topic_made_again":
            self._made_again = True
            return
        if error.code == "partition_not_found" and self._follows_route:
            self._partitions_until = 0.0
        elif not is_worth_retrying(error):
            raise error
        if not reader.failed(error, self.shell.now()):
            raise error

    async def _begin_again(self, error: Conflict) -> None:
        """Go to the first message of the topic that was made again; raise once, unless `on_data_loss` is `skip`."""
        await self._assign(None if self._follows_route else [reader.partition for reader in self._readers], "first")
        if not self._skip:
            raise error
        self.skips += 1
        log.warning("event=topic_made_again topic=%s", self.topic)

    def _out_of_range(self, reader: PartitionReader, fetched: Fetched) -> None:
        wanted = reader.fetch_offset
        too_small = fetched.status == "offset_too_small"
        nearest = fetched.min_offset if too_small else fetched.max_offset
        if not self._skip:
            raise out_of_range(reader, fetched)
        self.skips += 1
        if too_small:
            self.lost_messages += nearest - wanted
        reader.seek(nearest)

    async def _find_partitions(self) -> None:
        """Look up, if due, partitions that an expansion added; they are read from their first message.

        Logical queues that have moved are then fetched from their new broker.
        """
        if not self._looks or self.shell.now() < self._partitions_until:
            return
        self._partitions_until = self.shell.now() + self._partitions_age_s_max
        try:
            answer = await self._hosts.call("GET", path_of("topics", self.topic), timeout_s=_FIND_TIMEOUT_S)
        except DeltaMQError as error:
            if not is_worth_retrying(error):
                raise
            return
        info = read_answer(answer, TopicInfo)
        if info.id != self._topic_id:
            self._made_again = True
            return
        present = info.named
        gone = [reader for reader in self._readers if reader.partition not in present]
        for reader in gone if self._follows_route else ():
            self._drop_fetch(reader)
            self._readers.remove(reader)
        for reader in self._readers:
            reader.broker = present[reader.partition].broker if reader.partition in present else None
        self._fetches.keep({self._hosts.endpoint(reader.broker) for reader in self._readers})
        if not self._follows_route:
            return
        known = {reader.partition for reader in self._readers}
        for name, partition in present.items():
            # A damaged one has no known first offset, and is looked up again.
            if name not in known and partition.min_offset is not None:
                self._readers.append(PartitionReader(name, partition.min_offset, self._patience, partition.broker))

    # The end ----------------------------------------------------------------------------------------------------

    def _drop_fetch(self, reader: PartitionReader) -> None:
        self._fetches.drop(reader)
        reader.is_asked = reader.immediate = False

    @both
    async def close(self) -> None:
        """Close all connections; an open fetch is abandoned. In a child of a fork, nothing: they are the parent's."""
        await self._close()

    async def _close(self) -> None:
        if self._closed or not self._birthplace.is_here:
            return
        self._closed = True
        await self._fetches.close()
        await AdminCalls.close.core(self._admin)


def _made_again(topic: str) -> Conflict:
    return Conflict(
        f"topic {topic} was deleted and made again: the next poll reads the new one from its first message",
        code="topic_made_again",
        field="topic",
    )
