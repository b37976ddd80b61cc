"""Two processes on one warehouse and one machine: what a second one adds to produce, and how long a dead one is missed.

Produce: two broker's partitions get requests of 100 messages from 16 clients each, served by one process or by a
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
_CLIENTS: Final = 16
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


def _send(address: Address, partition: str, seconds: float) -> tuple[int, float]:
    """Requests answered, and the seconds that passed; in a process of its own."""
    path = f"/v1/topics/{_TOPIC}/messages?partition={quote(partition, safe='')}"
    data = request("POST", path, kind="application/json", body=json_request(_MESSAGES, 100))
    took, elapsed = synchronous(address, data, _CLIENTS, seconds)
    return len(took), elapsed


def _rate(session: Session, executor: Executor, hosts: Sequence[Sequence[str]]) -> list[float]:
    """Messages a second, of each window."""
    with ExitStack() as stack:
        services = _processes(stack, session.fresh(f"cluster.{len(hosts)}"), hosts)
        services[0].make_topic(_TOPIC, len(_BROKERS))
        acknowledged = 0

        def window(seconds: float) -> dict[str, float]:
            nonlocal acknowledged
            asked = [services[at % len(services)] for at in range(len(_BROKERS))]
            sent = [
                executor.submit(_send, service.address, f"{_TOPIC}@{broker}", seconds)
                for service, broker in zip(asked, _BROKERS, strict=True)
            ]
            done = [one.result() for one in sent]
            acknowledged += sum(count for count, _ in done) * _MESSAGES
            return {"rate": sum(count * _MESSAGES / elapsed for count, elapsed in done)}

        windows = session.windows(window, warmups=2)
        stored = sum(services[0].stored(_TOPIC).values())
        if stored != acknowledged:
            raise LoadError(f"{acknowledged} messages were acknowledged, {stored} are stored")
    return [one["rate"] for one in windows]


@bench("cluster.produce")
def produce(session: Session) -> Iterator[Figure]:
    """What a second process adds."""
    said = "produce over REST to two brokers, JSON requests of 100 messages of 100 B, 32 clients, fsynced"
    with ProcessPoolExecutor(len(_BROKERS)) as executor:
        one = _rate(session, executor, [_BROKERS])
        two = _rate(session, executor, [(broker,) for broker in _BROKERS])
    yield session.figure("cluster.produce.one", f"{said}, by one process", "msg/s", one)
    yield session.figure("cluster.produce.two", f"{said}, by two processes", "msg/s", two)
    middle = [sorted(rates)[len(rates) // 2] for rates in (one, two)]
    yield session.figure("cluster.produce.ratio", f"{said}: two processes to one", "", [middle[1] / middle[0]])


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
