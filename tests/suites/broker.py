"""A real service with a Kafka port on a temporary warehouse, as a user starts it, for one suite."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.free_ports import free_port

__all__ = ["Broker", "running_broker"]

_START_S: Final = 120
_STOP_S: Final = 60


@dataclass(frozen=True)
class Broker:
    """Where the service listens for Kafka's clients; `localhost` is the name that it tells them, too."""

    port: int

    @property
    def address(self) -> str:
        """HOST:PORT."""
        return f"localhost:{self.port}"


@contextlib.contextmanager
def running_broker(log: Path, settings: Mapping[str, str]) -> Iterator[Broker]:
    """Run a service until the block ends; its own log goes into a file."""
    port = free_port()
    env = {**os.environ, **{f"DELTAMQ_{name.upper()}": value for name, value in settings.items()}}
    env["DELTAMQ_SERVICE_KAFKA_ADDRESS"] = f"localhost:{port}"
    with tempfile.TemporaryDirectory(prefix="deltamq-suites-") as folder, log.open("w") as err:
        flags = ["--port", "0", "--kafka-port", str(port), "--warehouse", f"{folder}/warehouse"]
        command = ["nice", "-n", "10", str(Path(sys.executable).with_name("deltamq")), "serve", *flags]
        process = subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=err, text=True)
        try:
            _wait_until_served(process, log)
            yield Broker(port)
        finally:
            process.terminate()
            try:
                process.wait(_STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _wait_until_served(process: subprocess.Popen[str], log: Path) -> None:
    assert process.stdout is not None
    watch = threading.Timer(_START_S, process.kill)
    watch.start()
    try:
        for line in process.stdout:
            if line.startswith("serving "):
                break
        else:
            raise RuntimeError(f"the service did not start; its log is {log}")
    finally:
        watch.cancel()
    # what it prints later must not fill the pipe
    threading.Thread(target=process.stdout.read, daemon=True).start()
