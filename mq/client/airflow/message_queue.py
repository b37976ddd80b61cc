"""A trigger of Airflow that fires for each message of a topic, by the provider `common.messaging` (scheme `deltamq`).

    MessageQueueTrigger(scheme="deltamq", url="http://127.0.0.1:8080", topic="orders", group="airflow")

    pop ──► event ──► asset event in Airflow's database ──► acknowledge
     ▲                          │ not stored in time, or the triggerer ends
     └────── comes again ◄──────┘

Triggers with the same arguments share one stream of messages, of which each gets every one; a message is acknowledged
when all have stored their events (Airflow's "ack mode"). Delivery is at least once. A token comes from the triggerer's
variable `DELTAMQ_CLIENT_TOKEN`: arguments are stored in Airflow's database.
"""

from __future__ import annotations

import asyncio
import logging
from base64 import b64encode
from collections.abc import AsyncIterator, Hashable, Sequence
from typing import Any, Final

from airflow.providers.common.messaging.providers.base_provider import BaseMessageQueueProvider
from airflow.triggers.base import BaseEventTrigger, TriggerEvent
from airflow.triggers.shared_stream import AdvanceItem, SharedStreamProducer

from deltamq.mq.client.http.retries import is_worth_retrying
from deltamq.mq.client.messages.received import PoppedMessage
from deltamq.mq.client.pop.client import AsyncPopClient
from deltamq.mq.errors import DeltaMQError

log = logging.getLogger("deltamq.airflow")

#: Messages whose events are not stored yet; Airflow fails a trigger that has a thousand before it.
_HELD_MAX: Final = 500
_POP_MAX: Final = 100
_WAIT_MS: Final = 15_000
#: Longer than Airflow waits for an event to be stored, which is five minutes unless set otherwise.
_INVISIBLE_MS: Final = 600_000


class DeltaMQTrigger(BaseEventTrigger):
    """Fires for each message that a group gets of a topic.

    The event's payload is a dict: `topic`, `partition`, `offset`, `key`, `tag`, `headers`, `message_id`,
    `delivery_attempt`, and the `body` as text, or as `body_base64` if it is no UTF-8.

    Parameters
    ----------
    topic, group
        What is read, and for which group; the group is created by the first pop.
    url
        The service, or several of its processes, separated by commas.
    tags, filter
        Only these messages; others count as consumed, as in every consumer.
    """

    def __init__(
        self, *, topic: str, group: str, url: str = "http://127.0.0.1:8080", tags: str = "*", filter: str | None = None
    ) -> None:
        super().__init__()
        self._asked: dict[str, Any] = {"topic": topic, "group": group, "url": url, "tags": tags, "filter": filter}

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return the class and arguments of which the triggerer makes this trigger again."""
        return f"{__name__}.DeltaMQTrigger", dict(self._asked)

    def shared_stream_key(self) -> Hashable | None:
        """Return what triggers that share a stream have in common: their arguments."""
        return ("deltamq", *self._asked.values())

    @classmethod
    def create_shared_stream_producer(cls, kwargs: dict[str, Any]) -> SharedStreamProducer:
        """Return the stream of the triggers with these arguments."""
        return _Messages(**kwargs)

    async def filter_shared_stream(self, shared_stream: AsyncIterator[Any]) -> AsyncIterator[TriggerEvent]:
        """Fire for each message of the shared stream."""
        async for event in shared_stream:
            yield TriggerEvent(event)

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Fire for each message; one is acknowledged when the next event is asked for."""
        messages = _Messages(**self._asked)
        try:
            async for event, handle in messages.open_stream():
                yield TriggerEvent(event)
                await messages.settle([handle])
        finally:
            await messages.aclose()


class DeltaMQProvider(BaseMessageQueueProvider):
    """Makes `DeltaMQTrigger`s for the scheme `deltamq`."""

    scheme = "deltamq"

    def trigger_class(self) -> type[BaseEventTrigger]:
        """Return the trigger of this queue."""
        return DeltaMQTrigger


class _Messages(SharedStreamProducer):
    """The messages of one group, from the pop to the acknowledgement."""

    def __init__(self, *, topic: str, group: str, url: str, tags: str, filter: str | None) -> None:
        self._topic, self._group, self._url, self._tags, self._filter = topic, group, url, tags, filter
        self._client: AsyncPopClient | None = None
        self._held: set[str] = set()
        self._has_room = asyncio.Event()

    async def open_stream(self) -> AsyncIterator[tuple[dict[str, Any], str]]:
        """Yield what each message says, and its handle; raises what the service refuses for good."""
        client = self._client = AsyncPopClient(self._url, self._group, client_id=f"airflow-{id(self):x}")
        while True:
            self._has_room.clear()
            if len(self._held) >= _HELD_MAX:
                await self._has_room.wait()
                continue
            most = min(_POP_MAX, _HELD_MAX - len(self._held))
            try:
                batch = await client.pop(
                    self._topic,
                    most,
                    wait_ms=_WAIT_MS,
                    invisible_ms=_INVISIBLE_MS,
                    tags=self._tags,
                    filter=self._filter,
                )
            except DeltaMQError as error:
                if not is_worth_retrying(error):
                    raise
                log.warning("event=pop_failed topic=%s code=%s", self._topic, error.code)
                continue
            self._held.update(message.handle for message in batch.messages)
            for message in batch.messages:
                yield _told(message), message.handle

    async def advance(self, batch: Sequence[AdvanceItem]) -> None:
        """Acknowledge the messages whose events are stored; the others come again, or are dead if they were refused."""
        done = [item.broker_payload for item in batch if item.outcome.is_clean]
        refused = [item.broker_payload for item in batch if item.outcome.rejected]
        failed = [item.broker_payload for item in batch if not item.outcome.is_clean and not item.outcome.rejected]
        await self.settle(done, refused=refused, failed=failed)

    async def settle(self, done: Sequence[str], *, refused: Sequence[str] = (), failed: Sequence[str] = ()) -> None:
        """Settle messages; if that fails, they come again when their invisible time ends."""
        assert self._client is not None, "the stream was opened"
        try:
            if done:
                await self._client.ack(done)
            if refused:
                await self._client.dead(refused, "refused by a trigger")
            if failed:
                await self._client.nack(failed)
        except DeltaMQError as error:
            if not is_worth_retrying(error):
                raise
            log.warning("event=settling_failed topic=%s code=%s", self._topic, error.code)
        self._held.difference_update(done, refused, failed)
        self._has_room.set()

    async def aclose(self) -> None:
        """Return what is not settled to the group, and close the connections."""
        if self._client is None:
            return
        try:
            if self._held:
                await self._client.nack(list(self._held), delay_ms=0)
        finally:
            await self._client.close()


def _told(message: PoppedMessage) -> dict[str, Any]:
    """Return a message as JSON has it."""
    told: dict[str, Any] = {
        name: getattr(message, name)
        for name in ("topic", "partition", "offset", "key", "tag", "headers", "message_id", "delivery_attempt")
    }
    try:
        return told | {"body": message.text}
    except UnicodeDecodeError:
        return told | {"body_base64": b64encode(message.body).decode()}
