"""A service in memory that stores fixed requests as the real one does, and fails when it is told to."""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Callable, Sequence

from deltamq.mq.client.messages.message import Message, SentRange
from deltamq.mq.client.shells.send_future import SendFuture
from deltamq.mq.errors import Conflict, DeltaMQError, NotFound, Refused, Unavailable, Unknown
from deltamq.mq.limits import PRODUCER_REQUESTS_KEPT

__all__ = ["Crash", "Fault", "OutboxService"]


class Crash(BaseException):
    """The relay's process dies here."""


class Fault(enum.Enum):
    """What happens to a request."""

    AWAY = "nothing stored, and the client knows"
    BUSY = "503, nothing stored"
    LOST = "stored, but the answer is lost"
    CRASH_BEFORE = "the relay dies before it is stored"
    CRASH_AFTER = "the relay dies after it is stored"


class OutboxService:
    """Topics as lists of messages; messages whose body begins with `bad` are refused."""

    def __init__(self) -> None:
        self.stored: dict[str, list[Message]] = {}
        self.faults: deque[Fault | None] = deque()
        self.missing: set[str] = set()
        #: Refuses every request before the service looks whether it is stored, as limits of its size and proxies do.
        self.refusing: DeltaMQError | None = None
        self.requests: list[tuple[str, str, int, tuple[Message, ...]]] = []
        #: Called once, before the next request is stored.
        self.meanwhile: Callable[[], object] | None = None
        self._seen: dict[str, dict[int, tuple[Message, ...]]] = {}

    def send_fixed(
        self, topic: str, messages: Sequence[Message], *, producer_id: str, producer_seq: int, timeout_s: float
    ) -> SendFuture[tuple[SentRange, ...]]:
        future: SendFuture[tuple[SentRange, ...]] = SendFuture()
        meanwhile, self.meanwhile = self.meanwhile, None
        if meanwhile is not None:
            meanwhile()
        self.requests.append((topic, producer_id, producer_seq, tuple(messages)))
        fault = self.faults.popleft() if self.faults else None
        try:
            before = {Fault.AWAY: Unavailable("away", code="connect_failed"), Fault.BUSY: Unavailable("busy")}
            if fault in before:
                raise before[fault]
            if fault is Fault.CRASH_BEFORE:
                raise Crash
            placed = self._store(topic, tuple(messages), producer_id, producer_seq)
            if fault is Fault.CRASH_AFTER:
                raise Crash
            if fault is Fault.LOST:
                raise Unknown("no answer", code="no_answer")
        except DeltaMQError as error:
            future.set_exception(error)
        else:
            future.set_result((placed,))
        return future

    def _store(self, topic: str, messages: tuple[Message, ...], producer_id: str, seq: int) -> SentRange:
        if self.refusing is not None:
            raise self.refusing
        if topic in self.missing:
            raise NotFound("no such topic", code="topic_not_found")
        kept = self._seen.setdefault(producer_id, {})
        duplicate = seq in kept
        if duplicate:
            assert kept[seq] == messages, "a repeated request must be the very same one"
        elif kept and seq < max(kept):
            raise Conflict("out of order", code="producer_sequence_out_of_order")
        else:
            if any(message.body.startswith(b"bad") for message in messages):
                raise Refused("a bad message", code="invalid_message")
            kept[seq] = messages
            if len(kept) > PRODUCER_REQUESTS_KEPT:
                del kept[min(kept)]
            self.stored.setdefault(topic, []).extend(messages)
        return SentRange(partition=f"{topic}@a", base_offset=0, count=len(messages), duplicate=duplicate)

    def bodies(self, topic: str = "orders", key: str | None = None) -> list[str]:
        """Return the bodies of a key's messages in the order in which they were stored."""
        return [one.body.decode() for one in self.stored.get(topic, []) if one.key == key]

    def all_bodies(self, topic: str = "orders") -> list[str]:
        return [one.body.decode() for one in self.stored.get(topic, [])]
