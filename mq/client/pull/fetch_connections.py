"""The connections of one consumer: kept when idle, bounded in number."""

from __future__ import annotations

from collections.abc import Collection

from deltamq.mq.client.http.endpoint import Endpoint
from deltamq.mq.client.pull.fetch import FetchConnection


class FetchConnections:
    """At most `connections_max` connections, idle or with an open fetch."""

    def __init__(self, *, connections_max: int, timeout_s: float) -> None:
        self._connections_max = connections_max
        self._timeout_s = timeout_s
        self._idle: dict[Endpoint, list[FetchConnection]] = {}
        self._open = 0

    def take(self, endpoint: Endpoint) -> FetchConnection | None:
        """Return a connection to this host for a fetch; None while all connections are in use."""
        idle = self._idle.get(endpoint, [])
        while idle:
            connection = idle.pop()
            if connection.is_usable:
                return connection
            self.discard(connection)
        if self._open >= self._connections_max:
            self._close_idle()
        if self._open >= self._connections_max:
            return None
        self._open += 1
        return FetchConnection(endpoint, self._timeout_s)

    def give_back(self, connection: FetchConnection) -> None:
        """Keep a connection whose answer was read completely."""
        self._idle.setdefault(connection.endpoint, []).append(connection)

    def discard(self, connection: FetchConnection) -> None:
        """Close a connection that has an open fetch or failed."""
        connection.close()
        self._open -= 1

    def keep(self, endpoints: Collection[Endpoint]) -> None:
        """Close the idle connections to hosts other than these, which may have left the cluster."""
        for endpoint in [one for one in self._idle if one not in endpoints]:
            for connection in self._idle.pop(endpoint):
                self.discard(connection)

    def _close_idle(self) -> None:
        """Close one idle connection to another host, if there is one."""
        kept = next((idle for idle in self._idle.values() if idle), None)
        if kept:
            self.discard(kept.pop())

    def close(self) -> None:
        """Close the idle connections."""
        for idle in self._idle.values():
            while idle:
                self.discard(idle.pop())
