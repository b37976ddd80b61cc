"""The door's server: it accepts connections, up to a limit, and ends them when the service stops.

Its socket is bound before the service starts: other processes must know the address.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import socket
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Final

import msgspec

from deltamq.api.kafka.access.client_meters import ClientMeters
from deltamq.api.kafka.access.kerberos import Kerberos, kerberos_of
from deltamq.api.kafka.access.needs import Asker
from deltamq.api.kafka.access.session import Session
from deltamq.api.kafka.calls.door import Door
from deltamq.api.kafka.messages.apis import Frame
from deltamq.api.kafka.messages.codec import Message
from deltamq.api.kafka.messages.errors import ErrorCode
from deltamq.api.kafka.server.arrival import Room
from deltamq.api.kafka.server.connection import IN_FLIGHT_MAX, Connection
from deltamq.api.kafka.server.meters import KafkaMeters, count_errors
from deltamq.api.measured import Traces
from deltamq.api.service.service import Service
from deltamq.api.sockets import TlsServer, listening
from deltamq.api.tls import server_context
from deltamq.api.wire.request import Admission
from deltamq.api.wire.steps import CallTrace
from deltamq.mq.errors import Forbidden, Unauthenticated
from deltamq.mq.limits import MIB
from deltamq.tables.config_sections import KafkaTls, ServiceSettings

log = logging.getLogger("deltamq.api")

#: Seconds in which a TLS connection must be agreed on, and for which a closing one waits for the client's farewell.
_HANDSHAKE_S: Final = 10.0
_FAREWELL_S: Final = 2.0
#: Most bytes of all requests under way that are neither appends nor fetches.
_CALLS_BYTES_MAX: Final = 64 * MIB


class KafkaListener(msgspec.Struct, frozen=True):
    """A listening socket, the address that clients get, and what takes their Kerberos tickets, if anything does."""

    socket: socket.socket
    advertised: str
    kerberos: Kerberos | None

    def close(self) -> None:
        """Close the socket."""
        self.socket.close()


class KafkaServer:
    """Serves Kafka's clients from `start` to `stop`."""

    def __init__(self, service: Service, listener: KafkaListener, traces: Traces | None) -> None:
        self._service = service
        self._traces = traces
        self._door = Door(service, listener.advertised)
        self._kerberos = listener.kerberos
        self._connections: set[Connection] = set()
        self._meters = KafkaMeters(lambda: len(self._connections))
        service.metrics.labelled.append(self._meters.families)
        self._server: asyncio.AbstractServer | TlsServer | None = None

    @classmethod
    async def start(cls, service: Service, listener: KafkaListener, traces: Traces | None) -> KafkaServer:
        """Accept connections from now on; `traces` decides which calls are traced."""
        server = cls(service, listener, traces)
        requests = service.settings.connections_max * IN_FLIGHT_MAX
        calls = Admission("kafka", bytes_max=_CALLS_BYTES_MAX, requests_max=requests)
        clients = ClientMeters(service.quotas, lambda: service.meta.now.auth)
        room = Room(service.quotas, clients, service.admission, service.answers, calls)
        make = partial(Connection, server._door, room, service.settings, server)
        server._server = await server._listen(listener, make)
        if service.gate is not None:
            service.gate.followers.append(server._look)
        else:
            service.meta.follow(lambda before, after: server._end_open())
        log.info("event=kafka_listening address=%s", listener.advertised)
        return server

    async def _listen(
        self, listener: KafkaListener, make: Callable[[], Connection]
    ) -> asyncio.AbstractServer | TlsServer:
        tls = server_context(self._service.settings, protocols=())
        if tls is None:
            return await self._service.loop.create_server(make, sock=listener.socket)
        server = TlsServer(
            listener.socket,
            tls,
            make,
            room=self._room,
            within_s=_HANDSHAKE_S,
            farewell_s=_FAREWELL_S,
            takes_plain=self._service.settings.kafka_tls is KafkaTls.OPTIONAL,
        )
        server.start()
        return server

    def _room(self) -> int:
        """Return how many more connections there may be."""
        return self._service.settings.connections_max - len(self._connections)

    @property
    def is_ending(self) -> bool:
        """Whether no more requests may be begun."""
        return self._service.stopping

    def opened(self, connection: Connection, transport: asyncio.Transport) -> Session | None:
        """Take note of a connection; None if it must close at once."""
        if self._room() <= 0 or self.is_ending or self._service.is_outsider:
            return None
        self._connections.add(connection)
        service = self._service
        is_private = (
            transport.get_extra_info("ssl_object") is not None
            or _is_here(transport.get_extra_info("peername"))
            or service.settings.allow_open_access
        )
        kerberos = None if self._kerberos is None else partial(self._kerberos.exchange, service.now_ms)
        return Session(service.gate, service.now_ms, is_private=is_private, kerberos=kerberos)

    def closed(self, connection: Connection) -> None:
        """Forget a connection."""
        self._connections.discard(connection)

    def trace(self) -> CallTrace | None:
        """Return what traces a call that begins now; None if nothing is traced (SPEC LOOK-17)."""
        return None if self._traces is None else self._traces.begin_call()

    def answered(self, asker: Asker, frame: Frame, began_s: float, answer: Message | None) -> None:
        """Count an answer (SPEC LOOK-11), and make the spans of its call if it is traced."""
        self._meters.answered(asker.call.removeprefix("kafka "), time.perf_counter() - began_s, answer)
        if asker.trace is not None:
            errors: Counter[int] = Counter()
            count_errors(answer, errors)
            for code in errors:
                asker.trace.fail(ErrorCode(code).name)
            group = getattr(frame.request, "group_id", "")
            asker.trace.end(asker.call, frame.client_id, group, began_s)

    def refused(self, connection: Connection, call: str, error: Unauthenticated | Forbidden) -> None:
        """Count a refusal (SPEC SEC-41)."""
        if self._service.audit is not None:
            principal = connection.session.principal
            self._service.audit.refused(principal, call, error.status, error.code, connection.address)

    def _look(self) -> None:
        """End the connections of clients whose access was changed, is over, or is not known."""
        unread = self._service.meta.unread()
        detail = "access is over" if unread is None else unread.detail
        for connection in [opened for opened in self._connections if opened.session.is_over()]:
            log.info("event=kafka_connection_ended principal=%r detail=%r", connection.session.principal, detail)
            connection.end()

    def _end_open(self) -> None:
        """End all connections if the warehouse is guarded, and this process is not (SPEC SEC-44)."""
        for connection in list(self._connections) if self._service.is_outsider else ():
            connection.end()

    async def stop(self) -> None:
        """Accept no more, answer what is under way, and close all connections. The service's stop has begun."""
        self._service.begin_stop()
        self._door.begin_stop()
        assert self._server is not None
        self._server.close()
        ending = list(self._connections)
        for connection in ending:
            connection.stop()
        await asyncio.gather(*(connection.gone for connection in ending))
        await self._server.wait_closed()
        if self._kerberos is not None:
            self._kerberos.close()


def _is_here(peer: object) -> bool:
    """Whether the client is on this machine."""
    host = peer[0] if isinstance(peer, tuple) else ""
    try:
        address = ipaddress.ip_address(host)
        return (getattr(address, "ipv4_mapped", None) or address).is_loopback
    except ValueError:
        return False


def bind_kafka(settings: ServiceSettings) -> KafkaListener:
    """Return the listener for Kafka's clients, at the port that the settings name.

    Raises
    ------
    Refused
        The address is taken or does not exist, or the keytab cannot be used.
    """
    assert settings.kafka_port, "0 is no port"
    kerberos = kerberos_of(settings)
    listener = listening(settings.host, settings.kafka_port, field="service.kafka_port")
    return KafkaListener(listener, settings.kafka_address or _reachable(listener), kerberos)


def _reachable(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    if ipaddress.ip_address(host).is_unspecified:
        host = socket.getfqdn()
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
