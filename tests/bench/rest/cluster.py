"""Two processes on one warehouse and one machine: what a second one adds to produce, and how long a dead one is missed.

Produce: two broker's partitions get requests of 100 messages from 64 clients each, served by one process or by a
process for each broker; clients are a process of their own for each broker, so that they do not wait for each other.
Missed: the time from SIGKILL of a broker's process to the first answer to a pop of its partition, asked at the other
one all the time; both are on one machine, where nobody waits for the lease.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Final
from urllib.parse import quote

from tests.bench.figure import Figure
from tests.bench.load import Address, LoadError, request, synchronous
from tests.bench.payloads import json_request
from tests.bench.registry import bench
from tests.bench.service import Service, running_service
from tests.bench.session import Session

__all__: list[str] = []

_BROKERS: Final = ("broker-a", "broker-b")
_TOPIC: Final = "bench"
_CLIENTS: Final = 64
_MESSAGES: Final = 100
_KILLS: Final = 10
_QUICK_KILLS: Final = 1
_WITHIN_S: Final = 30.0


def _processes(stack: ExitStack, folder: Path, hosts: Sequence[Sequence[str]]) -> list[Service]:
    """A process for each of `hosts`, which is there for the brokers that it names."""
    services = [
        stack.enter_context(running_service(folder, brokers=brokers, log=f"service-{at}.log"))
        for at, brokers in enumerate(hosts)
    ]
    deadline = time.monotonic() + _WITHIN_S
    while any(_online(service) != set(_BROKERS) for service in services):
        if time.monotonic() > deadline:
            raise LoadError("the processes did not find each other")
        time.sleep(0.02)
    return services


def _online(service: Service) -> set[str]:
    return {one["broker"] for one in service.call("GET", "/v1/cluster")["brokers"] if one["online"]}


def _send(address: Address, partition: str, seconds: float) -> tuple[int, float, float]:
    """Requests answered, the seconds that passed, and those of a core that it took; in a process of its own."""
    path = f"/v1/topics/{_TOPIC}/messages?partition={quote(partition, safe='')}"
    data = request("POST", path, kind="application/json", body=json_request(_MESSAGES, 100))
    began_s = time.process_time()
    took, elapsed = synchronous(address, data, _CLIENTS, seconds)
    return len(took), elapsed, time.process_time() - began_s


class _Fleet:
    """Processes that serve both brokers, and what was sent to them."""

    def __init__(self, stack: ExitStack, folder: Path, hosts: Sequence[Sequence[str]]) -> None:
        self._services = _processes(stack, folder, hosts)
        self._services[0].make_topic(_TOPIC, len(_BROKERS))
        self._acknowledged = 0

    def window(self, executor: Executor, seconds: float) -> tuple[float, float]:
        """Messages a second, and how many cores were busy with them."""
        asked = [self._services[at % len(self._services)] for at in range(len(_BROKERS))]
        began_s, busy_s = time.perf_counter(), self._cpu_s()
        sent = [
            executor.submit(_send, service.address, f"{_TOPIC}@{broker}", seconds)
            for service, broker in zip(asked, _BROKERS, strict=True)
        ]
        done = [one.result() for one in sent]
        busy_s = self._cpu_s() - busy_s + sum(cpu_s for *_, cpu_s in done)
        self._acknowledged += sum(count for count, *_ in done) * _MESSAGES
        rate = sum(count * _MESSAGES / elapsed for count, elapsed, _ in done)
        return rate, busy_s / (time.perf_counter() - began_s)

    def _cpu_s(self) -> float:
        return sum(service.cpu_s() for service in self._services)

    def check(self) -> None:
        """What was acknowledged is stored."""
        stored = sum(self._services[0].stored(_TOPIC).values())
        if stored != self._acknowledged:
            raise LoadError(f"{self._acknowledged} messages were acknowledged, {stored} are stored")


@bench("cluster.produce")
def produce(session: Session) -> Iterator[Figure]:
    """What a second process adds: one and two in turn, since a machine is not equally fast all the time."""
    with ExitStack() as stack:
        executor = stack.enter_context(ProcessPoolExecutor(len(_BROKERS)))
        one = _Fleet(stack, session.fresh("cluster.1"), [_BROKERS])
        two = _Fleet(stack, session.fresh("cluster.2"), [(broker,) for broker in _BROKERS])

        def window(seconds: float) -> dict[str, float]:
            (alone, alone_cores), (both, both_cores) = one.window(executor, seconds), two.window(executor, seconds)
            return {
                "one": alone, "one.cores": alone_cores, "two": both, "two.cores": both_cores, "ratio": both / alone
            }  # fmt: skip

        windows = session.windows(window, warmups=2)
        one.check()
        two.check()
    said = "produce over REST to two brokers, JSON requests of 100 messages of 100 B, 128 clients, fsynced"
    busy = "cores that these and the clients keep busy"
    for name, unit, what in (
        ("one", "msg/s", "by one process"),
        ("one.cores", "cores", f"by one process: {busy}"),
        ("two", "msg/s", "by two processes"),
        ("two.cores", "cores", f"by two processes: {busy}"),
        ("ratio", "", "two processes to one, in turn"),
    ):
        yield session.figure(f"cluster.produce.{name}", f"{said}, {what}", unit, [one[name] for one in windows])


@bench("cluster.missed")
def missed(session: Session) -> Iterator[Figure]:
    """How long a killed process is missed."""
    took = []
    for number in range(_QUICK_KILLS if session.effort.name == "quick" else _KILLS):
        with ExitStack() as stack:
            other, killed = _processes(stack, session.fresh(f"cluster.missed.{number}"), [(one,) for one in _BROKERS])
            other.make_topic(_TOPIC, len(_BROKERS))
            path, ask = f"/v1/groups/billing/topics/{_TOPIC}/pop", {"partition": f"{_TOPIC}@{_BROKERS[1]}"}
            killed.call("POST", path, ask)
            os.kill(killed.pid, signal.SIGKILL)
            killed.is_gone = True
            began = time.perf_counter()
            while not _answers(other, path, ask):
                if time.perf_counter() - began > _WITHIN_S:
                    raise LoadError("nobody took the broker over")
            took.append((time.perf_counter() - began) * 1e3)
    yield session.figure("cluster.missed.took", "SIGKILL of a broker's process to a pop's answer there", "ms", took)


def _answers(service: Service, path: str, ask: dict[str, str]) -> bool:
    try:
        service.call("POST", path, ask)
    except LoadError:
        return False
    return True
