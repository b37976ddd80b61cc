"""The pull consumer: reads partitions by offset; it may store its offsets in a file or a group (`offset_stores`).

    consumer = PullConsumer("http://127.0.0.1:8080", "orders", start="first")
    for message in consumer:                     # for ever; `poll` returns when there is nothing for a while
        print(message.partition, message.offset, message.text)

All partitions are read in turn, so none starves another. Fetches that find nothing wait at the service, for all
partitions at once. While the caller works on its messages, the next fetch is already under way.
"""

from __future__ import annotations

import logging
import selectors
import time
from collections import deque
from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Final, Literal, Unpack

import pyarrow as pa

from deltamq.mq.client.admin.admin import Admin
from deltamq.mq.client.http.calls import ClientAccess, Closing, read_answer
from deltamq.mq.client.http.endpoint import Endpoint, path_of
from deltamq.mq.client.http.retries import Patience, is_worth_retrying
from deltamq.mq.client.http.threads import Birthplace
from deltamq.mq.client.messages.received import ReceivedMessage, messages_of, with_partition
from deltamq.mq.client.pull.fetch import FetchAsk, FetchConnection, FetchConnections, Fetched
from deltamq.mq.client.pull.offsets import OffsetStore, Start, resume_offsets, start_offsets
from deltamq.mq.client.pull.partition_reader import PartitionReader, out_of_range
from deltamq.mq.errors import Conflict, DeltaMQError, NotFound, Refused, Unknown
from deltamq.mq.limits import FETCH_BYTES_MAX, FETCH_MESSAGES_MAX, MIB, WAIT_MS_MAX
from deltamq.mq.names import check_topic
from deltamq.mq.wire.topics import TopicInfo

log = logging.getLogger("deltamq.client")

#: Maximum number of open fetches; more partitions take turns.
_CONNECTIONS_MAX: Final = 64
#: Milliseconds that a fetch may wait at the service while other partitions wait for a connection.
_TURN_MS: Final = 200
_FIND_TIMEOUT_S: Final = 2.0


