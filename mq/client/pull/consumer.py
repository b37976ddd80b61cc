"""The pull consumer: reads partitions by offset; it may store its offsets in a file or a group (`offset_stores`).

    consumer = PullConsumer("http://127.0.0.1:8080", "orders", start="first")
    for message in consumer:                     # for ever; `poll` returns when there is nothing for a while
        print(message.partition, message.offset, message.text)

All partitions are read in turn, so none starves another. Fetches that find nothing wait at the service, for all
partitions at once. While the caller works on its messages, the next fetch is already under way.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Iterator

from deltamq.mq.client.admin.admin import Admin, AsyncAdmin
from deltamq.mq.client.messages.received import ReceivedMessage
from deltamq.mq.client.pull.blocking_fetches import BlockingFetches
from deltamq.mq.client.pull.core import PullConsumerCore
from deltamq.mq.client.pull.loop_fetches import LoopFetches
from deltamq.mq.client.shells.both import Awaiting, Blocking
from deltamq.mq.client.shells.shell import run_now

log = logging.getLogger("deltamq.client")


class PullConsumer(PullConsumerCore, Blocking):
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
    typed
        Whether messages have a `value`: the fields of the topic's schema.
    partitions_age_s_max
        Seconds between look-ups of partitions that an expansion added.
    access
        How the service is reached, for example `token`; see `Calls`.
    """

    _admin_kind = Admin
    _fetches_kind = BlockingFetches

    def _made(self) -> None:
        run_now(self._enter())

    def __iter__(self) -> Iterator[ReceivedMessage]:
        """Yield every message, without end, until the consumer is closed."""
        while not self._closed:
            yield from self.poll()


class AsyncPullConsumer(PullConsumerCore, Awaiting):
    """`PullConsumer` for an event loop: the same parameters and calls, awaited; one task at a time may use it.

    async with AsyncPullConsumer("http://127.0.0.1:8080", "orders", start="first") as consumer:
        async for message in consumer: ...
    """

    _admin_kind = AsyncAdmin
    _fetches_kind = LoopFetches

    async def __aiter__(self) -> AsyncGenerator[ReceivedMessage, None]:
        """Yield every message, without end, until the consumer is closed."""
        while not self._closed:
            for message in await self.poll():
                yield message
