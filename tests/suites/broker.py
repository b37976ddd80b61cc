"""A real service with a Kafka port on a temporary warehouse, as a user starts it, for one suite."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

import msgspec
from confluent_kafka.admin import AdminClient
from msgspec.structs import replace

from tests.certificates import Authority
from tests.free_ports import free_port

__all__ = ["Broker", "guarded_broker", "running_broker", "tls_too"]

_START_S: Final = 120
_STOP_S: Final = 60
_DELTAMQ: Final = str(Path(sys.executable).with_name("deltamq"))


class Broker(msgspec.Struct, frozen=True):
    """Where the service listens for Kafka's clients; `localhost` is the name that it tells them, too."""

    port: int
    #: Where it serves HTTP.
    url: str
    #: The key of an administrator, if the service wants one.
    key: str = ""
    #: Where the authority's certificate and the client's with its key are, if it speaks TLS, too.
    tls: Path | None = None

    @property
    def address(self) -> str:
        """HOST:PORT."""
        return f"localhost:{self.port}"

    def node_id(self) -> int:
        """Return its number, as an open service tells it to clients."""
        (node,) = AdminClient({"bootstrap.servers": self.address}).list_topics(timeout=_START_S).brokers
        return int(node)


@contextlib.contextmanager
def running_broker(log: Path, settings: Mapping[str, str], port: int = 0, tls: Path | None = None) -> Iterator[Broker]:
    """Run a service until the block ends, on a free port if none is given; its own log goes into a file.

    `tls` is the folder of certificates that the broker names.
    """
    with (
        tempfile.TemporaryDirectory(prefix="deltamq-suites-") as folder,
        _running(log, settings, port or free_port(), f"{folder}/warehouse") as broker,
    ):
        yield replace(broker, tls=tls)


def tls_too(authority: Authority) -> dict[str, str]:
    """Return the settings of a service whose port for Kafka's clients takes those with TLS, too, and sign for both."""
    pair, _ = authority.server(), authority.client("client")
    return {"service_tls_cert": pair.cert, "service_tls_key": pair.key, "service_kafka_tls": "optional"}


@contextlib.contextmanager
def guarded_broker(log: Path, port: int, keytab: str = "") -> Iterator[Broker]:
    """Run a service that lets nobody in without a key, until the block ends.

    With the keytab of its service the administrator `client` may show a Kerberos ticket instead.
    """
    with tempfile.TemporaryDirectory(prefix="deltamq-suites-") as folder:
        warehouse = f"{folder}/warehouse"
        command = [_DELTAMQ, "auth", "init", "--warehouse", warehouse, "--principal"]
        key, _ = (
            subprocess.run([*command, name], check=True, stdout=subprocess.PIPE, text=True).stdout.strip()
            for name in ("admin", "client")
        )
        settings = {"service_auth": "true", "service_kafka_kerberos_keytab": keytab}
        with _running(log, settings, port, warehouse) as broker:
            yield replace(broker, key=key)


@contextlib.contextmanager
def _running(log: Path, settings: Mapping[str, str], port: int, warehouse: str) -> Iterator[Broker]:
    env = {**os.environ, **{f"DELTAMQ_{name.upper()}": value for name, value in settings.items()}}
    env["DELTAMQ_SERVICE_KAFKA_ADDRESS"] = f"localhost:{port}"
    with log.open("w") as err:
        flags = ["--port", "0", "--kafka-port", str(port), "--warehouse", warehouse]
        command = ["nice", "-n", "10", _DELTAMQ, "serve", *flags]
        process = subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=err, text=True)
        try:
            yield Broker(port, _served_url(process, log))
        finally:
            process.terminate()
            try:
                process.wait(_STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _served_url(process: subprocess.Popen[str], log: Path) -> str:
    """Wait until it serves, and return where."""
    assert process.stdout is not None
    watch = threading.Timer(_START_S, process.kill)
    watch.start()
    try:
        for line in process.stdout:
            if line.startswith("serving "):
                url = line.split()[1]
                break
        else:
            raise RuntimeError(f"the service did not start; its log is {log}")
    finally:
        watch.cancel()
    # what it prints later must not fill the pipe
    threading.Thread(target=process.stdout.read, daemon=True).start()
    return url
