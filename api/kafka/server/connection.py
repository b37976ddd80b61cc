"""One connection of a Kafka client: requests are begun in order and answered in order, several may be under way.

    bytes --> Inbox --frame--> begin --> [ under way, at most IN_FLIGHT_MAX ] --> answered --> write, in order
                '-- waits while too many are under way, while the service has no room for the frame, while the caller
                    has no quota, while a request is begun that takes time, and while the client does not read

Appends are queued by the callback that gets their bytes, and answered by the callback of their commit: a small
append waits for no task. All other requests are done by a task each, when all before them are answered.

When the client goes, everything but its appends ends. These are in the queues of their partitions, and hold their bytes
until they are stored. Requests that have arrived and want no answer are still begun in their turn.

Bytes that are no request close the connection: the protocol has no answer to them. So do calls of a client that has not
authenticated and must, and the end of its access (`Session.is_over`). While nobody can tell whether it has ended, no
request is begun: soon that is known, or the connection is closed.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import math
import time
from collections import deque
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final, Protocol, TypeAlias, cast

from deltamq.api.auth.quotas import Meter
from deltamq.api.kafka.access.needs import Asker
from deltamq.api.kafka.access.session import Session
from deltamq.api.kafka.calls.door import Door
from deltamq.api.kafka.messages.apis import Frame, answer_frame, read_frame
from deltamq.api.kafka.messages.codec import Message, Parts
from deltamq.api.kafka.messages.log_messages import ProduceRequest
from deltamq.api.kafka.server.arrival import FETCH, LENGTH_BYTES, PRODUCE, START_BYTES, Arrival, Inbox, Room
from deltamq.api.wire.request import Ticket
from deltamq.api.wire.steps import CallTrace
from deltamq.mq.errors import DeltaMQError, Forbidden, Refused, Unauthenticated
from deltamq.mq.limits import ADMIN_BYTES_MAX, CLIENT_ID_LENGTH_MAX
from deltamq.tables.config_sections import ServiceSettings

log = logging.getLogger("deltamq.api")

#: Most requests of one connection that are under way; Kafka's clients have at most five of each kind.
IN_FLIGHT_MAX: Final = 32
#: Bytes that are read ahead even if the service has no room.
_READ_AHEAD_BYTES: Final = 256 * 1024
#: A larger request that is no append waits until those before it are answered, so that one connection holds few bytes.
_BEHIND_BYTES_MAX: Final = ADMIN_BYTES_MAX // IN_FLIGHT_MAX
#: Most seconds for a client to read an answer.
_WRITE_S: Final = 30.0
#: A 32-bit number.
_THROTTLE_MS_MAX: Final = 2**31 - 1
#: The next request is begun after these: appends keep their order, and later calls need the caller.
_IN_TURN: Final = (PRODUCE, 17, 36)
#: Seconds between two looks whether the client may call, while nobody can tell; the watch of access ends this.
_UNKNOWN_S: Final = 0.05
#: Most seconds until the client has authenticated.
_BEFORE_S: Final = 30.0


Ask: TypeAlias = Callable[[], Awaitable[Message | None]]


class Connections(Protocol):
    """The owner of the connections."""

    @property
    def is_ending(self) -> bool:
        """Whether no more requests may be begun."""

    def opened(self, connection: Connection, transport: asyncio.Transport) -> Session | None:
        """Take note of a connection; None if it must close at once."""

    def closed(self, connection: Connection) -> None:
        """Forget a connection."""

    def trace(self) -> CallTrace | None:
        """Return what traces a call that begins now; None if nothing is traced."""

    def answered(self, asker: Asker, frame: Frame, began_s: float, answer: Message | None) -> None:
        """Take note of an answer; None if the client wants none, or gets none."""

    def refused(self, connection: Connection, call: str, error: Unauthenticated | Forbidden) -> None:
        """Take note of a refusal (SPEC SEC-41)."""


class _Begun:
    """A request under way, with what it reserves until its answer is written."""

    __slots__ = ("_connection", "answer", "ask", "asker", "began_s", "frame", "is_answered", "meter", "task", "ticket")

    def __init__(self, connection: Connection, frame: Frame, asker: Asker, ticket: Ticket, meter: Meter | None) -> None:
        self._connection = connection
        self.frame = frame
        self.asker = asker
        self.ticket = ticket
        #: Measures what the caller uses; None without a quota.
        self.meter = meter
        #: Asks for the answer in its turn; None if that is done.
        self.ask: Ask | None = None
        self.task: asyncio.Task[None] | None = None
        self.answer: Message | None = None
        self.is_answered = False
        self.began_s = time.perf_counter()

    @property
    def is_append_under_way(self) -> bool:
        """Whether it is an append whose outcome is not known yet."""
        return self.frame.api.key == PRODUCE and not self.is_answered

    def ready(self, answer: Message | None) -> None:
        """Take the answer, None if the client wants none."""
        self.answer, self.is_answered = answer, True
        self._connection.answered()

    def later(self, ask: Ask) -> None:
        """Ask for the answer in a task."""
        self.task = asyncio.ensure_future(self._connection.wait(self, ask))


class Connection(asyncio.Protocol):
    """One connection, until the client goes, the service stops, or a limit is broken."""

    def __init__(self, door: Door, room: Room, settings: ServiceSettings, connections: Connections) -> None:
        self.session: Session
        #: The client's address, `HOST:PORT`; empty until the connection is made.
        self.address = ""
        #: What the client calls itself; empty before its first request.
        self._client_id = ""
        self._loop = asyncio.get_running_loop()
        #: Done when the connection is closed, and none of its requests will be begun any more.
        self.gone: asyncio.Future[None] = self._loop.create_future()
        self._door = door
        self._room = room
        self._settings = settings
        self._connections = connections
        self._transport: asyncio.Transport
        self._inbox = Inbox()
        self._next: Arrival | None = None
        self._begun: deque[_Begun] = deque()
        #: Answered, but not yet read by the client.
        self._unread: list[_Begun] = []
        #: The request that is begun while the next ones wait.
        self._beginning: _Begun | None = None
        #: Looks again whether there is room, or quota.
        self._again: asyncio.TimerHandle | None = None
        self._is_reading = True
        self._is_going_on = False
        #: Whether no more requests are begun; the connection closes after the last answer.
        self._is_last = False
        #: Whether it is cut off, or all is done: nothing is begun or written any more.
        self._is_over = False
        #: Whether the client is gone, so that no more answers are written.
        self._is_lost = False
        #: Until when a frame, and the client's reading, must have gone on; on the loop's clock.
        self._read_by = self._write_by = math.inf
        self._watch: asyncio.TimerHandle | None = None

    # The transport.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport = cast(asyncio.Transport, transport)  # uvloop's is no subclass
        peer = transport.get_extra_info("peername")
        self._host = f"/{peer[0]}" if peer else ""
        self.address = f"{peer[0]}:{peer[1]}" if peer else ""
        session = self._connections.opened(self, transport)
        if session is None:
            self._abort()
            return
        self.session = session
        self._open_by = self._loop.time() + _BEFORE_S
        self._expect_start()

    def data_received(self, data: bytes) -> None:
        self._inbox.put(data)
        self._go_on()

    def eof_received(self) -> bool:
        """Begin what has arrived, and close, though not all may be begun yet: the client waits for no answers."""
        self._go_on()
        self._transport.abort()
        return False

    def pause_writing(self) -> None:
        self._write_by = self._loop.time() + _WRITE_S
        self._look_by(self._write_by)

    def resume_writing(self) -> None:
        self._write_by = math.inf
        for begun in self._unread:
            self._release(begun)
        self._unread.clear()
        self.answered()

    def connection_lost(self, error: Exception | None) -> None:
        """Go on with requests without an answer that the client sent before it went, unless it was cut off."""
        self._is_lost = True
        self._write_by = math.inf
        for begun in self._begun:
            if begun.is_answered:  # and nobody takes the answer
                self._connections.answered(begun.asker, begun.frame, begun.began_s, None)
        for begun in (*self._begun, *self._unread):
            if not begun.is_append_under_way:
                if begun.task is not None:
                    begun.task.cancel()
                self._release(begun)
        # They are in the queues of their partitions: they hold their bytes until their outcome is known.
        self._begun = deque(append for append in self._begun if append.is_append_under_way)
        self._unread.clear()
        if self._beginning not in self._begun:
            self._beginning = None
        self._go_on()

    def _forget(self) -> None:
        if self.gone.done():
            return
        self._is_over = True
        for timer in (self._watch, self._again):
            if timer is not None:
                timer.cancel()
        if self._next is not None and self._next.ticket is not None:
            self._next.ticket.release()
        self._next = None
        self._inbox.clear()
        self._connections.closed(self)
        self.gone.set_result(None)

    # The end.

    def stop(self) -> None:
        """Begin no more; what is under way is still answered, if that does not take too long."""
        self._loop.call_later(self._settings.drain_ms / 1000, self.end)
        self._close_after_the_last()

    def end(self) -> None:
        """Close the connection now, whatever is under way: the caller may not go on."""
        if self._beginning is not None and self._beginning.task is not None:
            self._beginning.task.cancel()
        self._abort()

    def _abort(self) -> None:
        if not self._is_over:
            self._is_over = True
            if self._is_lost:
                self._forget()
            else:
                self._transport.abort()

    def _close_after_the_last(self) -> None:
        self._is_last = True
        if self._is_lost:
            self._forget()
            return
        self._pause_reading()
        if not self._begun and not self._is_over:
            self._write_by = min(self._write_by, self._loop.time() + _WRITE_S)
            self._look_by(self._write_by)
            self._transport.close()

    def _pause_reading(self) -> None:
        if self._is_reading and not self._transport.is_closing():
            self._is_reading = False
            self._transport.pause_reading()

    def _failed(self, error: Exception) -> None:
        if isinstance(error, Refused):
            if isinstance(error, Unauthenticated):
                self._refused(error, "kafka")
            log.info("event=kafka_connection_refused code=%s detail=%r", error.code, error.detail)
        elif isinstance(error, DeltaMQError):
            log.warning("event=kafka_connection_failed code=%s detail=%r", error.code, error.detail)
        else:
            log.error("event=kafka_connection_failed", exc_info=error)
        self._abort()

    def _refused(self, error: Unauthenticated | Forbidden, call: str) -> None:
        self._connections.refused(self, call, error)

    # Time.

    def _look_by(self, when: float) -> None:
        if self._watch is not None and self._watch.when() > when:
            self._watch.cancel()
            self._watch = None
        if self._watch is None and not self._is_over and when < math.inf:
            self._watch = self._loop.call_at(when, self._look)

    def _look(self) -> None:
        self._watch = None
        until = min(self._read_by, self._write_by)
        if until <= self._loop.time():
            self._abort()
        else:
            self._look_by(until)

    def _expect_start(self) -> None:
        self._expect_within(self._settings.kafka_idle_s)

    def _expect_more(self) -> None:
        self._expect_within(self._settings.request_ms / 1000)

    def _expect_within(self, seconds: float) -> None:
        self._read_by = self._loop.time() + seconds
        if not self.session.is_open:
            self._read_by = min(self._read_by, self._open_by)
        self._look_by(self._read_by)

    # Requests.

    def _go_on(self) -> None:
        """Begin what has arrived, as far as its turn has come; read on if there is room."""
        if self._is_going_on:
            return  # an answer that was there at once
        self._is_going_on = True
        try:
            while self._may_begin and self._step():
                pass
        except Exception as error:
            self._failed(error)
        finally:
            self._is_going_on = False
        if self._is_lost and not self._is_more:
            self._forget()
        if self._is_over or self._is_last or self._is_lost:
            return
        wanted = _READ_AHEAD_BYTES
        if self._next is not None and self._next.ticket is not None:
            wanted = max(wanted, self._next.size + LENGTH_BYTES)
        if len(self._inbox) > wanted:
            self._pause_reading()
        elif not self._is_reading and not self._transport.is_closing():
            self._is_reading = True
            self._transport.resume_reading()

    @property
    def _may_begin(self) -> bool:
        return not (
            self._is_over
            or self._is_last
            or self._connections.is_ending
            or self._beginning is not None
            or self._again is not None
            or self._write_by < math.inf
            or len(self._begun) >= IN_FLIGHT_MAX
        )

    @property
    def _is_more(self) -> bool:
        """Whether a whole request has arrived that may still be begun."""
        if self._is_over or self._is_last or self._connections.is_ending:
            return False
        size = int.from_bytes(self._inbox.first(LENGTH_BYTES), "big")
        return len(self._inbox) >= max(START_BYTES, size + LENGTH_BYTES)

    def _step(self) -> bool:
        """Take one step with the first request; return False if it must wait, or has not arrived."""
        wanted = self._next
        if wanted is None:
            if len(self._inbox) < START_BYTES:
                self._expect_start()
                return False
            start = self._inbox.first(START_BYTES)
            wanted = self._next = Arrival.announced(start, self.session, self._settings.request_bytes_max)
            self._read_by = math.inf
        is_large = wanted.size > _BEHIND_BYTES_MAX and wanted.call != PRODUCE
        if self._begun and (is_large or wanted.call == FETCH):
            # A fetch is answered in its turn, and would hold room for its answer until then.
            return False
        is_there = len(self._inbox) >= wanted.size + LENGTH_BYTES
        if wanted.ticket is None and (is_there or wanted.size + LENGTH_BYTES > _READ_AHEAD_BYTES):
            if not wanted.failures:
                self._read_by = math.inf
            wait_s = wanted.wait_s(self._room, self.session.principal, self._client_id)
            if wait_s > 0:
                if wanted.failures == 1:
                    self._expect_more()
                self._again = self._loop.call_later(wait_s, self._look_again)
                return False
            self._read_by = math.inf  # the client could not go on while there was no room
        if not is_there:
            if self._read_by == math.inf:
                self._expect_more()
            return False
        self._read_by = math.inf
        if self.session.is_unknown:
            self._again = self._loop.call_later(_UNKNOWN_S, self._look_again)
            return False
        self._next = None
        self._begin(wanted)
        return True

    def _look_again(self) -> None:
        self._again = None
        self._go_on()

    def _begin(self, wanted: Arrival) -> None:
        ticket = wanted.ticket
        assert ticket is not None, "it has its room"
        try:
            frame = read_frame(self._inbox.take(wanted.size + LENGTH_BYTES)[LENGTH_BYTES:])
            self._client_id = (frame.client_id or "")[:CLIENT_ID_LENGTH_MAX]
            asker = self.session.asker(frame.request)
        except BaseException:
            ticket.release()
            raise
        if self._is_lost and not (isinstance(frame.request, ProduceRequest) and frame.request.acks == 0):
            ticket.release()  # its client cannot learn the outcome, and may repeat it
            return
        asker.set_call(_call_name(frame.api.request), self.address, self._refused)
        asker.trace = self._connections.trace()
        self.session.begin(asker)
        begun = _Begun(self, frame, asker, ticket, wanted.meter)
        self._begun.append(begun)
        if wanted.call not in _IN_TURN:
            begun.ask = partial(self._door.answer, frame, ticket, self._host, asker)
            self._ask_first()
        elif not self._begin_at_once(begun):
            self._beginning = begun
            begun.later(partial(self._begun_in_turn, begun))

    def _begin_at_once(self, begun: _Begun) -> bool:
        try:
            return self._door.begin_at_once(begun.frame, begun.asker, begun.ticket, begun)
        except BaseException:
            begun.is_answered = True  # no callback will report its outcome
            raise

    async def _begun_in_turn(self, begun: _Begun) -> Message | None:
        """Begin a request, then let the next ones begin; return its answer."""
        answer = await self._door.begin(begun.frame, self.session, begun.asker, begun.ticket)
        self._beginning = None
        if self.session.refusal is not None:  # the answer says why, and nothing follows it
            if isinstance(self.session.refusal, Unauthenticated):
                self._refused(Unauthenticated(), begun.asker.call)
            self._is_last = True
        self._go_on()
        return await answer

    # Answers.

    def _ask_first(self) -> None:
        """Start the first request, unless it was started: all but appends wait until those before them are answered."""
        first = self._begun[0]
        if first.ask is not None:
            ask, first.ask = first.ask, None
            first.later(ask)

    async def wait(self, begun: _Begun, ask: Ask) -> None:
        """Answer a request when its answer is there."""
        answer: Message | None = None
        try:
            answer = await ask()
        except BaseException as error:
            # No answer can say that the outcome is unknown; the client connects again and repeats the request.
            call = begun.frame.api.key
            if begun.asker.trace is not None:
                begun.asker.trace.fail(error.code if isinstance(error, DeltaMQError) else type(error).__name__)
            if isinstance(error, Refused):  # not stored, and the client waits for no answer
                log.info("event=kafka_call_refused call=%d code=%s detail=%r", call, error.code, error.detail)
            elif isinstance(error, Exception):
                log.error("event=kafka_call_failed call=%d kind=%s", call, type(error).__name__, exc_info=error)
            if not self._is_lost:
                self._abort()
            if not isinstance(error, Exception):
                raise
        finally:
            begun.ready(answer)

    def answered(self) -> None:
        """Write the answers whose turn has come."""
        try:
            while self._begun and self._begun[0].is_answered:
                if not self._is_lost and (self._write_by < math.inf or self._is_over):
                    break
                begun = self._begun.popleft()
                try:
                    self._connections.answered(begun.asker, begun.frame, begun.began_s, begun.answer)
                    if begun.answer is not None and not self._is_lost:
                        self._transport.writelines(_parts(begun))
                finally:
                    if self._write_by == math.inf:
                        self._release(begun)
                    else:
                        self._unread.append(begun)
        except Exception as error:
            self._failed(error)
        if self._begun and not self._is_over:
            self._ask_first()
        if self._is_last and not self._begun:
            self._close_after_the_last()
        elif len(self._inbox) >= START_BYTES:
            self._go_on()

    def _release(self, begun: _Begun) -> None:
        begun.ticket.release()
        self.session.end(begun.asker)


@functools.cache
def _call_name(request: type[Message]) -> str:
    return f"kafka {request.__name__.removesuffix('Request')}"


def _parts(begun: _Begun) -> Parts:
    """Return an answer in pieces; it says how long the client must wait with its next request."""
    answer = begun.answer
    assert answer is not None, "the client wants one"
    parts = answer_frame(begun.frame, answer)
    if begun.meter is None:
        return parts
    begun.meter.answered(sum(map(len, parts)))
    wait_ms = math.ceil(begun.meter.wait_s() * 1_000)
    if wait_ms and hasattr(answer, "throttle_ms"):
        answer.throttle_ms = min(wait_ms, _THROTTLE_MS_MAX)
        return answer_frame(begun.frame, answer)
    return parts
