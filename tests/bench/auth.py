"""What authentication costs: the same requests with keys and 100 rules beside those of a service without (SPEC SEC-2).

`auth.beside` runs two services at once, one of which is asked at a time, in slices that alternate: what else the
machine does meets both. Requests are as small as they get, since the check costs the same for each. `cpu` is the ratio
of the services' CPU for one request, which does not mind others as much as the rate does; a check's time and that of a
start are CPU time, too.
"""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final

from api.auth import Gate
from mq.auth import AccessRule, AuthEvent, Key, Principal, new_key, rule_of
from mq.auth.rule import VERBS
from mq.auth.state import AclPut, AuthState, KeyPut, PrincipalPut
from tables.log import Warehouse
from tables.queue import MetaLog
from tests.bench.figure import Figure
from tests.bench.load import Connection, checked, in_parallel, request
from tests.bench.payloads import arrow_stream, json_request, record_batch
from tests.bench.produce import ARROW
from tests.bench.registry import bench
from tests.bench.service import Service, fetch_path, running_service
from tests.bench.session import Session, Window

__all__ = ["beside", "start"]

_JSON: Final = "application/json"
_CLIENTS: Final = 4
_RULES: Final = 100
_PRINCIPALS: Final = 1_000
_ALL_RULES: Final = 10_000
#: Slices of a window for each service.
_SLICES: Final = 4
_AUTH: Final = {"DELTAMQ_SERVICE_AUTH": "true"}
_NOW_MS: Final = 1_700_000_000_000
#: Checks in one measurement.
_CHECKS: Final = 2_000


