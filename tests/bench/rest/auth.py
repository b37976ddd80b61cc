"""What authentication costs: the same requests with keys and 100 rules beside those of a service without (SPEC SEC-2).

`auth.beside` runs pairs of services at once, one of which is asked at a time, in slices that alternate: what else the
machine does meets both. Slices are short and many, and each two of them give one ratio. Requests are as small as they
get, since the check costs the same for each. `cpu` is the ratio of the services' CPU for one request, which does not
mind others as much as the rate does; a check's time and that of a start are CPU time, too.
"""

from __future__ import annotations

import gc
import hashlib
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from itertools import cycle
from pathlib import Path
from statistics import median
from typing import Final, NamedTuple

from msgspec.structs import replace

from deltamq.api.auth.gate import Gate
from deltamq.mq.auth.changes import decide_put_key, decide_put_principal, decide_put_rule
from deltamq.mq.auth.keys import Key, new_key
from deltamq.mq.auth.principals import VERBS, AccessRule, Principal, rule_of
from deltamq.mq.auth.state import AclPut, AuthEvent, AuthState, KeyPut, PrincipalPut
from deltamq.mq.limits import KEY_ID_BYTES, SECRET_BYTES
from deltamq.mq.meta.fold import Meta
from deltamq.tables.log.warehouse import Warehouse
from deltamq.tables.queue.metadata import MetaLog
from tests.bench.figure import Figure
from tests.bench.load import Answer, Connection, checked, request, together
from tests.bench.payloads import arrow_stream, json_request, record_batch
from tests.bench.registry import bench
from tests.bench.rest.produce import ARROW
from tests.bench.service import Service, fetch_path, running_service
from tests.bench.session import Session, Window

__all__ = ["beside", "start"]

_JSON: Final = "application/json"
_CLIENTS: Final = 4
_RULES: Final = 100
_PRINCIPALS: Final = 1_000
_ALL_RULES: Final = 10_000
#: How long one service is asked before the other is: long beside a request, short beside what disturbs.
_SLICE_S: Final = 0.1
#: Two processes of the same code differ by up to 4 % of CPU for a request, so there are several pairs of services.
_PAIRS: Final = 3
#: A window is so many times longer than those of other benchmarks: a ratio near 1 is wanted to the percent.
_LONGER: Final = 3
_AUTH: Final = {"DELTAMQ_SERVICE_AUTH": "true"}
_NOW_MS: Final = 1_700_000_000_000
#: Principals that are made by one append to the metadata.
_IN_ONE_APPEND: Final = 100
#: Starts of each service in one window, of which the least counts: what else the machine does only adds to one.
_STARTS: Final = 3
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
    connections: list[Connection] = field(default_factory=list)
    _produce: bytes = b""
    _fetches: list[bytes] = field(default_factory=list)

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
        self._produce = request(
            "POST", "/v1/topics/bench/messages?flush=async", kind=_JSON, body=_ONE, accept="", **self.headers
        )
        paths = [fetch_path("bench", self.partition, offset=client, max_messages=1) for client in range(_CLIENTS)]
        self._fetches = [request("GET", path, body=b"", **self.headers) for path in paths]
        self.connections = [Connection(self.service.address) for _ in range(_CLIENTS)]

    def produce(self, client: int) -> bytes:
        return self._produce

    def fetch(self, client: int) -> bytes:
        return self._fetches[client]

    def pop(self, client: int) -> bytes:
        """Take one message, and acknowledge the last one."""
        body = b'{"max_messages":1,"invisible_ms":3600000,"ack":[%s]}' % self.handles.get(client, b"")
        path = f"/v1/groups/group-{self.group}/topics/bench/pop"
        return request("POST", path, kind=_JSON, body=body, **self.headers)

    def ignore(self, client: int, answer: Answer) -> None:
        """What was produced or fetched."""

    def popped(self, client: int, answer: Answer) -> None:
        """Remember what is to be acknowledged."""
        body = bytes(answer.body)
        start = body.find(b'"handle":"')
        assert start >= 0, body
        self.handles[client] = body[start + 9 : body.index(b'"', start + 10) + 1]

    def begin(self) -> None:
        """Begin with another group."""
        self.group += 1
        self.handles.clear()


_Pair = tuple[_Side, _Side]
_Ask = Callable[[_Side, int], bytes]
_Take = Callable[[_Side, int, Answer], None]
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
    with ExitStack() as all_of_them:
        pairs = []
        for _ in range(_PAIRS):
            guarded = session.fresh("auth-guarded")
            _store(guarded, events)
            plain = _Side(all_of_them.enter_context(running_service(session.fresh("auth-open"))), {})
            service = all_of_them.enter_context(running_service(guarded, _AUTH))
            pairs.append((plain, _Side(service, {"Authorization": f"Bearer {token}"})))
            for side in pairs[-1]:
                side.fill(min(100_000, session.effort.history_messages))
        for name, ask, take in (
            ("produce", _Side.produce, _Side.ignore),
            ("fetch", _Side.fetch, _Side.ignore),
            ("pop", _Side.pop, _Side.popped),
        ):
            windows = _paired(session, pairs, ask, take)
            how = f"{name} of one message, {_CLIENTS} clients: a key and {_RULES} rules against none, rate"
            yield session.figure_of(f"auth.beside.{name}.ratio", how, "x", "ratio", windows)
            yield session.figure_of(f"auth.beside.{name}.cpu", f"{how} of CPU for each", "x", "cpu", windows)


