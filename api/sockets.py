"""Listening sockets, taken before anything else happens, so that a port in use is reported at once; and those with TLS.

Handshakes count against the limit of connections from their first moment:

    accepted ──► too many? ── yes ──► closed, without a byte
                    └── no ──► handshake, within `within_s` ──► the protocol of the connection
                                     └── failed, too slow, gone ──► closed

The event loop's own server does not say when a handshake begins or fails, so it could not count them.

A server may take connections without TLS, too: the first byte of a connection says what it is. That of a handshake
would be the length of a Kafka request of more than 350 MiB, which nobody may send.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable
from contextlib import ExitStack
from typing import Final

from deltamq.mq.errors import Refused

#: Connections that the kernel keeps until they are accepted.
BACKLOG: Final = 2_048


def listening(host: str, port: int, *, field: str) -> socket.socket:
    """Return a socket that listens at the address and does not block.

    Raises
    ------
    Refused
        The address is taken or does not exist; `field` is the setting of the port.
    """
    with ExitStack() as on_error:
        try:
            family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
            listener = on_error.enter_context(socket.socket(family, socket.SOCK_STREAM))
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind((host, port))
            listener.listen(BACKLOG)
        except OSError as error:
            text = error.strerror or str(error)
            raise Refused(f"cannot listen on {host}:{port}: {text}", field=field) from None
        listener.setblocking(False)
        on_error.pop_all()
    return listener


log = logging.getLogger("deltamq.api")

#: The first byte of a handshake: the type of its record.
_HANDSHAKE: Final = b"\x16"
#: Seconds to wait after a failed accept: most often there are no file descriptors left.
_AFTER_FAILURE_S: Final = 0.1


class TlsServer:
    """Accepts connections from `start` to `close`; used on the event loop."""

    def __init__(
        self,
        listener: socket.socket,
        context: ssl.SSLContext,
        make: Callable[[], asyncio.Protocol],
        *,
        room: Callable[[], int],
        within_s: float,
        farewell_s: float,
        takes_plain: bool = False,
    ) -> None:
        """`make` makes the protocol of a connection after its handshake.

        `room` returns how many handshakes there may be now; `farewell_s` is how long a closing connection waits for the
        other side. With `takes_plain`, a connection whose first byte begins no handshake goes on without TLS.
        """
        self._listener = listener
        self._context = context
        self._make = make
        self._room = room
        self._within_s = within_s
        self._farewell_s = farewell_s
        self._takes_plain = takes_plain
        self._under_way: set[asyncio.Task[None]] = set()
        self._accepting: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to accept connections."""
        self._accepting = asyncio.get_running_loop().create_task(self._accept())

    def close(self) -> None:
        """Accept no more connections, and end those whose handshake is not over."""
        for task in (self._accepting, *self._under_way):
            if task is not None:
                task.cancel()

    async def wait_closed(self) -> None:
        """Wait until all have ended, and close the listening socket."""
        tasks = [task for task in (self._accepting, *self._under_way) if task is not None]
        if tasks:
            await asyncio.wait(tasks)
        self._listener.close()

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                accepted, _ = await loop.sock_accept(self._listener)
            except OSError as error:
                log.error("event=accept_failed detail=%r", str(error))
                await asyncio.sleep(_AFTER_FAILURE_S)
                continue
            if len(self._under_way) >= self._room():
                accepted.close()
                continue
            task = loop.create_task(self._agree(accepted))
            self._under_way.add(task)
            task.add_done_callback(self._under_way.discard)

    async def _agree(self, accepted: socket.socket) -> None:
        try:
            accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self._takes_plain and not await self._begins_handshake(accepted):
                await asyncio.get_running_loop().connect_accepted_socket(self._make, accepted)
                return
            await asyncio.get_running_loop().connect_accepted_socket(
                self._make,
                accepted,
                ssl=self._context,
                ssl_handshake_timeout=self._within_s,
                ssl_shutdown_timeout=self._farewell_s,
            )
        except OSError as error:
            # The client speaks no TLS, does not trust this certificate, shows none, or has gone.
            log.debug("event=handshake_failed detail=%r", str(error))
            accepted.close()
        except asyncio.CancelledError:
            accepted.close()
            raise

    async def _begins_handshake(self, accepted: socket.socket) -> bool:
        """Wait for the first byte, and return whether TLS begins with it; the byte stays in the socket."""
        loop = asyncio.get_running_loop()
        readable = asyncio.Event()
        loop.add_reader(accepted, readable.set)
        try:
            async with asyncio.timeout(self._within_s):
                await readable.wait()
        finally:
            loop.remove_reader(accepted)
        return accepted.recv(1, socket.MSG_PEEK) == _HANDSHAKE
