"""A broker for taskiq: a task is a message, acknowledged when it has run (the extra `taskiq`).

broker = DeltaMQBroker("http://127.0.0.1:8080")

@broker.task
async def bill(order: int) -> None: ...

await bill.kiq(17)                      # stored when this returns; `taskiq worker app:broker` runs it
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from typing import Unpack

try:
    from taskiq import AckableMessage, AsyncBroker, BrokerMessage
except ModuleNotFoundError as error:
    raise ModuleNotFoundError("DeltaMQBroker needs taskiq: pip install 'deltamq[taskiq]'", name=error.name) from error

from deltamq.mq.client.http.calls import ClientAccess
from deltamq.mq.client.pop.consumer import AsyncPopConsumer
from deltamq.mq.client.produce.producer import AsyncProducer
from deltamq.mq.errors import Refused


class DeltaMQBroker(AsyncBroker):
    """Sends tasks as messages of a topic, and gets them for a group: each runs at least once.

    While a task runs, its message is renewed; if its worker dies, it comes again when its invisible time ends. A task
    that raises has run: what repeats it is a middleware of taskiq.

    Parameters
    ----------
    url
        The service, or several of its processes.
    topic, group
        Where tasks are stored, and for whom workers get them.
    held_max
        Number of tasks that a worker process holds, running or waiting: at least its `--max-async-tasks`.
    invisible_ms
        Milliseconds after which the tasks of a dead worker come again; by default the group's time.
    access
        How the service is reached, for example `token`; see `Calls`.
    """

    def __init__(
        self,
        url: str | Sequence[str],
        topic: str = "taskiq",
        group: str = "taskiq",
        *,
        held_max: int = 100,
        invisible_ms: int | None = None,
        **access: Unpack[ClientAccess],
    ) -> None:
        super().__init__()
        self._url, self._access = url, access
        self._topic, self._group = topic, group
        self._held_max, self._invisible_ms = held_max, invisible_ms
        self._producer: AsyncProducer | None = None
        self._consumer: AsyncPopConsumer | None = None

    async def startup(self) -> None:
        """Begin to send; taskiq's receiver calls this again. What a worker needs besides begins with `listen`."""
        if self._producer is None:
            self._producer = AsyncProducer(self._url, **self._access)
        await super().startup()

    async def kick(self, message: BrokerMessage) -> None:
        """Store a task; it is stored when this returns. The label `delay` has the seconds until it is run."""
        if self._producer is None:
            raise Refused("await broker.startup() before the first task", code="not_started", field="broker")
        delay = message.labels.get("delay")
        await self._producer.send(
            self._topic,
            message.message,
            message_id=message.task_id,
            delay_ms=None if delay is None else round(float(delay) * 1000),
        )

    async def listen(self) -> AsyncGenerator[AckableMessage, None]:
        """Yield tasks, until the shutdown.

        Raises
        ------
        DeltaMQError
            The service refuses this worker for good.
        """
        await self._close_consumer()
        consumer = self._consumer = AsyncPopConsumer(
            self._url,
            self._group,
            self._topic,
            concurrency=self._held_max,
            invisible_ms=self._invisible_ms,
            **self._access,
        )
        async for message, acknowledge in consumer.offered():
            yield AckableMessage(data=message.body, ack=acknowledge)

    async def shutdown(self) -> None:
        """Acknowledge what has run, let the other tasks come again at once, and send what is queued."""
        await super().shutdown()
        await self._close_consumer()
        producer, self._producer = self._producer, None
        if producer is not None:
            await producer.close()

    async def _close_consumer(self) -> None:
        # Not at the end of `listen`: what runs then is acknowledged later.
        consumer, self._consumer = self._consumer, None
        if consumer is not None:
            await consumer.close(timeout_s=0)
