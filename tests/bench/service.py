"""The service under test: a process of its own, started as users start it, on a free port."""

from __future__ import annotations

import json
import os
import platform
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, urlsplit

import psutil

from tests.bench.load import Address, Connection, LoadError, request

__all__ = ["Service", "running_service"]

_COMMAND: Final = "from deltamq.api.command import serve_command; serve_command()"
_STOP_S: Final = 60


class Service:
    """A running service."""

    def __init__(self, process: subprocess.Popen[str], address: Address) -> None:
        self.address = address
        self.pid = process.pid
        #: Whether its end is the benchmark's own doing.
        self.is_gone = False
        self._about = psutil.Process(process.pid)

    def call(self, method: str, path: str, body: object = None) -> Any:
        """A JSON call; the answer's JSON."""
        raw = b"" if body is None else json.dumps(body).encode()
        # a connection for each call: between two of them the service may have closed an idle one
        connection = Connection(self.address)
        try:
            answer = connection.exchange(request(method, path, kind="application/json" if raw else "", body=raw))
            if answer.status >= 300:
                raise LoadError(f"{method} {path}: {answer.status} {bytes(answer.body)!r}")
            return json.loads(bytes(answer.body))
        finally:
            connection.close()

    def make_topic(self, topic: str, partitions: int) -> list[str]:
        """A new topic; its partitions' names."""
        view = self.call("PUT", f"/v1/topics/{topic}", {"partitions": partitions})
        return [p["partition"] for p in view["partitions"]]

    def stored(self, topic: str) -> dict[str, int]:
        """The end offset of each partition."""
        view = self.call("GET", f"/v1/topics/{topic}")
        return {p["partition"]: p["max_offset"] for p in view["partitions"]}

    def cpu_s(self) -> float:
        """Seconds of CPU used so far; on Linux to the microsecond, elsewhere to its clock's tick."""
        if platform.system() == "Linux":
            return time.clock_gettime(~self.pid << 3 | 2)  # clock_getcpuclockid(3), which Python does not have
        times = self._about.cpu_times()
        return float(times.user + times.system)

    def rss_mib(self) -> float:
        """Resident memory now."""
        return float(self._about.memory_info().rss) / 2**20


def fetch_path(topic: str, partition: str, **query: int | str) -> str:
    """The path of one fetch."""
    asked = "&".join(f"{name}={value}" for name, value in query.items())
    return f"/v1/topics/{quote(topic, safe='')}/partitions/{quote(partition, safe='')}/messages?{asked}"


@contextmanager
def running_service(
    folder: Path,
    settings: Mapping[str, str] | None = None,
    *,
    brokers: Sequence[str] = (),
    warehouse: str = "",
    log: str = "service.log",
) -> Iterator[Service]:
    """The service on the warehouse in `folder`, or on another one; its log is in `folder`.

    `settings` are variables of its environment, `brokers` what it is there for.

    On the way out it is asked to stop and has to end with status 0, unless it was killed.
    """
    environment = {name: value for name, value in os.environ.items() if not name.startswith("DELTAMQ_")}
    flags = [flag for broker in brokers for flag in ("--broker", broker)]
    written = folder / log
    where = warehouse or str(folder / "warehouse")
    with written.open("wb") as errors:
        process = subprocess.Popen(
            [sys.executable, "-c", _COMMAND, "--warehouse", where, "--port", "0", *flags],
            env={**environment, **(settings or {})},
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        )
    try:
        service = Service(process, _address(process, written))
        yield service
    finally:
        _stop(process)
    if process.returncode != 0 and not service.is_gone:
        raise LoadError(f"the service ended with {process.returncode}: {_last_lines(written)}")


def _address(process: subprocess.Popen[str], log: Path) -> Address:
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line.startswith("serving "):
        process.wait(_STOP_S)
        raise LoadError(f"the service did not start: {line!r} {_last_lines(log)}")
    url = urlsplit(line.split()[1])
    assert url.hostname is not None and url.port is not None
    return url.hostname, url.port


def _last_lines(log: Path) -> str:
    return log.read_text(errors="replace")[-2000:]


def _stop(process: subprocess.Popen[str]) -> None:
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(_STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    if process.stdout is not None:
        process.stdout.close()


def cores_used(service: Service, began: tuple[float, float, float]) -> dict[str, float]:
    """Cores that service and client used since `cores_mark`."""
    elapsed = time.perf_counter() - began[0]
    return {
        "server_cores": (service.cpu_s() - began[1]) / elapsed,
        "client_cores": (time.process_time() - began[2]) / elapsed,
    }


def cores_mark(service: Service) -> tuple[float, float, float]:
    """Where `cores_used` counts from."""
    return time.perf_counter(), service.cpu_s(), time.process_time()
