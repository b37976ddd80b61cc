"""The connection on which a consumer pops from an event loop; `pop/connection.py` says how it is cancelled."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from deltamq.mq.client.http.endpoint import Endpoint
from deltamq.mq.client.http.hosts import Hosts
from deltamq.mq.client.pop.client import PopAsk
from deltamq.mq.client.pop.connection import PopConnection
from deltamq.mq.client.shells.loop_transport import authority_of, exchange, load_aiohttp, new_session, url_of
from deltamq.mq.client.shells.shell import Answer

if TYPE_CHECKING:
    import aiohttp


class LoopPopConnection(PopConnection):
    """A connection of one task; others of the same loop may call `cancel`."""

    def __init__(self, hosts: Hosts, timeout_s: float, endpoint: Endpoint | None = None) -> None:
        """Prepare pops at `endpoint`, or at any host of the cluster if it is None."""
        super().__init__(hosts, timeout_s, endpoint)
        self._session: aiohttp.ClientSession | None = None
        #: Where the open pop was sent; None between two pops.
        self._transport: asyncio.Transport | None = None

    async def _change(self, wanted: Endpoint) -> None:
        await self.close()
        self._endpoint = wanted

    async def _exchange(self, ask: PopAsk, token: str | None) -> Answer:
        self._check_not_cancelled()
        if self._session is None:
            await load_aiohttp()
            self._check_not_cancelled()
            self._session = self._make_session()
        endpoint = self._endpoint
        url = url_of(f"{endpoint.scheme}://{authority_of(endpoint.host, endpoint.port)}", endpoint.target(ask.path))
        timeout_s = self._timeout_s + ask.wait_ms / 1000
        try:
            return await exchange(
                self._session, "POST", url, endpoint.headers(token, ask.headers), ask.body(), timeout_s
            )
        finally:
            self._transport = None

    def _make_session(self) -> aiohttp.ClientSession:
        def sent(transport: asyncio.Transport | None) -> None:
            self._check_not_cancelled()
            self._transport = transport

        return new_session(self._endpoint.ssl_context, connections_max=1, sent=sent)

    def cancel(self) -> None:
        """Cancel the open pop, and every later one."""
        self._cancelled = True
        if self._transport is None or self._transport.is_closing():
            return
        if self._transport.can_write_eof():
            self._transport.write_eof()
        else:  # TLS has no half of a connection
            self._transport.write(self._ending_request())

    def abort(self) -> None:
        """Cancel as `cancel` does, but do not wait for an answer that may be under way."""
        self._cancelled = True
        if self._transport is not None:
            self._transport.abort()

    async def close(self) -> None:
        """Close the connection."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()
