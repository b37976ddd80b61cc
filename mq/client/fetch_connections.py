"""The connections of one consumer: kept when idle, bounded in number."""

from __future__ import annotations

from mq.client.endpoint import Endpoint
from mq.client.fetch import FetchConnection

__all__ = ["FetchConnections"]


class FetchConnections:
    """At most `connections_max` connections, idle or with a fetch open."""

    def __init__(self, endpoint: Endpoint, *, connections_max: int, timeout_s: float) -> None:
        self._endpoint = endpoint
        self._connections_max = connections_max
        self._timeout_s = timeout_s
        self._idle: list[FetchConnection] = []
        self._open = 0

    def take(self) -> FetchConnection | None:
        """A connection to ask on; None while all are in use."""
        while self._idle:
            connection = self._idle.pop()
            if connection.is_usable:
                return connection
            self.discard(connection)
        if self._open >= self._connections_max:
            return None
        self._open += 1
        return FetchConnection(self._endpoint, self._timeout_s)

    def give_back(self, connection: FetchConnection) -> None:
        """Keep a connection whose answer was read to its end."""
        self._idle.append(connection)

    def discard(self, connection: FetchConnection) -> None:
        """Close a connection on which something is open or went wrong."""
        connection.close()
        self._open -= 1

    def close(self) -> None:
        """Close the idle connections."""
        while self._idle:
            self.discard(self._idle.pop())