@dataclass
class _Side:
    """One of the two services, and how it is asked."""

    service: Service
    headers: Mapping[str, str]
    partition: str = ""
    group: int = 0
    handles: dict[int, bytes] = field(default_factory=dict)

    def ask(self, connection: Connection, method: str, path: str, body: bytes = b"", kind: str = _JSON) -> bytes:
        """Return the answer's body; raise if it is no success."""
        sent = request(method, path, kind=kind if body else "", body=body, **self.headers)
        return bytes(checked(connection.exchange(sent)).body)

    def fill(self, messages: int) -> None:
        """Make the topic, and store messages in it."""
        connection = Connection(self.service.address)
        made = connection.exchange(
            request("PUT", "/v1/topics/bench", kind=_JSON, body=b'{"partitions":1}', **self.headers)
        )
        assert made.status == 201, bytes(made.body)
        self.partition = "bench@broker-a"
        data = arrow_stream(record_batch(10_000, 100))
        for _ in range(messages // 10_000):
            self.ask(connection, "POST", "/v1/topics/bench/messages", data, ARROW)
        connection.close()

    def produce(self, connection: Connection, client: int) -> int:
        self.ask(connection, "POST", "/v1/topics/bench/messages?flush=async", _ONE)
        return 1

    def fetch(self, connection: Connection, client: int) -> int:
        self.ask(connection, "GET", fetch_path("bench", self.partition, offset=client, max_messages=1))
        return 1

    def pop(self, connection: Connection, client: int) -> int:
        """Take one message, and acknowledge the last one."""
        held = self.handles.get(client, b"")
        body = b'{"max_messages":1,"invisible_ms":3600000,"ack":[%s]}' % held
        answer = self.ask(connection, "POST", f"/v1/groups/group-{self.group}/topics/bench/pop", body)
        start = answer.find(b'"handle":"')
        assert start >= 0, answer
        self.handles[client] = answer[start + 9 : answer.index(b'"', start + 10) + 1]
        return 1

    def begin(self) -> None:
        """Begin with another group."""
        self.group += 1
        self.handles.clear()


_ONE: Final = json_request(1, 100)


def _rules(principal: str, count: int) -> list[AccessRule]:
    """Rules of which the last ones grant what is asked for: names and beginnings of names, some denied."""
    more = [
        rule_of(
            principal=principal,
            effect="deny" if number % 5 == 0 else "allow",
            resource="topic",
            pattern=f"area-{number}.*" if number % 2 else f"topic-{number}",
            verbs=["publish", "subscribe"],
        )
        for number in range(count - len(VERBS))
    ]
    granted = [
        rule_of(principal=principal, effect="allow", resource=resource, pattern="*", verbs=verbs)
        for resource, verbs in VERBS.items()
    ]
    return [*more, *granted]


def _principal(name: str, rules: int) -> tuple[list[AuthEvent], Key, str]:
    """Return the events of a principal with a key and rules, its key, and what it sends."""
    principal = Principal(name=name, note="", created_ms=_NOW_MS)
    key, token = new_key(name, os.urandom(8), os.urandom(32), _NOW_MS)
    made: list[AuthEvent] = [
        PrincipalPut(principal=principal),
        KeyPut(made=key),
    ]
    return [*made, *(AclPut(rule=rule) for rule in _rules(name, rules))], key, token


def _store(folder: Path, events: list[AuthEvent]) -> None:
    """Store events in the metadata of a new warehouse."""
    warehouse = Warehouse.open(str(folder / "warehouse"))
    MetaLog(warehouse).submit_any(lambda _: events)
    warehouse.close()


@bench("auth.beside")
def beside(session: Session) -> Iterator[Figure]:
    """Produce, fetch and pop with keys and 100 rules against none; what one check takes."""
    yield from _check(session)
    events, _, token = _principal("bench", _RULES)
    guarded = session.fresh("auth-guarded")
    _store(guarded, events)
    with ExitStack() as both:
        plain = _Side(both.enter_context(running_service(session.fresh("auth-open"))), {})
        keyed = _Side(both.enter_context(running_service(guarded, _AUTH)), {"Authorization": f"Bearer {token}"})
        messages = min(200_000, session.effort.history_messages)
        for side in (plain, keyed):
            side.fill(messages)
        for name, step in (("produce", _Side.produce), ("fetch", _Side.fetch), ("pop", _Side.pop)):
            windows = _paired(session, (plain, keyed), step)
            how = f"{name} of one message, {_CLIENTS} clients: a key and {_RULES} rules against none, rate"
            yield session.figure_of(f"auth.beside.{name}.ratio", how, "x", "ratio", windows)
            yield session.figure_of(f"auth.beside.{name}.cpu", f"{how} of CPU for each", "x", "cpu", windows)


def _paired(
    session: Session, sides: tuple[_Side, _Side], step: Callable[[_Side, Connection, int], int]
) -> list[Window]:
    """Measure both in slices that alternate, each service first in every other one."""

    def window(seconds: float) -> dict[str, float]:
        done, elapsed, cpu_s = [0, 0], [0.0, 0.0], [0.0, 0.0]
        for side in sides:
            side.begin()
        for turn in range(2 * _SLICES):
            at = (turn + turn // 2) % 2
            side = sides[at]
            before = side.service.cpu_s()
            count, took = in_parallel(side.service.address, _CLIENTS, seconds / _SLICES, partial(step, side))
            done[at] += count
            elapsed[at] += took
            cpu_s[at] += side.service.cpu_s() - before
        rates = [done[at] / elapsed[at] for at in (0, 1)]
        each_us = [cpu_s[at] / done[at] * 1e6 for at in (0, 1)]
        return {
            "ratio": rates[1] / rates[0],
            "cpu": each_us[1] / max(each_us[0], 1e-9),
            "open_rate": rates[0],
            "guarded_rate": rates[1],
            "open_cpu_us": each_us[0],
            "guarded_cpu_us": each_us[1],
        }

    return session.windows(window)


def _check(session: Session) -> Iterator[Figure]:
    """A check in process: one that is remembered, and one for a path that was not asked for yet."""
    events, _, token = _principal("bench", _RULES)
    state = AuthState().apply_all(events)
    headers = [(b"host", b"bench"), (b"authorization", f"Bearer {token}".encode())]
    turn = [0]

    def window(_: float) -> dict[str, float]:
        gate = Gate(lambda: state, lambda: _NOW_MS)

        def timed(paths: list[bytes]) -> float:
            scopes = [{"method": "POST", "raw_path": path, "headers": headers} for path in paths]
            gc.collect()
            gc.freeze()  # as a service does when it has started (api/serve.py)
            usual = gc.get_threshold()
            gc.set_threshold(50_000, 20, 50)
            began = time.process_time()
            for scope in scopes:
                gate.admit(scope)
            took_us = (time.process_time() - began) / len(scopes) * 1e6
            gc.unfreeze()
            gc.set_threshold(*usual)
            return took_us

        turn[0] += 1
        new = [b"/v1/groups/g%d/topics/t%d-%d/pop" % (number, turn[0], number) for number in range(_CHECKS)]
        return {"new": timed(new), "remembered": timed(new[:1] * _CHECKS)}

    windows = session.windows(window)
    how = f"one check of a pop, {_RULES} rules"
    yield session.figure_of("auth.beside.check.new", f"{how}, another path each time", "us", "new", windows)
    yield session.figure_of("auth.beside.check.remembered", f"{how}, remembered", "us", "remembered", windows)


@bench("auth.start")
def start(session: Session) -> Iterator[Figure]:
    """How much longer a service starts, and how much more memory it takes, with many principals and rules."""
    events: list[AuthEvent] = []
    principals = 20 if session.effort.name == "quick" else _PRINCIPALS
    for number in range(principals):
        events += _principal(f"principal-{number}", _ALL_RULES // _PRINCIPALS)[0]
    full, empty = session.fresh("auth-full"), session.fresh("auth-empty")
    _store(full, events)
    _store(empty, _principal("alone", len(VERBS))[0])
    seconds: list[float] = []
    mib: list[float] = []
    for turn in range(session.effort.windows + 1):
        found = {}
        for folder in (full, empty) if turn % 2 else (empty, full):
            began = time.perf_counter()
            with running_service(folder, _AUTH) as service:
                found[folder] = time.perf_counter() - began, service.rss_mib(), service.cpu_s()
        if turn:  # the first pair reads files for the first time
            seconds.append(found[full][2] - found[empty][2])
            mib.append(found[full][1] - found[empty][1])
            took = found[full][0] - found[empty][0]
    how = f"{principals:,} principals, {len(events) - 2 * principals:,} rules against one principal, at a start"
    yield session.figure("auth.start.cpu", f"{how}: more CPU", "s", seconds, last_took_s=round(took, 3))
    yield session.figure("auth.start.memory", f"{how}: more memory", "MiB", mib)
