"""The calls of POP one by one, for whoever writes a loop of his own; `PopConsumer` is the loop that most need.

    with PopClient("http://127.0.0.1:8080", "billing") as client:
        batch = client.pop("orders", max_messages=32, wait_ms=5_000)
        for message in batch.messages:
            ...
        client.ack([message.handle for message in batch.messages])

A call is repeated while the service is away. What was popped by an answer that got lost comes again when its invisible
time ends; nothing is lost.
"""

from __future__ import annotations

import ssl
import time
from collections.abc import Sequence
from types import TracebackType
from typing import Self

import msgspec

from mq.client.attempts import Attempts, Patience, is_worth_retrying
from mq.client.endpoint import Answer, Endpoint, path_of
from mq.client.pop_wire import (
    HANDLE_EXPIRED,
    HANDLES_MAX,
    JSON_HEADERS,
    PopAsk,
    failed_of,
    new_handle,
    parse_batch,
    parse_table,
)
from mq.client.popped import FailedHandle, PopBatch, PopTable
from mq.errors import Conflict, DeltaMQError, Unknown
from mq.group_settings import Ordering
from mq.names import check_group, check_topic
from mq.retry import check_reason

__all__ = ["PopClient"]


class PopClient:
    """Pops and answers for one group. Safe for any number of threads.

    Parameters
    ----------
    url, group
        The service, and the group that takes messages.
    client_id
        Who asks, for the service's lists.
    patience
        How long and how often a call is repeated while the service is away.
    """

    def __init__(
        self,
        url: str,
        group: str,
        *,
        client_id: str | None = None,
        token: str | None = None,
        ssl_context: ssl.SSLContext | None = None,
        patience: Patience | None = None,
    ) -> None:
        self.group = check_group(group)
        self.client_id = client_id
        self.endpoint = Endpoint(url, token=token, ssl_context=ssl_context)
        self.patience = patience if patience is not None else Patience()

    # Pop --------------------------------------------------------------------------------------------------------

    def pop(
        self,
        topic: str,
        max_messages: int = 32,
        *,
        invisible_ms: int | None = None,
        wait_ms: int = 0,
        tags: str = "*",
        partition: str | None = None,
        order: Ordering | None = None,
        ack: Sequence[str] = (),
    ) -> PopBatch:
        """Take up to `max_messages` messages of `topic`; each must be answered for within its invisible time.

        Parameters
        ----------
        invisible_ms
            How long others of the group do not see them; by default what the group's settings say.
        wait_ms
            How long to wait for the first message.
        tags
            `*`, or `TagA||TagB`: messages with other tags are passed over.
        partition
            `NAME@BROKER`, to take from this one only.
        order
            True: a partition's messages one after another (POP-16); `"key"`: those of a key (POP-17); False: no
            order. By default what the group's settings say.
        ack
            Handles to acknowledge first, in the same call.
        """
        ask = self.ask(
            topic,
            max_messages,
            invisible_ms=invisible_ms,
            wait_ms=wait_ms,
            tags=tags,
            partition=partition,
            order=order,
            ack=ack,
        )
        return parse_batch(topic, self._pop(ask).body)

    def pop_arrow(
        self,
        topic: str,
        max_messages: int = HANDLES_MAX,
        *,
        invisible_ms: int | None = None,
        wait_ms: int = 0,
        tags: str = "*",
        partition: str | None = None,
        order: Ordering | None = None,
        ack: Sequence[str] = (),
    ) -> PopTable:
        """The same as an Arrow table, with the columns `partition`, `handle` and `delivery_attempt` besides."""
        ask = self.ask(
            topic,
            max_messages,
            invisible_ms=invisible_ms,
            wait_ms=wait_ms,
            tags=tags,
            partition=partition,
            order=order,
            ack=ack,
            arrow=True,
        )
        answer = self._pop(ask)
        return parse_table(answer.headers, answer.body)

    def ask(
        self,
        topic: str,
        max_messages: int,
        *,
        invisible_ms: int | None = None,
        wait_ms: int = 0,
        tags: str = "*",
        partition: str | None = None,
        order: Ordering | None = None,
        ack: Sequence[str] = (),
        arrow: bool = False,
    ) -> PopAsk:
        """The request of a pop of this group, checked."""
        return PopAsk(
            group=self.group,
            topic=check_topic(topic),
            max_messages=max_messages,
            invisible_ms=invisible_ms,
            wait_ms=wait_ms,
            tags=tags,
            partition=partition,
            order=order,
            client_id=self.client_id,
            ack=ack,
            arrow=arrow,
        )

    def _pop(self, ask: PopAsk) -> Answer:
        return self._call(ask.path, ask.body(), headers=ask.headers, wait_ms=ask.wait_ms)

    # Answer for messages ----------------------------------------------------------------------------------------

    def ack(self, handles: Sequence[str]) -> list[FailedHandle]:
        """Acknowledge messages; returns the handles that were refused. Acknowledging twice is harmless (POP-8)."""
        return self._each("ack", handles, {})

    def nack(self, handles: Sequence[str], *, delay_ms: int | None = None) -> list[FailedHandle]:
        """These failed: deliver them again when the group's retry policy says, or after `delay_ms`.

        After the last attempt they go to the dead letters. Returns the handles that were refused.
        """
        return self._each("nack", handles, {} if delay_ms is None else {"delay_ms": delay_ms})

    def dead(self, handles: Sequence[str], reason: str) -> list[FailedHandle]:
        """Send these to the group's dead letters; returns the handles that were refused."""
        return self._each("dead", handles, {"reason": check_reason(reason)})

    def change_invisible(self, handle: str, invisible_ms: int) -> str:
        """Give a message another invisible time, counted from now; returns its new handle, the old one is dead.

        0 returns it to the group at once.

        Raises
        ------
        Conflict
            `handle_expired`: it was delivered again, or is about to be.
        Unknown
            The answer was lost, and the new handle with it: the message comes again when its new time ends.
        """
        lost = False
        deadline = time.monotonic() + self.patience.timeout_s
        attempts = Attempts(self.patience, deadline=deadline, retries=self.patience.retries)
        while True:
            try:
                return self.change_once(handle, invisible_ms, attempts.timeout_s())
            except Conflict as error:
                if lost and error.code == HANDLE_EXPIRED:
                    raise Unknown("the answer with the new handle was lost; the message comes again") from error
                raise
            except DeltaMQError as error:
                lost = lost or isinstance(error, Unknown)
                if not is_worth_retrying(error) or not attempts.may_go_on(error):
                    raise

    def change_once(self, handle: str, invisible_ms: int, timeout_s: float) -> str:
        """One attempt of `change_invisible`."""
        body = msgspec.json.encode({"handle": handle, "invisible_ms": invisible_ms})
        return new_handle(self.call_once("invisible", body, timeout_s).body)

    def call_once(self, verb: str, body: bytes, timeout_s: float) -> Answer:
        """One attempt of a call of this group."""
        path = path_of("groups", self.group, verb)
        return self.endpoint.call("POST", path, headers=JSON_HEADERS, body=body, timeout_s=timeout_s)

    def _each(self, verb: str, handles: Sequence[str], more: dict[str, object]) -> list[FailedHandle]:
        failed: list[FailedHandle] = []
        path = path_of("groups", self.group, verb)
        for low in range(0, len(handles), HANDLES_MAX):
            some = handles[low : low + HANDLES_MAX]
            body = msgspec.json.encode({"handles": some, **more})
            failed += failed_of(self._call(path, body).body)
        return failed

    def _call(self, path: str, body: bytes, *, headers: dict[str, str] | None = None, wait_ms: int = 0) -> Answer:
        wait_s = wait_ms / 1000
        deadline = time.monotonic() + self.patience.timeout_s + wait_s
        attempts = Attempts(self.patience, deadline=deadline, retries=self.patience.retries)
        while True:
            try:
                return self.endpoint.call(
                    "POST", path, headers=headers or JSON_HEADERS, body=body, timeout_s=attempts.timeout_s() + wait_s
                )
            except DeltaMQError as error:
                if not is_worth_retrying(error) or not attempts.may_go_on(error):
                    raise

    # The end ----------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Close the connections; what is not answered for comes again when its invisible time ends."""
        self.endpoint.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
