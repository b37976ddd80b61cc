"""The door's server: it accepts connections, up to a limit, and ends them when the service stops."""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from api.kafka.calls import Door
from api.kafka.server.connection import Connection
from api.kafka.server.listener import KafkaListener
from api.service import Service

__all__ = ["KafkaServer"]

log = logging.getLogger("deltamq.api")

#: Bytes that are read ahead of one connection.
_READ_AHEAD_BYTES: Final = 256 * 1024


class KafkaServer:
    """Serves Kafka's clients from `start` to `stop`."""

    def __init__(self, service: Service, listener: KafkaListener) -> None:
        self._service = service
        self._door = Door(service, listener.advertised)
        self._connections: dict[Connection, asyncio.Task[None]] = {}
        self._server: asyncio.Server | None = None

    @classmethod
    async def start(cls, service: Service, listener: KafkaListener) -> KafkaServer:
        """Accept connections from now on."""
        server = cls(service, listener)
        server._server = await asyncio.start_server(server._accepted, sock=listener.socket, limit=_READ_AHEAD_BYTES)
        log.info("event=kafka_listening address=%s", listener.advertised)
        return server

    async def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._connections) >= self._service.settings.connections_max or self._service.stopping:
            writer.transport.abort()
            return
        connection = Connection(self._service, self._door, reader, writer)
        task = asyncio.current_task()
        assert task is not None
        self._connections[connection] = task
        try:
            await connection.run()
        finally:
            del self._connections[connection]

    async def stop(self) -> None:
        """Accept no more, answer what is under way, and close all connections. The service's stop has begun."""
        self._service.begin_stop()
        self._door.begin_stop()
        assert self._server is not None
        self._server.close()
        ended = list(self._connections.values())
        for connection in list(self._connections):
            connection.stop()
        await asyncio.gather(*ended, return_exceptions=True)
