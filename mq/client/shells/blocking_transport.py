"""Requests of clients with threads, by urllib3; and the errors that every transport raises for a failed request."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from ssl import SSLContext
from typing import Final, cast

import urllib3
from urllib3.exceptions import ConnectTimeoutError, HTTPError, NewConnectionError, ReadTimeoutError

from deltamq.mq.client.shells.forks import in_child
from deltamq.mq.client.shells.shell import Answer, Body
from deltamq.mq.errors import Unavailable, Unknown

CONNECT_FAILED: Final = "connect_failed"
NO_ANSWER: Final = "no_answer"
#: The service's certificate is not signed by a trusted authority, expired, or another host's.
NOT_TRUSTED: Final = "certificate_not_trusted"
CONNECTION_LOST: Final = "connection_lost"

#: Number of kept connections; further concurrent callers open connections that are closed after use.
CONNECTIONS_KEPT: Final = 64
CONNECT_TIMEOUT_S: Final = 3.0


def not_connected(url: str) -> Unavailable:
    """Return the error of a request whose connection could not be made: nothing was sent."""
    return Unavailable(f"cannot connect to {url}", code=CONNECT_FAILED)


def not_answered(url: str, timeout_s: float) -> Unknown:
    """Return the error of a request that was sent and not answered in time."""
    return Unknown(f"{url} did not answer within {timeout_s:.3g} s", code=NO_ANSWER)


def lost_connection(url: str, error: BaseException) -> Unavailable | Unknown:
    """Return the error of a connection that broke; if the service's certificate is to blame, nothing was sent."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ssl.SSLCertVerificationError):
            return Unavailable(f"the certificate of {url} is not trusted: {cause.verify_message}", code=NOT_TRUSTED)
        # Libraries wrap the error of the ssl module as an argument of their own.
        inner = next((argument for argument in cause.args if isinstance(argument, BaseException)), None)
        cause = cause.__cause__ if inner is None else inner
    return Unknown(f"the connection to {url} was lost", code=CONNECTION_LOST)


class BlockingTransport:
    """A pool of connections to one address, for any number of threads; a child of a fork gets a pool of its own."""

    def __init__(self, scheme: str, host: str, port: int, ssl_context: SSLContext | None) -> None:
        self._url = f"{scheme}://{host}:{port}"
        self._host, self._port, self._ssl_context = host, port, ssl_context
        self._pool = self._make_pool()
        in_child(self._renew_pool)

    def _renew_pool(self) -> None:
        """Leave the connections to the parent: two processes would read each other's answers."""
        self._pool = self._make_pool()

    def _make_pool(self) -> urllib3.HTTPConnectionPool:
        # urllib3 sets TCP_NODELAY on every connection: a small request never waits for an acknowledgement.
        if self._ssl_context is not None:
            return urllib3.HTTPSConnectionPool(
                self._host, self._port, maxsize=CONNECTIONS_KEPT, block=False, ssl_context=self._ssl_context
            )
        return urllib3.HTTPConnectionPool(self._host, self._port, maxsize=CONNECTIONS_KEPT, block=False)

    async def send(
        self, method: str, target: str, headers: Mapping[str, str], body: Body | None, timeout_s: float
    ) -> Answer:
        """Send a request; `timeout_s` limits each wait for bytes, for sockets have no limit for a whole attempt."""
        try:
            response = self._pool.urlopen(
                method,
                target,
                # urllib3 takes any buffer; its types only say bytes.
                body=cast("bytes | None", body),
                headers=headers,
                retries=False,
                redirect=False,
                timeout=urllib3.Timeout(connect=min(timeout_s, CONNECT_TIMEOUT_S), read=timeout_s),
                preload_content=True,
                decode_content=False,
            )
        except (NewConnectionError, ConnectTimeoutError) as error:
            raise not_connected(self._url) from error
        except ReadTimeoutError as error:
            raise not_answered(self._url, timeout_s) from error
        except (HTTPError, OSError) as error:
            raise lost_connection(self._url, error) from error
        return Answer(response.status, response.headers, response.data)

    async def close(self) -> None:
        """Close the kept connections."""
        self._pool.close()
