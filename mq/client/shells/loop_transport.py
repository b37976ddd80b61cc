"""Requests of clients on an event loop, by aiohttp (the extra `aio`)."""

from __future__ import annotations

import asyncio
import contextlib
import io
from collections.abc import Callable, Mapping
from functools import lru_cache
from importlib import import_module
from ssl import SSLContext
from typing import TYPE_CHECKING, Final

from deltamq.mq.client.shells.blocking_transport import (
    CONNECT_FAILED,
    CONNECT_TIMEOUT_S,
    lost_connection,
    not_answered,
    not_connected,
)
from deltamq.mq.client.shells.shell import Answer, Body
from deltamq.mq.errors import Refused, Unavailable
from deltamq.mq.limits import MIB

if TYPE_CHECKING:
    import aiohttp
    from aiohttp.connector import Connection
    from yarl import URL

#: The part of an attempt's time in which its connection is to be made: a connection that cannot be made says so before
#: the attempt's time is over, and then nothing was sent.
_CONNECT_PART: Final = 0.9
_LINE_BYTES_MAX: Final = 65_536
_URLS_REMEMBERED: Final = 256
#: A larger body is written piece by piece, so that other tasks run between.
_WHOLE_BYTES_MAX: Final = MIB


class LoopTransport:
    """Connections to one address, made when they are needed, in the loop of the first request."""

    def __init__(self, scheme: str, host: str, port: int, ssl_context: SSLContext | None) -> None:
        self._origin = f"{scheme}://{authority_of(host, port)}"
        self._ssl_context = ssl_context
        self._session: aiohttp.ClientSession | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closed = False

    async def send(
        self, method: str, target: str, headers: Mapping[str, str], body: Body | None, timeout_s: float
    ) -> Answer:
        """Send a request; `timeout_s` limits the whole attempt."""
        if self._session is None:
            await load_aiohttp()
        if self._closed:
            raise Unavailable(f"the client of {self._origin} is closed", code=CONNECT_FAILED)
        if self._session is None:
            self._session = new_session(self._ssl_context)
            self._loop = asyncio.get_running_loop()
        return await exchange(self._session, method, url_of(self._origin, target), headers, body, timeout_s)

    async def close(self) -> None:
        """Close the connections, for good."""
        self._closed = True
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    def __del__(self) -> None:
        """Close the connections to a process that has left the cluster, once no request is under way there."""
        session, loop = getattr(self, "_session", None), getattr(self, "_loop", None)
        if session is None or loop is None or loop.is_closed():
            return
        connector = session.connector
        session.detach()
        with contextlib.suppress(RuntimeError):  # the loop was closed meanwhile
            loop.call_soon_threadsafe(lambda: loop.create_task(_closed(connector)))


async def _closed(connector: aiohttp.BaseConnector | None) -> None:
    if connector is not None:
        await connector.close()


def authority_of(host: str, port: int) -> str:
    """Return host and port as a URL has them."""
    return f"[{host}]:{port}" if ":" in host and not host.startswith("[") else f"{host}:{port}"


@lru_cache(maxsize=_URLS_REMEMBERED)
def url_of(origin: str, target: str) -> URL:
    """Return a URL whose path and query stay as they are."""
    from yarl import URL

    return URL(origin + target, encoded=True)


async def load_aiohttp() -> None:
    """Import aiohttp in a thread, where its tenth of a second keeps nobody waiting; raises `Refused` without it."""
    try:
        await asyncio.to_thread(import_module, "aiohttp")
    except ImportError as error:
        raise Refused(
            "clients on an event loop need aiohttp: pip install 'deltamq[aio]'", code="not_installed", field="aio"
        ) from error


def new_session(
    ssl_context: SSLContext | None,
    *,
    connections_max: int = 0,
    sent: Callable[[asyncio.Transport | None], None] | None = None,
) -> aiohttp.ClientSession:
    """Return connections that send what they are given and nothing else: no cookies, no headers of their own.

    There are as many as are needed, unless there is a bound. `sent` is called with the connection of each request
    before it goes there; it may raise. `load_aiohttp` comes before.
    """
    import aiohttp

    session = aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(ssl=True if ssl_context is None else ssl_context, limit=connections_max),
        request_class=aiohttp.ClientRequest if sent is None else _noted(sent),
        cookie_jar=aiohttp.DummyCookieJar(),
        skip_auto_headers=("Accept", "Accept-Encoding", "User-Agent", "Content-Type"),
        auto_decompress=False,
        max_line_size=_LINE_BYTES_MAX,
        max_field_size=_LINE_BYTES_MAX,
    )
    # A request that aiohttp repeats by itself (a DELETE, too) would hide that the first one may have been applied.
    session._retry_connection = False
    return session


def _noted(sent: Callable[[asyncio.Transport | None], None]) -> type[aiohttp.ClientRequest]:
    import aiohttp

    class Noted(aiohttp.ClientRequest):
        async def send(self, conn: Connection) -> aiohttp.ClientResponse:
            sent(conn.transport)
            return await super().send(conn)

    return Noted


async def exchange(
    session: aiohttp.ClientSession,
    method: str,
    url: URL,
    headers: Mapping[str, str],
    body: Body | None,
    timeout_s: float,
) -> Answer:
    """Send one request and read its whole answer.

    Raises
    ------
    Unavailable
        `connect_failed`, `certificate_not_trusted`: nothing was sent.
    Unknown
        `no_answer`, `connection_lost`.
    """
    import aiohttp

    timeout = aiohttp.ClientTimeout(
        total=timeout_s, sock_connect=min(timeout_s * _CONNECT_PART, CONNECT_TIMEOUT_S), ceil_threshold=timeout_s + 1
    )
    origin = str(url.origin())
    data = io.BytesIO(body) if body is not None and len(body) > _WHOLE_BYTES_MAX else body
    try:
        async with session.request(
            method, url, headers=headers, data=data, timeout=timeout, allow_redirects=False
        ) as response:
            return Answer(response.status, response.headers, await response.read())
    except aiohttp.ClientConnectorCertificateError as error:
        raise lost_connection(origin, error.certificate_error) from error
    except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
        raise not_connected(origin) from error
    except TimeoutError as error:
        raise not_answered(origin, timeout_s) from error
    except (aiohttp.ClientError, OSError, ValueError) as error:
        raise lost_connection(origin, error) from error
