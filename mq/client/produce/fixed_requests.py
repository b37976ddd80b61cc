"""Requests whose producer id and sequence the caller stores: a repeated one is the very same request (SPEC SEND-5).

caller stores (messages, producer id, seq) ──► request ──► answer ──► caller deletes what it stored
                    └──────── after a crash, the same request again: stored once ───────┘
"""

from __future__ import annotations

from collections.abc import Sequence

from deltamq.mq.client.messages.message import Message
from deltamq.mq.client.messages.sent import SentRange
from deltamq.mq.client.produce.entry import Entry
from deltamq.mq.client.produce.executor import Executor, Failing
from deltamq.mq.client.produce.send_future import SendFuture
from deltamq.mq.client.produce.shared import Shared
from deltamq.mq.errors import DeltaMQError, Refused


class FixedRequests:
    """An owner of executors that neither moves nor reroutes entries, because a repeated request must be the same."""

    def wrong_route(self, executor: Executor, entries: list[Entry], error: DeltaMQError) -> None:
        """Fail `entries`; never called, because an executor that stops on any failure keeps its route."""
        executor.fail(entries, error)

    def another_partition(self, executor: Executor, entries: list[Entry]) -> bool:
        """Return False: messages stay with their partition."""
        return False

    def batch_sent(self, executor: Executor, *, elsewhere: bool) -> None:
        """Do nothing."""

    def attempt_failed(self, executor: Executor) -> None:
        """Do nothing: any host forwards."""

    def drained(self, executor: Executor) -> None:
        """Do nothing."""


def send_fixed(
    shared: Shared, topic: str, messages: Sequence[Message], *, producer_id: str, producer_seq: int, deadline: float
) -> SendFuture[tuple[SentRange, ...]]:
    """Queue all of `messages` as one request with this name; the service chooses the partitions.

    Raises
    ------
    Refused
        The messages name different partitions: they cannot share a request.
    Overloaded
        The producer's buffer is full until `deadline` (of `time.monotonic`).
    """
    partition = messages[0].partition
    if any(message.partition != partition for message in messages):
        raise Refused("messages for different partitions cannot share a request", field="partition")
    future: SendFuture[tuple[SentRange, ...]] = SendFuture()
    # Every copy of the request must have the same bytes: a message without a time of its own would get a new one.
    assert all(message.born_time is not None for message in messages), "the caller stores the time with the message"
    size = shared.buffer.fitted(sum(message.size_bytes() for message in messages))
    entry = Entry(messages, len(messages), size, deadline, future, named=partition is not None, alone=True)
    executor = Executor(
        topic,
        partition,
        shared,
        FixedRequests(),
        failing=Failing.STOP,
        producer_id=producer_id,
        producer_seq=producer_seq,
    )
    shared.buffer.take(size, entry.count, deadline=deadline, wait=True)
    executor.put(entry)
    return future
