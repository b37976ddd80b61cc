"""The retried messages of an ordered consumer: messages that were moved out of order (SPEC ORDER-8, RETRY-1).

They are popped, so any client of the group may get them, and the same listener processes them. A success acknowledges
them; otherwise they are delivered again by the group's retry policy, until they become dead letters. If the
listener commits by hand (CONS-8), `COMMIT` and `ROLLBACK` settle the retried message alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Unpack

from deltamq.mq.client.http.calls import ClientAccess
from deltamq.mq.client.http.retries import Patience
from deltamq.mq.client.messages.received import OrderedMessage, PoppedMessage, Result
from deltamq.mq.client.orderly.listener import Listening
from deltamq.mq.client.pop.consumer import PopConsumer
from deltamq.mq.order.orderly import Verdict


def retries_of(
    url: str | Sequence[str],
    group: str,
    topics: Sequence[str],
    listening: Listening,
    *,
    batches: bool,
    client_id: str,
    tags: str,
    filter: str | None,
    patience: Patience | None,
    **access: Unpack[ClientAccess],
) -> PopConsumer:
    """Return a consumer of the group's retried messages of these topics, one at a time."""

    def handle(popped: PoppedMessage) -> Result:
        message = OrderedMessage(
            popped.partition,
            popped.offset,
            popped.body,
            popped.key,
            popped.tag,
            popped.headers,
            popped.message_id,
            popped.born_us,
            popped.append_us,
            popped.topic,
            popped.delivery_attempt,
        )
        outcome = listening.run([message] if batches else message, 1, f"{popped.partition}:{popped.offset}")
        if outcome.verdict.is_success:
            return Result.OK
        return Result.DEAD if outcome.verdict is Verdict.DEAD else Result.RETRY

    return PopConsumer(
        url,
        group,
        topics,
        handle,
        concurrency=1,
        order=False,
        retry="only",
        tags=tags,
        filter=filter,
        client_id=client_id,
        patience=patience,
        **access,
    )