class PullConsumer(Closing):
    """Reads some or all partitions of a topic. One thread at a time may use it.

    Parameters
    ----------
    url, topic
        The service, and the topic to read.
    partitions
        `NAME@BROKER` names, or names of logical queues; by default all partitions, including those that an expansion
        adds later (read from their first message, also by a consumer that goes on from stored offsets).
    start
        `first`, `last` (only new messages), an offset, a time, or offsets by partition.
    offsets
        The store of offsets (`GroupOffsets`, `FileOffsets`): reading goes on from them, and `start` applies only to
        partitions without a stored offset. `commit` stores the positions that the polls have reached.
    tags
        `*`, or `TagA||TagB`: other messages are skipped and count as consumed.
    filter
        A SQL condition, for example `region = 'eu' AND amount > 5`: messages that it is not true for count as consumed.
    on_data_loss
        What to do when retention has removed messages that were not read yet, or the log ends before the position:
        `raise` `OffsetOutOfRange`, or `skip` to the nearest offset that exists (`lost_messages` counts; in a logical
        queue also the offsets of holes). The same holds when the topic was deleted and made again: the next poll goes
        on at the first message of the new one; `raise` raises `Conflict` (`topic_made_again`) once before.
    fetch_messages, fetch_bytes
        Maximum size of one fetch.
    partitions_age_s_max
        Seconds between look-ups of partitions that an expansion added.
    access
        How the service is reached, for example `token`; see `Calls`.
    """

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
        patience: Patience | None = None,
        partitions_age_s_max: float = 30.0,
        **access: Unpack[ClientAccess],
    ) -> None:
        self._birthplace = Birthplace("PullConsumer")
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
        self._offsets = offsets
        self._skip = on_data_loss == "skip"
        self._fetch_messages = fetch_messages
        self._fetch_bytes = fetch_bytes
        self._patience = patience if patience is not None else Patience()
        self._admin = Admin(url, patience=self._patience, **access)
        self._hosts = self._admin.hosts
        self._hosts.follow()
        self._selector = selectors.DefaultSelector()
        self._connections = FetchConnections(
            connections_max=_CONNECTIONS_MAX, timeout_s=self._patience.request_timeout_s
        )
        #: The partitions' readers, in the order of their turns.
        self._readers: deque[PartitionReader] = deque()
        #: Whether partitions that an expansion adds are read, too, and whether those that are read may move.
        self._follows_route = self._looks = partitions is None
        self._partitions_age_s_max = partitions_age_s_max
        self._closed = False
        #: The error of a call that had messages to return; the next call raises it.
        self._deferred: DeltaMQError | None = None
        try:
            self.assign(partitions, start=start)
        except BaseException:
            self.close()
            raise

    # Position ---------------------------------------------------------------------------------------------------

    def assign(self, partitions: Sequence[str] | None = None, *, start: Start = "first") -> None:
        """Read these partitions (None: all) from `start` on, in place of the present ones.

        Partitions with a stored offset are read from that one.
        """
        self._birthplace.check()
        self._start = start
        info = self._admin.get_topic(self.topic)
        kept = {} if self._offsets is None else self._offsets.load(self._admin, self.topic, info.id)
        offsets = resume_offsets(self._admin, info, start, kept, partitions)
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
        self._deferred = None
        self._made_again = False
        self._topic_id = info.id
        self._follows_route = partitions is None
        self._looks = partitions is None or info.static
        self._readers = deque(
            PartitionReader(name, offsets[name], self._patience, info.named[name].broker) for name in chosen
        )
        self._partitions_until = time.monotonic() + self._partitions_age_s_max

    def partitions(self) -> tuple[str, ...]:
        """Return the partitions that are read, sorted."""
        return tuple(sorted(reader.partition for reader in self._readers))

    def position(self, partition: str) -> int:
        """Return the offset from which the next poll returns messages of `partition`."""
        return self._reader(partition).position

    def positions(self) -> dict[str, int]:
        """Return the `position` of every partition."""
        return {reader.partition: reader.position for reader in self._readers}

    def commit(self) -> dict[str, int]:
        """Store the positions and return them. After a crash, messages polled since the last commit are read again.

        If the group was reset since the consumer loaded its offsets, nothing is stored: the consumer goes on from the
        new offsets, and returns those.
        """
        self._birthplace.check()
        if self._offsets is None:
            raise Refused("a consumer without `offsets` cannot commit", code="no_offsets", field="offsets")
        positions = self.positions()
        try:
            self._offsets.save(self._admin, self.topic, self._topic_id, positions)
        except Conflict as error:
            if error.code != "epoch_over":
                raise
            if "topic_id" in error.extra:
                self._begin_again(_made_again(self.topic))
                return self.positions()
            self.assign(None if self._follows_route else list(positions), start=self._start)
        return self.positions()

    def seek(self, partition: str, to: str | int | datetime) -> None:
        """Continue reading `partition` at an offset, its first message, its end, or a time."""
        self._birthplace.check()
        reader = self._reader(partition)
        offset = to if isinstance(to, int) else self._offset_at(partition, to)
        self._drop_fetch(reader)
        reader.seek(offset)

    def end_offsets(self) -> dict[str, int]:
        """Return the current end offset of every partition that is read."""
        return self._admin.get_topic(self.topic).max_offsets(self.partitions())

    def _offset_at(self, partition: str, to: str | datetime) -> int:
        return start_offsets(self._admin, self._admin.get_topic(self.topic), to, [partition])[partition]

    def _reader(self, partition: str) -> PartitionReader:
        for reader in self._readers:
            if reader.partition == partition:
                return reader
        raise NotFound(f"this consumer does not read {partition!r}", code="partition_not_found", field="partition")

    # Reading ----------------------------------------------------------------------------------------------------

    def poll(self, max_messages: int = 500, wait_ms: int = 1_000) -> list[ReceivedMessage]:
        """Return up to `max_messages` messages, after a wait of up to `wait_ms` for the first; empty if none came."""
        messages: list[ReceivedMessage] = []
        for partition, rows in self._received(max_messages, wait_ms):
            messages += messages_of(partition, rows)
        return messages

    def poll_arrow(self, max_messages: int = 100_000, wait_ms: int = 1_000) -> pa.Table | None:
        """Return messages as `poll` does, as an Arrow table whose first column is `partition`; None if none came."""
        taken = self._received(max_messages, wait_ms)
        if not taken:
            return None
        return pa.concat_tables([with_partition(partition, rows) for partition, rows in taken])

    def __iter__(self) -> Iterator[ReceivedMessage]:
        """Yield every message, without end, until the consumer is closed."""
        while not self._closed:
            yield from self.poll()

    def _received(self, max_messages: int, wait_ms: int) -> list[tuple[str, pa.Table]]:
        """Take messages; if the caller traces, the call that brings some is a span with links to theirs."""
        began_ns = time.time_ns()
        taken = self._take(max_messages, wait_ms)
        if taken and (spans := self._hosts.tracing.spans) is not None:
            tables = [rows for _, rows in taken]
            spans.received(self.topic, None, tables, sum(map(len, tables)), began_ns)
        return taken

    def _take(self, max_messages: int, wait_ms: int) -> list[tuple[str, pa.Table]]:
        self._birthplace.check()
        if self._closed:
            raise Refused("the consumer is closed", code="consumer_closed")
        if max_messages < 1 or wait_ms < 0:
            raise Refused("max_messages must be at least 1 and wait_ms at least 0", field="max_messages")
        if self._deferred is not None:
            error, self._deferred = self._deferred, None
            raise error
        if self._made_again:
            self._begin_again(_made_again(self.topic))
        deadline = time.monotonic() + wait_ms / 1000
        remaining_ms = wait_ms
        may_ask = True
        self._read_ready(0.0)
        while True:
            taken = self._take_held(max_messages)
            if taken:
                self._prefetch(max_messages, wait_ms)
                return taken
            if may_ask:
                self._ask_all(max_messages, remaining_ms, only_flowing=False)
            elif not any(reader.immediate for reader in self._readers):
                return []
            skipped = self.skips
            self._receive(deadline)
            if self._made_again:
                self._begin_again(_made_again(self.topic))
            self._find_partitions()
            remaining_ms = max(0, round((deadline - time.monotonic()) * 1000))
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

    def _prefetch(self, max_messages: int, wait_ms: int) -> None:
        """Open fetches while the caller has the messages that were taken.

        The position is past them already: an error that hid them would let the next commit skip them.
        """
        try:
            # If connections are scarce, partitions that wait for one come before prefetches of others.
            self._ask_all(max_messages, wait_ms, only_flowing=len(self._readers) <= _CONNECTIONS_MAX)
        except DeltaMQError as error:
            self._deferred = error

    def _ask_all(self, max_messages: int, wait_ms: int, *, only_flowing: bool) -> None:
        now = time.monotonic()
        # The least recently asked partition comes first, so that none starves if connections are scarce.
        for reader in sorted(self._readers, key=lambda r: r.asked_at):
            if reader.connection is not None or reader.holds or now < reader.not_before:
                continue
            if only_flowing and not reader.flowing:
                continue
            connection = self._connections.take(self._hosts.endpoint(reader.broker))
            if connection is None:
                return
            self._ask(reader, connection, max_messages, wait_ms)

    def _ask(self, reader: PartitionReader, connection: FetchConnection, max_messages: int, wait_ms: int) -> None:
        turn_ms = WAIT_MS_MAX if len(self._readers) <= _CONNECTIONS_MAX else _TURN_MS
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
        )
        try:
            connection.ask(ask)
        except DeltaMQError as error:
            self._connections.discard(connection)
            self._failed(reader, connection.endpoint, error)
            return
        reader.connection = connection
        reader.asked_at = time.monotonic()
        reader.immediate = ask.wait_ms == 0
        self._selector.register(connection, selectors.EVENT_READ, reader)

    def _receive(self, deadline: float) -> None:
        """Read the answers that have arrived; waits for the first until the deadline, or until a pause ends."""
        now = time.monotonic()
        open_fetches = [r.connection.expires for r in self._readers if r.connection is not None]
        pauses = [r.not_before for r in self._readers if r.connection is None and r.not_before > now]
        if any(reader.immediate for reader in self._readers):
            until = min([*open_fetches, *pauses])
        else:
            until = min([deadline, *open_fetches, *pauses])
        self._read_ready(max(0.0, until - now))
        now = time.monotonic()
        for reader in list(self._readers):
            if reader.connection is not None and reader.connection.expires <= now:
                endpoint = reader.connection.endpoint
                self._drop_fetch(reader)
                self._failed(reader, endpoint, Unknown(f"{endpoint.url} did not answer in time", code="no_answer"))

    def _read_ready(self, timeout_s: float) -> None:
        for key, _ in self._selector.select(timeout_s):
            self._read(key.data)

    def _read(self, reader: PartitionReader) -> None:
        connection = reader.connection
        assert connection is not None, "only open fetches are waited for"
        self._selector.unregister(connection)
        reader.connection = None
        reader.immediate = False
        try:
            fetched = connection.read()
        except DeltaMQError as error:
            self._connections.discard(connection)
            self._failed(reader, connection.endpoint, error)
            return
        self._hosts.answered(connection.endpoint)
        self._connections.give_back(connection)
        if fetched.status in ("offset_too_small", "offset_too_large"):
            self._out_of_range(reader, fetched)
        else:
            reader.answered(fetched)

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
        if not reader.failed(error, time.monotonic()):
            raise error

    def _begin_again(self, error: Conflict) -> None:
        """Go to the first message of the topic that was made again; raise once, unless `on_data_loss` is `skip`."""
        self.assign(None if self._follows_route else [reader.partition for reader in self._readers], start="first")
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

    def _find_partitions(self) -> None:
        """Look up, if due, partitions that an expansion added; they are read from their first message.

        Logical queues that have moved are then fetched from their new broker.
        """
        if not self._looks or time.monotonic() < self._partitions_until:
            return
        self._partitions_until = time.monotonic() + self._partitions_age_s_max
        try:
            answer = self._hosts.call("GET", path_of("topics", self.topic), timeout_s=_FIND_TIMEOUT_S)
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
        self._connections.keep({self._hosts.endpoint(reader.broker) for reader in self._readers})
        if not self._follows_route:
            return
        known = {reader.partition for reader in self._readers}
        for name, partition in present.items():
            # A damaged one has no known first offset, and is looked up again.
            if name not in known and partition.min_offset is not None:
                self._readers.append(PartitionReader(name, partition.min_offset, self._patience, partition.broker))

    # The end ----------------------------------------------------------------------------------------------------

    def _drop_fetch(self, reader: PartitionReader) -> None:
        connection = reader.connection
        if connection is not None:
            self._selector.unregister(connection)
            reader.connection = None
            reader.immediate = False
            self._connections.discard(connection)

    def close(self) -> None:
        """Close all connections; an open fetch is abandoned. In a child of a fork, nothing: they are the parent's."""
        if self._closed or not self._birthplace.is_here:
            return
        self._closed = True
        for reader in self._readers:
            self._drop_fetch(reader)
        self._connections.close()
        self._selector.close()
        self._admin.close()


def _made_again(topic: str) -> Conflict:
    return Conflict(
        f"topic {topic} was deleted and made again: the next poll reads the new one from its first message",
        code="topic_made_again",
        field="topic",
    )
