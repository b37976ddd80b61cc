"""The producer: sends messages, returns their partitions and offsets; a failure never stores one twice (SPEC SEND).

    with Producer("http://127.0.0.1:8080") as producer:
        producer.send("orders", b"...", key="order-17")            # waits: Sent(partition, offset)
        future = producer.send_soon( "orders", b"...")              # batches by itself
        producer.send_batch("orders", [Message(b"..."), ...])       # one request for each partition
        producer.send_arrow("orders", table)                        # the fastest way

An error says what is known. `Refused`, `Conflict`, `Overloaded` and `Unavailable`: nothing was stored. `Unknown`: the
deadline passed without a conclusive answer; the message may be stored. A caller that repeats a send after `Unknown` may
store the message twice; a longer `timeout_s` is the better remedy.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Unpack

from deltamq.mq.client.messages.message import Message, Sent, SentRange
from deltamq.mq.client.produce.calls import MessageOptions, ProducerCalls
from deltamq.mq.client.produce.shared import flushed_at_exit
from deltamq.mq.client.produce.topic_router import Selector
from deltamq.mq.client.shells.both import Awaiting, Blocking
from deltamq.mq.client.shells.forks import Birthplace, in_child
from deltamq.mq.client.shells.send_future import SendFuture
from deltamq.mq.client.shells.shell import Shell, run_now

if TYPE_CHECKING:
    import asyncio

log = logging.getLogger("deltamq.client")


class Producer(ProducerCalls, Blocking):
    """Sends to any number of topics. Safe for any number of threads, and in children of a fork.

    A program that ends without `close` waits up to 30 s for what is queued, and logs how many messages are left.

    Parameters
    ----------
    url
        The service, `http://HOST:PORT`, or several of its processes, as a list or separated by commas. The producer
        finds the cluster's other processes: a request goes to the host of its broker, or to another if that one does
        not answer.
    retries, timeout_s, request_timeout_s
        Maximum number of retries of a request, and maximum seconds of a whole send and of each attempt. In a `strict`
        topic, a request is retried until `timeout_s`, without a limit of retries; then its executor stops until
        `resume`.
    linger_ms
        Milliseconds that the first message of a batch waits for more; 0 sends at once. A waiting `send` never lingers.
    batch_messages_max, batch_bytes_max
        Maximum size of one request.
    buffer_bytes_max, when_full
        Maximum bytes of messages not yet resolved, and what `send_soon` does when that is reached: `wait` (up to
        `timeout_s`) or `raise` `Overloaded`.
    requests_in_flight_max
        Maximum number of requests at once, each for another partition; more partitions take turns.
    route_age_s_max, route_age_s_min
        Seconds after which a topic's route is fetched again; and the minimum age of a route that is fetched again
        before that, because an answer shows that it may be outdated.
    new_id
        Makes producer ids. Every id must be new, also across restarts: the service drops requests that it has seen.
    access
        How the service is reached, for example `token`; see `Calls`.
    """

    _sends_here = True

    def _make_shell(self) -> Shell:
        in_child(self._begin_in_child)
        return super()._make_shell()

    def _begin(self) -> None:
        super()._begin()
        flushed_at_exit(self._shared.buffer)

    def _begin_in_child(self) -> None:
        """Begin again in a child of a fork, with new ids; the parent sends what is queued (SPEC SEND-8)."""
        if not self._routers.is_closed:
            self._begin()

    def send_soon(
        self,
        topic: str,
        body: bytes | str | Message | None = None,
        *,
        selector: Selector | None = None,
        selector_argument: object = None,
        **options: Unpack[MessageOptions],
    ) -> SendFuture[Sent]:
        """Queue one message; the future's result is where it is stored, or the error.

        An invalid message raises at once. The first message of a topic waits for its route. A future's callbacks run
        between two requests: they must be quick, and must not wait for another send.
        """
        future: SendFuture[Sent] = SendFuture()
        waiting = self._queued(topic, body, future, selector, selector_argument, options)
        if waiting is not None:
            run_now(waiting)
        return future

    def send_fixed(
        self, topic: str, messages: Sequence[Message], *, producer_id: str, producer_seq: int, timeout_s: float
    ) -> SendFuture[tuple[SentRange, ...]]:
        """Queue `messages` as one request with a name that the caller has stored; a repeated one is stored once.

        All messages have a `born_time`, and either all name the same partition or none does. Sequences of one
        `producer_id` grow, and a request follows only when the outcome of the one before is known.
        """
        future = run_now(
            self._fixed(topic, messages, producer_id=producer_id, producer_seq=producer_seq, timeout_s=timeout_s)
        )
        assert isinstance(future, SendFuture)
        return future


class AsyncProducer(ProducerCalls, Awaiting):
    """`Producer` for an event loop: the same calls and parameters, awaited, in the loop of the first call.

        async with AsyncProducer("http://127.0.0.1:8080") as producer:
            await producer.send("orders", b"...", key="order-17")
            future = await producer.send_soon("orders", b"...")     # waits for room in the buffer, not for the answer

    Any number of tasks may send; what they send at once shares requests. A send whose task is cancelled is withdrawn if
    it is still queued; one that is under way goes on, by its number, until its outcome is known.
    """

    _sends_here = False

    def _make_shell(self) -> Shell:
        self._birthplace = Birthplace(type(self).__name__)
        return super()._make_shell()

    async def send_soon(
        self,
        topic: str,
        body: bytes | str | Message | None = None,
        *,
        selector: Selector | None = None,
        selector_argument: object = None,
        **options: Unpack[MessageOptions],
    ) -> asyncio.Future[Sent]:
        """Queue one message, after a wait for room if the buffer is full; the future's result is where it is stored."""
        self.shell.check()
        if (turn := self.shell.others()) is not None:
            await turn
        future: asyncio.Future[Sent] = self.shell.future()  # type: ignore[assignment]  # the loop's
        waiting = self._queued(topic, body, future, selector, selector_argument, options)
        if waiting is not None:
            await waiting
        return future

    async def send_fixed(
        self, topic: str, messages: Sequence[Message], *, producer_id: str, producer_seq: int, timeout_s: float
    ) -> asyncio.Future[tuple[SentRange, ...]]:
        """Queue `messages` as one request, as `Producer.send_fixed` does."""
        self.shell.check()
        future = await self._fixed(
            topic, messages, producer_id=producer_id, producer_seq=producer_seq, timeout_s=timeout_s
        )
        return future  # type: ignore[return-value]  # the loop's

    def __del__(self) -> None:
        shared = getattr(self, "_shared", None)
        if shared is not None and shared.buffer.messages and self._birthplace.is_here:
            log.error("event=ended_unsent messages=%d detail='the producer was not closed'", shared.buffer.messages)
