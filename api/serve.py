"""`deltamq serve`: one service process, from its settings to its last fsync.

    settings -> bind -> open warehouse -> "serving http://HOST:PORT warehouse DIR" -> ... SIGTERM -> drain -> exit 0

Standard output carries that one line and nothing else; logs go to standard error, one line for each event.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import gc
import ipaddress
import json
import logging
import os
import resource
import signal
import socket
import ssl
import sys
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Final, NoReturn

import click
import uvicorn

from deltamq.api.app import App, create_app
from deltamq.api.http_protocol import HttpProtocol
from deltamq.api.measured import Application, MeasuredRequests
from deltamq.api.sockets import BACKLOG, TlsServer, listening
from deltamq.api.tls import server_context
from deltamq.api.wire.answer import SECURITY_HEADERS
from deltamq.mq.errors import DeltaMQError, Refused
from deltamq.mq.limits import MIB
from deltamq.mq.request_values import is_loopback
from deltamq.tables.config import Config, load, settings_of
from deltamq.tables.config_sections import ServiceSettings
from deltamq.tables.log_lines import log_to_stderr

log = logging.getLogger("deltamq.api")

#: Seconds for a TLS handshake; a slower client is cut off.
HANDSHAKE_S: Final = 10.0
#: Seconds that a closing TLS connection waits for the other side's farewell.
FAREWELL_S: Final = 2.0
#: Numbers of glibc's settings: bytes from which on a block is a mapping of its own, and free bytes that are kept at the
#: end of each heap.
_M_MMAP_THRESHOLD: Final = -3
_M_TRIM_THRESHOLD: Final = -1
_OWN_MAPPING_BYTES: Final = 4 * MIB
_KEPT_BYTES: Final = 16 * MIB
#: Linux' number of the setting.
_PR_SET_THP_DISABLE: Final = 41
#: Variables of the environment that say which pages Arrow's allocator takes.
_PAGE_SETTINGS: Final = frozenset(("MIMALLOC_ALLOW_THP", "MIMALLOC_ALLOW_LARGE_OS_PAGES"))
#: uvicorn's exit status of a failed start.
_NOT_STARTED: Final = 3


def serve(profile: str | None, flags: Mapping[str, str | int | list[str] | None]) -> NoReturn:
    """Run the service with the settings of a profile, or those given by name, until SIGTERM; end the process.

    Raises
    ------
    click.ClickException
        The settings are wrong, or it cannot listen there.
    """
    try:
        config = load(profile, flags)
        _leave_no_core(config)
        _check_open_access(config)
        _check_issuer(config)
        tls = server_context(config.service)
        listener = bind(config)
        app = create_app(config)
    except DeltaMQError as error:
        raise click.ClickException(error.detail) from error
    log_to_stderr(config.service.log_format, config.service.log_level)
    for setting in settings_of(config).settings:
        if setting.differs:
            value = json.dumps(setting.value, ensure_ascii=False)
            log.info("event=setting %s=%s source=%s", setting.name, value, json.dumps(setting.source))
    _warn_of_open_access(config)
    sys.exit(run(app, config, listener, tls))


def _leave_no_core(config: Config) -> None:
    """Let a process that has secrets leave no core dump: it would contain the keys of its callers."""
    settings = config.service
    if settings.auth or settings.cluster_secret or settings.clusters_shared_secret or config.queue.handle_secret:
        _, most = resource.getrlimit(resource.RLIMIT_CORE)
        resource.setrlimit(resource.RLIMIT_CORE, (0, most))


def run(app: App, config: Config, listener: socket.socket, tls: ssl.SSLContext | None = None) -> int:
    """Serve on `listener` until a signal, with `tls` if there is one; return the process's exit status."""
    server = Server(app, config, listener, tls)
    # The interpreter's switch interval stays at its default of 5 ms. Measured with 2, 0.5 and 0.1 ms: 16 synchronous
    # producers got 10 to 25 % less through, and neither a lone producer nor one beside large requests waited less.
    # Objects that exist now live as long as the process; the garbage collector need not visit them again.
    _keep_freed_memory()
    _use_small_pages()
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)
    gc.enable()
    server.run(sockets=[listener])
    return 0 if server.started else 1


def _keep_freed_memory() -> None:
    """Let the C library keep some freed memory: the pages of fresh memory cost more than the work on them.

    glibc asks the system for every block from 128 KiB on, and gives it back at once. Each answer to a Kafka fetch then
    takes three times as long (measured: a batch of 6,400 records in 2.2 ms and 0.7 ms). Other C libraries, and values
    that an environment variable sets, stay as they are.
    """
    if any(name.startswith("MALLOC_") for name in os.environ):
        return
    with contextlib.suppress(OSError, AttributeError):
        library = ctypes.CDLL(None)
        library.mallopt(_M_MMAP_THRESHOLD, _OWN_MAPPING_BYTES)
        library.mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES)


def _use_small_pages() -> None:
    """Let the kernel give this process no huge pages, which Arrow's allocator asks for.

    A row group that is read from a file lies in some forty blocks. In fresh memory each touches a huge page of its own,
    which the kernel clears as a whole (measured: 24,000 rows in 32 ms and 7 ms). Nothing changes on other systems, nor
    if the environment says which pages Arrow's allocator takes.
    """
    if not _PAGE_SETTINGS.isdisjoint(os.environ):
        return
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_THP_DISABLE, 1, 0, 0, 0)


