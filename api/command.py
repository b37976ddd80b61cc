"""The command `deltamq serve`, in a process that has no use for pandas."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import click


@click.command("serve", help="Run the service until SIGTERM.")
@click.option("--profile", default=None, help="Settings from conf/<profile>.toml.")
@click.option("--warehouse", default=None, help="Folder or URL of the tables.")
@click.option("--host", default=None, help="Address to listen on.")
@click.option("--port", type=click.IntRange(0, 65535), default=None, help="Port; 0 takes a free one.")
@click.option("--kafka-port", type=click.IntRange(0, 65535), default=None, help="Port for Kafka's clients; 0 for none.")
@click.option("--broker", "brokers", multiple=True, help="Broker that this process should serve; may be repeated.")
@click.option("--address", default=None, help="URL under which clients and other processes reach this one.")
def serve_command(
    profile: str | None,
    warehouse: str | None,
    host: str | None,
    port: int | None,
    kafka_port: int | None,
    brokers: tuple[str, ...],
    address: str | None,
) -> None:
    """Run the service until SIGTERM."""
    flags: dict[str, str | int | list[str] | None] = {
        "warehouse.uri": warehouse,
        "service.host": host,
        "service.port": port,
        "service.kafka_port": kafka_port,
        "service.brokers": list(brokers) or None,
        "service.address": address,
    }
    # Next to nothing of what a start makes is garbage; `run` lets the collector begin.
    gc.disable()
    with _without("pandas", "httpx._main"):
        from deltamq.api.serve import serve

        serve(profile, flags)


@contextmanager
def _without(*names: str) -> Iterator[None]:
    """Let nobody find these modules, and so import them; what would use them does without.

    With its first array pyarrow imports pandas, if it is installed. The service does not use it, and it would take
    35 MiB of 193 there and half a second of each start. httpx imports its command, and with it a hundred modules that
    write to terminals.
    """

    class Missing:
        @staticmethod
        def find_spec(name: str, path: object = None, target: object = None) -> None:
            if name in names:
                raise ModuleNotFoundError(f"the service does not use {name}", name=name)

    sys.meta_path.insert(0, Missing)
    try:
        yield
    finally:
        sys.meta_path.remove(Missing)