class _Slice(NamedTuple):
    """What one service did in one slice."""

    rate: float
    cpu_us: float


def _slice(side: _Side, ask: _Ask, take: _Take) -> _Slice:
    before = side.service.cpu_s()
    took_ms, elapsed = together(side.connections, partial(ask, side), _SLICE_S, partial(take, side))
    return _Slice(len(took_ms) / elapsed, (side.service.cpu_s() - before) / len(took_ms) * 1e6)


def _paired(session: Session, pairs: Sequence[_Pair], ask: _Ask, take: _Take) -> list[Window]:
    """Measure two services in short slices that alternate, each first in every other turn; the next window, other two.

    A window's ratio is the median of those of its turns: what disturbs one slice disturbs one turn.
    """
    next_pair = cycle(pairs)

    def window(seconds: float) -> dict[str, float]:
        sides = next(next_pair)
        for side in sides:
            side.begin()
        turns: list[tuple[_Slice, _Slice]] = []
        for turn in range(max(1, round(_LONGER * seconds / (2 * _SLICE_S)))):
            first, second = sides if turn % 2 == 0 else sides[::-1]
            found = {id(side): _slice(side, ask, take) for side in (first, second)}
            turns.append((found[id(sides[0])], found[id(sides[1])]))
        return {
            "ratio": median(guarded.rate / plain.rate for plain, guarded in turns),
            "cpu": median(guarded.cpu_us / plain.cpu_us for plain, guarded in turns),
            "open_rate": median(plain.rate for plain, _ in turns),
            "guarded_rate": median(guarded.rate for _, guarded in turns),
            "open_cpu_us": median(plain.cpu_us for plain, _ in turns),
            "guarded_cpu_us": median(guarded.cpu_us for _, guarded in turns),
        }

    return session.windows(window, warmups=len(pairs))


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


def _store_many(folder: Path, principals: int) -> int:
    """Give a new warehouse principals with a key and rules each, as an administrator would; return the rules."""
    warehouse = Warehouse.open(str(folder / "warehouse"))
    meta = MetaLog(warehouse)
    # Deriving what is stored for SCRAM takes some milliseconds, and is as long for each key.
    like = new_key("like", bytes(KEY_ID_BYTES), bytes(SECRET_BYTES), _NOW_MS)[0]
    names = [f"principal-{number}" for number in range(principals)]
    for beginning in range(0, principals, _IN_ONE_APPEND):
        some = names[beginning : beginning + _IN_ONE_APPEND]
        meta.submit_any(partial(_decide_many, names=some, like=like))
    rules = len(meta.meta.auth.rules)
    warehouse.close()
    return rules


def _decide_many(meta: Meta, names: Sequence[str], like: Key) -> list[AuthEvent]:
    """Return the events that make these principals, each with a key and rules."""
    state, decided = meta.auth, list[AuthEvent]()

    def decide(events: Sequence[AuthEvent]) -> None:
        nonlocal state
        state = state.apply_all(events)
        decided.extend(events)

    for name in names:
        secret = hashlib.sha256(name.encode()).hexdigest()
        decide(decide_put_principal(state, name, "", _NOW_MS))
        decide(decide_put_key(state, replace(like, id=secret[: 2 * KEY_ID_BYTES], principal=name, digest=secret)))
        for rule in _rules(name, _ALL_RULES // _PRINCIPALS):
            decide(decide_put_rule(state, rule))
    return decided


@bench("auth.start")
def start(session: Session) -> Iterator[Figure]:
    """How much longer a service starts, and how much more memory it takes, with many principals and rules."""
    principals = 20 if session.effort.name == "quick" else _PRINCIPALS
    full, empty = session.fresh("auth-full"), session.fresh("auth-empty")
    rules = _store_many(full, principals)
    _store(empty, _principal("alone", len(VERBS))[0])

    def window(_: float) -> dict[str, float]:
        found: dict[Path, list[tuple[float, float, float]]] = {empty: [], full: []}
        for _ in range(_STARTS):
            for folder, starts in found.items():
                began = time.perf_counter()
                with running_service(folder, _AUTH) as service:
                    starts.append((time.perf_counter() - began, service.cpu_s(), service.rss_mib()))
        took_s, cpu_s, mib = map(min, zip(*found[full], strict=True))
        empty_s, empty_cpu_s, empty_mib = map(min, zip(*found[empty], strict=True))
        return {
            "cpu": cpu_s - empty_cpu_s,
            "memory": mib - empty_mib,
            "took": took_s - empty_s,
            "cpu_s": cpu_s,
            "empty_cpu_s": empty_cpu_s,
            "took_s": took_s,
            "empty_took_s": empty_s,
            "mib": mib,
            "empty_mib": empty_mib,
        }

    windows = session.windows(window)
    how = f"{principals:,} principals, {rules:,} rules against one principal, at a start"
    yield session.figure_of("auth.start.cpu", f"{how}: more CPU", "s", "cpu", windows)
    yield session.figure_of("auth.start.memory", f"{how}: more memory", "MiB", "memory", windows)
