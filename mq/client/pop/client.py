"""The calls of POP one by one, for programs with a loop of their own; `PopConsumer` is the loop that most need.

    with PopClient("http://127.0.0.1:8080", "billing") as client:
        batch = client.pop("orders", max_messages=32, wait_ms=5_000)
        for message in batch.messages:
            ...
        client.ack([message.handle for message in batch.messages])

A call is retried while the service is away. If the answer to a pop is lost, its messages are delivered again when their
invisible time ends; no message is lost. A pop that is asked for in order has an `attempt_id`, by which its retry gets
the same messages at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Unpack

import msgspec

from deltamq.mq.client.http.calls import Calls, ClientAccess
from deltamq.mq.client.http.endpoint import Answer, path_of
from deltamq.mq.client.http.retries import Patience
from deltamq.mq.client.messages.received import PopBatch, PopTable
from deltamq.mq.client.pop.wire import (
    HANDLE_EXPIRED,
    HANDLES_MAX,
    JSON_HEADERS,
    PopAsk,
    PopOptions,
    failed_of,
    new_handle,
    parse_batch,
    parse_table,
)
from deltamq.mq.errors import Conflict, DeltaMQError, Unknown
from deltamq.mq.names import check_group, check_topic
from deltamq.mq.queue.retry import check_reason
from deltamq.mq.wire.pop import AckRequest, DeadRequest, FailedHandle, InvisibleRequest, NackRequest


class PopClient(Calls):
    """Pops and settles messages for one group. Safe for any number of threads.

    Parameters
    ----------
    url, group
        The service, and the group that consumes.
    client_id
        This client's id in the service's lists of clients.
    patience
        How long and how often a call is retried while the service is away.
    access
        How the service is reached, `token` for one; see `Calls`.
    """

    def __init__(
        self,
        url: str | Sequence[str],
        group: str,
        *,
        client_id: str | None = None,
        patience: Patience | None = None,
        **access: Unpack[ClientAccess],
    ) -> None:
        super().__init__(url, patience=patience, **access)
        self.group = check_group(group)
        self.client_id = client_id

    # Pop --------------------------------------------------------------------------------------------------------

    def pop(self, topic: str, max_messages: int = 32, **options: Unpack[PopOptions]) -> PopBatch:
        """Pop up to `max_messages` messages of `topic`; each must be settled within its invisible time.

        `PopOptions` lists the further options.
        """
        return parse_batch(topic, self._pop(self.ask(topic, max_messages, **options)).body)

    def pop_arrow(self, topic: str, max_messages: int = HANDLES_MAX, **options: Unpack[PopOptions]) -> PopTable:
        """Pop into an Arrow table, with the additional columns `partition`, `handle` and `delivery_attempt`."""
        answer = self._pop(replace(self.ask(topic, max_messages, **options), arrow=True))
        return parse_table(answer.headers, answer.body)

    def ask(self, topic: str, max_messages: int, **options: Unpack[PopOptions]) -> PopAsk:
        """Return the checked request of a pop for this group."""
        return PopAsk(
            group=self.group, topic=check_topic(topic), max_messages=max_messages, client_id=self.client_id, **options
        )

    def _pop(self, ask: PopAsk) -> Answer:
        ask = ask.repeatable()
        return self._call("POST", ask.path, headers=ask.headers, body=ask.body(), wait_ms=ask.wait_ms)

    # Settle messages --------------------------------------------------------------------------------------------

    def ack(self, handles: Sequence[str]) -> list[FailedHandle]:
        """Acknowledge messages; returns the handles that were refused. Acknowledging twice is harmless (POP-8)."""
        return self._each("ack", handles, AckRequest)

    def nack(self, handles: Sequence[str], *, delay_ms: int | None = None) -> list[FailedHandle]:
        """Report failed messages: they are delivered again by the group's retry policy, or after `delay_ms`.

        After the last attempt they go to the dead letters. Returns the handles that were refused.
        """
        return self._each("nack", handles, partial(NackRequest, delay_ms=delay_ms))

    def dead(self, handles: Sequence[str], reason: str) -> list[FailedHandle]:
        """Send messages to the group's dead letters; returns the handles that were refused."""
        return self._each("dead", handles, partial(DeadRequest, reason=check_reason(reason)))

    def change_invisible(self, handle: str, invisible_ms: int) -> str:
        """Give a message another invisible time, counted from now; returns its new handle and voids the old one.

        0 returns the message to the group at once.

        Raises
        ------
        Conflict
            `handle_expired`: the message was delivered again, or is about to be.
        Unknown
            The answer was lost, and the new handle with it: the message is delivered again when its new time ends.
        """
        lost = [False]

        def note(error: DeltaMQError) -> None:
            lost[0] = lost[0] or isinstance(error, Unknown)

        try:
            return self.repeat(partial(self.change_once, handle, invisible_ms), on_failure=note)
        except Conflict as error:
            if lost[0] and error.code == HANDLE_EXPIRED:
                raise Unknown("the answer with the new handle was lost; the message is delivered again") from error
            raise

    def change_once(self, handle: str, invisible_ms: int, timeout_s: float, broker: str | None = None) -> str:
        """Make one attempt of `change_invisible`, at the host of `broker` if that is known."""
        body = msgspec.json.encode(InvisibleRequest(handle, invisible_ms))
        return new_handle(self.call_once("invisible", body, timeout_s, broker).body)

    def call_once(self, verb: str, body: bytes, timeout_s: float, broker: str | None = None) -> Answer:
        """Make one attempt of a call of this group, at the host of `broker` if that is known."""
        path = path_of("groups", self.group, verb)
        return self.hosts.call("POST", path, role=broker, headers=JSON_HEADERS, body=body, timeout_s=timeout_s)

    def _each(
        self, verb: str, handles: Sequence[str], request: Callable[[list[str]], AckRequest | NackRequest | DeadRequest]
    ) -> list[FailedHandle]:
        failed: list[FailedHandle] = []
        path = path_of("groups", self.group, verb)
        for low in range(0, len(handles), HANDLES_MAX):
            body = msgspec.json.encode(request(list(handles[low : low + HANDLES_MAX])))
            failed += failed_of(self._call("POST", path, body=body).body)
        return failed
