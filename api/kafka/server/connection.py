"""One connection of a Kafka client: requests are begun in order and answered in order, several may be under way.

    read frame --> begin --> [ under way, at most IN_FLIGHT_MAX ] --> wait for the answer --> write
        ^           '-- appends are queued here                          '-- a client that does not read is cut off
        '-- pauses while the queue is full, while the service has no room for the frame, or the caller no quota

What is not a request closes the connection: there is no answer in the protocol for it. So does a call of a client that
has not said who it is, if it must, and the end of what it may (`Session.is_over`).
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Awaitable
from contextlib import ExitStack, suppress
from typing import Final, NamedTuple

from api.auth import Meter
from api.kafka.access import Session
from api.kafka.calls import Door
from api.kafka.messages import Frame, Message, Parts, answer_frame, read_frame
from api.service import Service
from api.wire import Ticket
from mq.backoff import Backoff
from mq.errors import DeltaMQError, Forbidden, Overloaded, Refused, TooLarge, Unauthenticated
from mq.limits import ADMIN_BYTES_MAX

__all__ = ["Connection"]

log = logging.getLogger("deltamq.api")

#: Most requests of one connection that are under way; Kafka's clients have at most five of each kind.
IN_FLIGHT_MAX: Final = 32
#: Most seconds for a client to read an answer.
_WRITE_S: Final = 30.0
#: A 32-bit number.
_THROTTLE_MS_MAX: Final = 2**31 - 1
_LENGTH_BYTES: Final = 4
#: A frame's length and its call.
_START_BYTES: Final = 6
_PRODUCE: Final = 0
_FETCH: Final = 1
#: SaslHandshake, ApiVersions and SaslAuthenticate: what a client may call before it is known who it is.
_BEFORE: Final = (17, 18, 36)
#: Most bytes of such a call, and seconds until the client must be known.
_BEFORE_BYTES_MAX: Final = 64 * 1024
_BEFORE_S: Final = 30.0
_AGAIN_S: Final = Backoff(0.005, 0.25)


class _Begun(NamedTuple):
    """A request under way; `held` is what it reserves until its answer is written."""

    frame: Frame
    answer: Awaitable[Message | None]
    held: ExitStack
    #: Measures what the caller uses; None without a quota.
    meter: Meter | None


class Connection:
    """One connection, from `run` until the client goes, the service stops, or a limit is broken."""

    def __init__(
        self,
        service: Service,
        door: Door,
        session: Session,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        self.session = session
        self._service = service
        self._settings = service.settings
        self._door = door
        self._reader = reader
        self._writer = writer
        self._begun: asyncio.Queue[_Begun] = asyncio.Queue(IN_FLIGHT_MAX)
        self._reading: asyncio.Task[None] | None = None
        self._is_over = False
        self._open_by = service.loop.time() + _BEFORE_S
        peer = writer.get_extra_info("peername")
        self._host = f"/{peer[0]}" if peer else ""
        self._address = f"{peer[0]}:{peer[1]}" if peer else ""

    async def run(self) -> None:
        """Serve the connection to its end."""
        self._reading = asyncio.ensure_future(self._read())
        writing = asyncio.ensure_future(self._write())
        try:
            await asyncio.wait({self._reading, writing}, return_when=asyncio.FIRST_COMPLETED)
            if self._service.stopping and not self._is_over:
                with suppress(TimeoutError):
                    async with asyncio.timeout(self._settings.drain_ms / 1000):
                        await self._begun.join()
        finally:
            for task in (self._reading, writing):
                task.cancel()
            await asyncio.gather(self._reading, writing, return_exceptions=True)
            self._drop()
            self._writer.transport.abort()

    def stop(self) -> None:
        """Read no more; what is under way is still answered."""
        if self._reading is not None:
            self._reading.cancel()

    def end(self) -> None:
        """Close the connection now, whatever is under way: the caller may not go on."""
        self._is_over = True
        self._writer.transport.abort()
        self.stop()

    def _refused(self, error: Unauthenticated | Forbidden, call: str = "kafka") -> None:
        """Count a refusal (SPEC SEC-41)."""
        if self._service.audit is not None:
            self._service.audit.refused(self.session.principal, call, error.status, error.code, self._address)

    def _drop(self) -> None:
        """Release what requests hold that are not answered any more."""
        while not self._begun.empty():
            begun = self._begun.get_nowait()
            begun.held.close()
            if asyncio.iscoroutine(begun.answer):
                begun.answer.close()

    # Requests.

    async def _read(self) -> None:
        try:
            while True:
                held = ExitStack()
                try:
                    await self._begin(held)
                except BaseException:
                    held.close()
                    raise
        except (asyncio.IncompleteReadError, ConnectionError, TimeoutError):
            return
        except Refused as error:
            if isinstance(error, Unauthenticated):
                self._refused(error)
            log.info("event=kafka_connection_refused code=%s detail=%r", error.code, error.detail)
        except DeltaMQError as error:
            log.warning("event=kafka_connection_failed code=%s detail=%r", error.code, error.detail)
        except Exception:
            log.exception("event=kafka_connection_failed")

    async def _begin(self, held: ExitStack) -> None:
        """Read one request and begin it."""
        idle_s: float = self._settings.kafka_idle_s
        if not self.session.is_open:
            idle_s = min(idle_s, max(0.0, self._open_by - self._service.loop.time()))
        async with asyncio.timeout(idle_s):
            start = await self._reader.readexactly(_START_BYTES)
        size = int.from_bytes(start[:_LENGTH_BYTES], "big", signed=True)
        number = int.from_bytes(start[_LENGTH_BYTES:], "big", signed=True)
        self._check_size(size, number)
        meter = await self._metered(size, number)
        async with asyncio.timeout(self._settings.request_ms / 1000):
            ticket = await self._admitted(size, number, held)
            body = await self._reader.readexactly(size + _LENGTH_BYTES - _START_BYTES)
        frame = read_frame(start[_LENGTH_BYTES:] + body)
        asker = self.session.asker(frame.request)
        call = f"kafka {type(frame.request).__name__.removesuffix('Request')}"
        asker.told(call, self._address, lambda error: self._refused(error, call))
        self.session.begin(asker)
        held.callback(self.session.end, asker)
        answer = await self._door.begin(frame, ticket, self._host, self.session, asker)
        await self._begun.put(_Begun(frame, answer, held, meter))
        if self.session.is_refused:  # the answer says why, and nothing follows it
            self._refused(Unauthenticated(), call)
            await self._begun.join()
            raise ConnectionAbortedError

    async def _metered(self, size: int, call: int) -> Meter | None:
        """Count the request, when the caller's quota allows one more: until then the client's socket fills up."""
        meter = self._service.quotas.meter(self.session.principal) if self.session.principal else None
        if meter is None or call in _BEFORE:
            return None
        while (wait_s := meter.wait_s()) > 0:
            await asyncio.sleep(wait_s)
        meter.asked(size)
        return meter

    def _check_size(self, size: int, call: int) -> None:
        if not self.session.is_open:
            if call not in _BEFORE:
                raise Unauthenticated(f"call {call} before the client has said who it is (SASL)")
            if size > _BEFORE_BYTES_MAX:
                raise TooLarge(f"a request of {size} bytes before the client has said who it is (SASL)")
        limit = self._settings.request_bytes_max if call == _PRODUCE else ADMIN_BYTES_MAX
        if size < _START_BYTES - _LENGTH_BYTES or size > limit:
            raise TooLarge(f"a request of {size} bytes for call {call}; at most {limit} are allowed")

    async def _admitted(self, size: int, call: int, held: ExitStack) -> Ticket:
        """Return the request's reservation, when there is room: until then the client's socket fills up."""
        admission = self._service.answers if call == _FETCH else self._service.admission
        failures = 0
        while True:
            with ExitStack() as tried:
                try:
                    ticket = tried.enter_context(admission.enter())
                    if call != _FETCH:
                        ticket.grow(size)
                except Overloaded:
                    failures += 1
                else:
                    held.enter_context(tried.pop_all())
                    return ticket
            await asyncio.sleep(_AGAIN_S.after(failures))

    # Answers.

    async def _write(self) -> None:
        with suppress(ConnectionError, TimeoutError):
            while True:
                begun = await self._begun.get()
                with begun.held:
                    answer = await self._answered(begun)
                    if answer is not None:
                        self._writer.writelines(_parts(begun, answer))
                        async with asyncio.timeout(_WRITE_S):
                            await self._writer.drain()
                self._begun.task_done()

    async def _answered(self, begun: _Begun) -> Message | None:
        try:
            return await begun.answer
        except Exception as error:
            # No answer says that nobody knows; the client connects again and repeats the request.
            log.error(
                "event=kafka_call_failed call=%d kind=%s", begun.frame.api.key, type(error).__name__, exc_info=error
            )
            raise ConnectionAbortedError from error


def _parts(begun: _Begun, answer: Message) -> Parts:
    """Return an answer in pieces; it says how long the client must wait with its next request."""
    parts = answer_frame(begun.frame, answer)
    if begun.meter is None:
        return parts
    begun.meter.answered(sum(map(len, parts)))
    wait_ms = math.ceil(begun.meter.wait_s() * 1_000)
    if wait_ms and hasattr(answer, "throttle_ms"):
        answer.throttle_ms = min(wait_ms, _THROTTLE_MS_MAX)
        return answer_frame(begun.frame, answer)
    return parts
