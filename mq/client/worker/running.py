"""One process of `deltamq worker`: a consumer for each handler, on one event loop; health and metrics."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar, Final

from deltamq.mq.client.http.calls import ClientAccess
from deltamq.mq.client.messages.received import PoppedMessage
from deltamq.mq.client.pop.consumer import AsyncPopConsumer
from deltamq.mq.client.worker.handlers import Declared

#: Counters of a consumer's statistics, by their labels in the metrics.
_OUTCOMES: Final = ("ok", "retried", "dead", "released", "expired")


class Worker:
    """Runs handlers on one event loop until `stop`; then it finishes those that run.

    Each handler gets a consumer of its own, so one that is slow does not hold up another.
    """

    def __init__(self, declared: Sequence[Declared], url: str, access: ClientAccess) -> None:
        self._consumers = [(each, self._consumer(each, url, access)) for each in declared]

    def _consumer(self, declared: Declared, url: str, access: ClientAccess) -> AsyncPopConsumer:
        async def handle(message: PoppedMessage) -> object:
            return await declared.handle(message, consumer.shell.call)

        options = declared.options
        consumer = AsyncPopConsumer(
            url,
            declared.group,
            declared.topics,
            handle,
            concurrency=options.concurrency,
            order=options.order,
            tags=options.tags,
            filter=options.filter,
            invisible_ms=options.invisible_ms,
            renew_for_s=options.renew_for_s,
            **access,
        )
        return consumer

    def stop(self) -> None:
        """Make `run` end; returns at once."""
        for _, consumer in self._consumers:
            consumer.stop()

    async def run(self) -> None:
        """Consume until `stop`, then finish and acknowledge what is handled.

        Raises
        ------
        DeltaMQError
            The service refuses one of the consumers for good.
        """
        runs = [asyncio.create_task(consumer.run()) for _, consumer in self._consumers]
        try:
            await asyncio.wait(runs, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self.stop()
            ended = await asyncio.gather(*runs, return_exceptions=True)
        for error in ended:
            if error is not None:
                raise error

    def metrics(self) -> str:
        """Return the counts of each handler in Prometheus' text format."""
        lines = ["# TYPE deltamq_worker_messages_total counter"]
        held = ["# TYPE deltamq_worker_held_messages gauge"]
        for declared, consumer in self._consumers:
            stats = consumer.stats()
            about = f'handler="{declared.name}",group="{declared.group}"'
            lines += [
                f'deltamq_worker_messages_total{{{about},outcome="{outcome}"}} {getattr(stats, outcome)}'
                for outcome in _OUTCOMES
            ]
            held.append(f"deltamq_worker_held_messages{{{about}}} {stats.held}")
        return "\n".join((*lines, *held, ""))


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
