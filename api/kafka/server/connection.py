"""One connection of a Kafka client: requests are begun in order and answered in order, several may be under way.

    read frame --> begin --> [ under way, at most IN_FLIGHT_MAX ] --> wait for the answer --> write
        ^           '-- appends are queued here                          '-- a client that does not read is cut off
        '-- pauses while the queue is full, or while the service has no room for the frame

What is not a request closes the connection: there is no answer in the protocol for it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable
from contextlib import ExitStack, suppress
from typing import Final, NamedTuple

from api.kafka.calls import Door
from api.kafka.messages import Frame, Message, answer_frame, read_frame
from api.service import Service
from api.wire import Ticket
from mq.backoff import Backoff
from mq.errors import DeltaMQError, Overloaded, Refused, TooLarge
from mq.limits import ADMIN_BYTES_MAX

__all__ = ["Connection"]

log = logging.getLogger("deltamq.api")

#: Most requests of one connection that are under way; Kafka's clients have at most five of each kind.
IN_FLIGHT_MAX: Final = 32
#: Most seconds for a client to read an answer.
_WRITE_S: Final = 30.0
_LENGTH_BYTES: Final = 4
#: A frame's length and its call.
_START_BYTES: Final = 6
_PRODUCE: Final = 0
_FETCH: Final = 1
_AGAIN_S: Final = Backoff(0.005, 0.25)


class _Begun(NamedTuple):
    """A request under way; `held` is what it reserves until its answer is written."""

    frame: Frame
    answer: Awaitable[Message | None]
    held: ExitStack


class Connection:
    """One connection, from `run` until the client goes, the service stops, or a limit is broken."""

    def __init__(
        self, service: Service, door: Door, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self._service = service
        self._settings = service.settings
        self._door = door
        self._reader = reader
        self._writer = writer
        self._begun: asyncio.Queue[_Begun] = asyncio.Queue(IN_FLIGHT_MAX)
        self._reading: asyncio.Task[None] | None = None
        peer = writer.get_extra_info("peername")
        self._host = f"/{peer[0]}" if peer else ""

    async def run(self) -> None:
        """Serve the connection to its end."""
        self._reading = asyncio.ensure_future(self._read())
        writing = asyncio.ensure_future(self._write())
        try:
            await asyncio.wait({self._reading, writing}, return_when=asyncio.FIRST_COMPLETED)
            if self._service.stopping:
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
            log.info("event=kafka_connection_refused code=%s detail=%r", error.code, error.detail)
        except DeltaMQError as error:
            log.warning("event=kafka_connection_failed code=%s detail=%r", error.code, error.detail)
        except Exception:
            log.exception("event=kafka_connection_failed")

    async def _begin(self, held: ExitStack) -> None:
        """Read one request and begin it."""
        async with asyncio.timeout(self._settings.kafka_idle_s):
            start = await self._reader.readexactly(_START_BYTES)
        size = int.from_bytes(start[:_LENGTH_BYTES], "big", signed=True)
        call = int.from_bytes(start[_LENGTH_BYTES:], "big", signed=True)
        self._check_size(size, call)
        async with asyncio.timeout(self._settings.request_ms / 1000):
            ticket = await self._admitted(size, call, held)
            body = await self._reader.readexactly(size + _LENGTH_BYTES - _START_BYTES)
        frame = read_frame(start[_LENGTH_BYTES:] + body)
        answer = await self._door.begin(frame, ticket, self._host)
        await self._begun.put(_Begun(frame, answer, held))

    def _check_size(self, size: int, call: int) -> None:
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
                        self._writer.writelines(answer_frame(begun.frame, answer))
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
