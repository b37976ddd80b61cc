"""One process of `deltamq worker`: a consumer for each handler, a loop for coroutines, health and metrics."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, ClassVar, Final, Self

from deltamq.mq.client.http.calls import ClientAccess
from deltamq.mq.client.messages.received import Result
from deltamq.mq.client.pop.consumer import PopConsumer
from deltamq.mq.client.worker.handlers import Declared
from deltamq.mq.errors import DeltaMQError

#: Counters of a consumer's statistics, by their labels in the metrics.
_OUTCOMES: Final = ("ok", "retried", "dead", "released", "expired")
#: Seconds between two looks for a consumer that has ended.
_LOOK_S: Final = 0.2


class LoopThread:
    """An event loop in a thread: handlers that are coroutines run there, together."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="deltamq-handlers", daemon=True)
        self._thread.start()

    def wait(self, awaitable: Awaitable[Result | None]) -> Result | None:
        """Run a coroutine; returns its result, or raises its error."""

        async def run() -> Result | None:
            return await awaitable

        return asyncio.run_coroutine_threadsafe(run(), self._loop).result()

    def close(self) -> None:
        """End the loop; no coroutine runs any more."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


class Worker:
    """Runs handlers until `stop`; closing finishes those that run.

    Parameters
    ----------
    declared
        The handlers; each gets a consumer of its own, so one that is slow does not hold up another.
    """

    def __init__(self, declared: Sequence[Declared], url: str, access: ClientAccess) -> None:
        self._loop = LoopThread()
        self._stopped = threading.Event()
        self._consumers: list[tuple[Declared, PopConsumer]] = []
        try:
            for each in declared:
                self._consumers.append((each, self._consumer(each, url, access)))
        except BaseException:
            self.close()
            raise

    def _consumer(self, declared: Declared, url: str, access: ClientAccess) -> PopConsumer:
        options = declared.options
        return PopConsumer(
            url,
            declared.group,
            declared.topics,
            partial(declared.handle, awaits=self._loop.wait),
            concurrency=options.concurrency,
            order=options.order,
            tags=options.tags,
            filter=options.filter,
            invisible_ms=options.invisible_ms,
            renew_for_s=options.renew_for_s,
            **access,
        )

    def stop(self) -> None:
        """Make `run` end; returns at once, also from a signal handler."""
        self._stopped.set()

    def run(self) -> None:
        """Consume until `stop`, then close.

        Raises
        ------
        DeltaMQError
            The service refuses one of the consumers for good.
        """
        for _, consumer in self._consumers:
            consumer.start()
        error: DeltaMQError | None = None
        while error is None and not self._stopped.wait(_LOOK_S):
            error = next((consumer.error for _, consumer in self._consumers if consumer.error is not None), None)
        self.close()
        if error is not None:
            raise error

    def close(self) -> None:
        """Take no more messages, finish those that are handled, and acknowledge them."""
        threads = [threading.Thread(target=consumer.close) for _, consumer in self._consumers]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self._consumers.clear()
        self._loop.close()

    def metrics(self) -> str:
        """Return the counts of each handler in Prometheus' text format."""
        lines = ["# TYPE deltamq_worker_messages_total counter"]
        held = ["# TYPE deltamq_worker_held_messages gauge"]
        for declared, consumer in list(self._consumers):
            stats = consumer.stats()
            about = f'handler="{declared.name}",group="{declared.group}"'
            lines += [
                f'deltamq_worker_messages_total{{{about},outcome="{outcome}"}} {getattr(stats, outcome)}'
                for outcome in _OUTCOMES
            ]
            held.append(f"deltamq_worker_held_messages{{{about}}} {stats.held}")
        return "\n".join((*lines, *held, ""))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._consumers:
            self.close()


@contextmanager
def observed(worker: Worker, host: str, port: int) -> Iterator[int]:
    """Serve `/healthz` and `/metrics` of a worker until the block ends; yields the port."""

    class Answers(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        texts: ClassVar = {"/healthz": lambda: "alive\n", "/metrics": worker.metrics}

        def do_GET(self) -> None:
            text = self.texts.get(self.path)
            body = b"no such page\n" if text is None else text().encode()
            self.send_response(404 if text is None else 200)
            self.send_header("content-type", "text/plain; version=0.0.4; charset=utf-8")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            """Log nothing: a scrape every few seconds is no event."""

    server = ThreadingHTTPServer((host, port), Answers)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, name="deltamq-metrics", daemon=True)
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