class Server(uvicorn.Server):
    """uvicorn's server, which also prints our ready line and exits with status 0 after a signal."""

    def __init__(self, app: App, config: Config, listener: socket.socket, tls: ssl.SSLContext | None = None) -> None:
        self._app = app
        self._tls = tls
        self._ending = asyncio.Event()
        self._connections_max = config.service.connections_max
        scheme = "http" if tls is None else "https"
        self._ready_line = f"serving {_url(listener, scheme)} warehouse {config.warehouse.uri}"
        app.address = _reachable(listener, scheme)
        settings = config.service
        protocol = partial(
            HttpProtocol,
            connections_max=settings.connections_max,
            header_section_s=app.ports.header_section_s,
            answer_look_s=app.ports.answer_look_s,
        )
        super().__init__(
            uvicorn.Config(
                _measured(app, settings.slow_request_ms / 1_000),
                loop="uvloop",
                http=protocol,  # type: ignore[arg-type] # uvicorn calls it, as it would the class
                ws="none",
                lifespan="on",
                log_config=None,
                access_log=False,
                server_header=False,
                date_header=False,
                headers=[(name.decode(), value.decode()) for name, value in SECURITY_HEADERS],
                proxy_headers=False,
                timeout_keep_alive=settings.keep_alive_s,
                timeout_graceful_shutdown=max(1, -(-settings.drain_ms // 1000)),
                backlog=BACKLOG,
            )
        )

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start the service, then listen: uvicorn's own version counts no TLS handshakes, and gives each a minute."""
        assert sockets is not None, "the port was taken before"
        await self.lifespan.startup()
        if self.lifespan.should_exit:
            sys.exit(_NOT_STARTED)
        # uvicorn closes them, and waits for that; it needs no more of a server.
        self.servers = [await self._listen(taken) for taken in sockets]  # type: ignore[misc] # both have its methods
        self.started = True
        self.announce()

    async def _listen(self, listener: socket.socket) -> asyncio.AbstractServer | TlsServer:
        if self._tls is None:
            return await asyncio.get_running_loop().create_server(self._protocol, sock=listener, backlog=BACKLOG)
        make, room = self._protocol, self._room
        server = TlsServer(listener, self._tls, make, room=room, within_s=HANDSHAKE_S, farewell_s=FAREWELL_S)
        server.start()
        return server

    def _room(self) -> int:
        return self._connections_max - len(self.server_state.connections)

    def _protocol(self) -> asyncio.Protocol:
        make = self.config.http_protocol_class
        return make(config=self.config, server_state=self.server_state, app_state=self.lifespan.state)  # type: ignore[call-arg] # the type lacks them

    def announce(self) -> None:
        """Print on standard output that requests are served, and where."""
        print(self._ready_line, flush=True)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Drain at SIGTERM and SIGINT; at a second signal, stop without waiting for requests under way.

        uvicorn's own version raises the signal again at the end, so that the process would not exit with 0.
        """
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_signal, number)
        try:
            yield
        finally:
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.remove_signal_handler(number)

    async def main_loop(self) -> None:
        """Wait for the end: uvicorn's own version looks for it ten times a second, also in a service that rests."""
        await self.on_tick(0)
        await self._ending.wait()

    def _on_signal(self, number: signal.Signals) -> None:
        log.info("event=stopping signal=%s", number.name)
        if self.should_exit:
            self.force_exit = True
        self.end()

    def end(self) -> None:
        """Answer the requests under way, and stop."""
        self.should_exit = True
        self._ending.set()
        if self._app.service is not None:
            self._app.service.begin_stop()


def _measured(app: App, slow_s: float) -> Application:
    return app if not slow_s and app.traces is None else MeasuredRequests(app, slow_s, app.traces)


def bind(config: Config) -> socket.socket:
    """Return a listening socket, so that the port is known and taken before anything else happens."""
    return listening(config.service.host, config.service.port, field="service.port")


def _url(listener: socket.socket, scheme: str) -> str:
    host, port = listener.getsockname()[:2]
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


def _reachable(listener: socket.socket, scheme: str) -> str:
    """Return the URL for other machines; a socket that listens everywhere goes by the host name."""
    host, port = listener.getsockname()[:2]
    everywhere = ipaddress.ip_address(host).is_unspecified
    return f"{scheme}://{socket.getfqdn()}:{port}" if everywhere else _url(listener, scheme)


def _check_open_access(config: Config) -> None:
    """Refuse to listen for other machines without protection, unless a setting allows it (SPEC SEC-8)."""
    settings = config.service
    if settings.allow_open_access or is_loopback(settings.host):
        return
    missing = _unprotected(settings)
    if missing:
        raise Refused(
            f"service.host {settings.host} can be reached from elsewhere, and {'; '.join(missing)}. Or listen on "
            "127.0.0.1, or set service.allow_open_access behind a proxy that protects it",
            field="service.host",
        )


def _check_issuer(config: Config) -> None:
    if config.oidc.issuer and not config.service.auth:
        raise Refused(
            "oidc.issuer is set, but no request needs a token: set service.auth, or no issuer", field="oidc.issuer"
        )


def _unprotected(settings: ServiceSettings) -> list[str]:
    missing = []
    if not settings.auth:
        missing.append("there is no authentication: set service.auth")
    if not settings.tls_cert:
        missing.append("there is no TLS: set service.tls_cert and service.tls_key")
    return missing


def _warn_of_open_access(config: Config) -> None:
    settings = config.service
    if not settings.auth:
        log.warning("event=open_access detail='anyone who can reach this port may do everything: set service.auth'")
    elif not settings.cluster_secret:
        log.warning(
            "event=cluster_secret_missing detail='processes of one warehouse cannot ask each other, and handles are"
            " signed with a secret in the warehouse: set service.cluster_secret'"
        )
    if settings.auth and settings.clusters and not settings.clusters_shared_secret:
        log.warning(
            "event=global_topics_refused detail='clusters cannot prove to each other which principal calls, and topics"
            " of several clusters (service.clusters) are refused: set service.clusters_shared_secret, the same in each'"
        )
