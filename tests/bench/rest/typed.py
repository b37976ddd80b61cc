"""Typed topics beside topics of bytes: the same bodies into both, in one service, turn about; the ratio counts.

A window sends to both in turns, for half of its time to each. Bodies are JSON of about 136 bytes with
a nested object and a list; the columns have the same fields.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator
from typing import Any, Final

import numpy as np
import pyarrow as pa

from tests.bench.figure import Figure
from tests.bench.load import Connection, checked, in_parallel, request, synchronous
from tests.bench.payloads import arrow_stream
from tests.bench.registry import bench
from tests.bench.service import Service, running_service
from tests.bench.session import Session

_PARTITIONS: Final = 4
_LINES: Final = 20_000
_ROWS: Final = 100_000
_JSON: Final = "application/json"
_NDJSON: Final = "application/x-ndjson"
_ARROW: Final = "application/vnd.apache.arrow.stream"
_DDL: Final = (
    "id STRING NOT NULL, amount BIGINT, price DOUBLE, place STRUCT<zip: STRING, city: STRING>, tags ARRAY<STRING>"
)
_SCHEMA: Final = json.dumps(
    {
        "type": "object",
        "properties": {
            "id": {"type": "string"},
            "amount": {"type": "integer"},
            "price": {"type": "number"},
            "place": {"type": "object", "properties": {"zip": {"type": "string"}, "city": {"type": "string"}}},
            "tags": {"type": "array", "items": {"type": "string"}},
        },
        "required": ["id"],
    }
)


def _value(number: int) -> dict[str, Any]:
    return {
        "id": f"order-{number:08d}",
        "amount": number * 7,
        "price": number / 8,
        "place": {"zip": f"{number % 100_000:05d}", "city": "Berlin"},
        "tags": ["a", "bb", "ccc"],
    }


def _lines(count: int, bad: Callable[[int], bool] = lambda _: False) -> bytes:
    bodies = (json.dumps({"id": number} if bad(number) else _value(number)) for number in range(count))
    return b"".join(json.dumps({"body": body}).encode() + b"\n" for body in bodies)


def _make(service: Service, form: str, on_invalid: str = "reject") -> None:
    service.make_topic("bytes", _PARTITIONS)
    schema = {"format": form, "schema": _DDL if form == "columns" else _SCHEMA, "on_invalid": on_invalid}
    service.call("PUT", "/v1/topics/typed", {"partitions": _PARTITIONS, "schema": schema})


def _in_turns(one: str, other: str, rate: Callable[[str, float], float], seconds: float) -> dict[str, float]:
    """Return both rates and their ratio: what grows or slows down within a window concerns both alike."""
    found = {one: 0.0, other: 0.0}
    for name in (one, other, other, one):
        found[name] += rate(name, seconds / 4) / 2
    return {**found, "ratio": found[other] / found[one]}


def _rates(
    session: Session,
    name: str,
    form: str,
    kind: str,
    bodies: tuple[bytes, bytes],
    count: int,
    said: str,
    **setting: str,
) -> Iterator[Figure]:
    """Compare batches: the first body goes to the topic of bytes, the second to the typed one."""
    pairs = list(zip(("bytes", "typed"), bodies, strict=True))
    calls = {topic: request("POST", f"/v1/topics/{topic}/messages", kind=kind, body=body) for topic, body in pairs}
    with running_service(session.fresh(name)) as service:
        _make(service, form, **setting)

        def rate(topic: str, seconds: float) -> float:
            def step(connection: Connection, _: int) -> int:
                checked(connection.exchange(calls[topic]))
                return count

            messages, elapsed = in_parallel(service.address, 2, seconds, step)
            return messages / elapsed

        windows = session.windows(lambda seconds: _in_turns("bytes", "typed", rate, seconds))
    yield session.figure_of(f"{name}.ratio", f"{said}: rate beside a topic of bytes", "x", "ratio", windows)


@bench("typed.ndjson")
def ndjson(session: Session) -> Iterator[Figure]:
    """NDJSON into a topic with a JSON schema."""
    lines = _lines(_LINES)
    yield from _rates(session, "typed.ndjson", "json", _NDJSON, (lines, lines), _LINES, "NDJSON, 136 B nested bodies")


@bench("typed.invalid")
def invalid(session: Session) -> Iterator[Figure]:
    """Bodies that do not fit, in quarantine: one in ten, and all."""
    good = _lines(_LINES)
    for name, bad in (("tenth", lambda number: number % 10 == 0), ("all", lambda _: True)):
        bodies = good, _lines(_LINES, bad)
        said = f"NDJSON, {'all' if name == 'all' else 'one in ten'} in quarantine"
        yield from _rates(
            session, f"typed.invalid.{name}", "json", _NDJSON, bodies, _LINES, said, on_invalid="quarantine"
        )


@bench("typed.rare")
def rare(session: Session) -> Iterator[Figure]:
    """One body in a million does not fit, beside a typed topic whose bodies all do."""
    bodies = _lines(_LINES), _lines(_LINES, lambda number: number == _LINES // 2)
    good, bad = (request("POST", "/v1/topics/typed/messages", kind=_NDJSON, body=body) for body in bodies)
    requests = 1_000_000 // _LINES
    with running_service(session.fresh("typed.rare")) as service:
        _make(service, "json", "quarantine")

        def rate(name: str, seconds: float) -> float:
            numbers = itertools.count()

            def step(connection: Connection, _: int) -> int:
                checked(connection.exchange(bad if name == "rare" and next(numbers) % requests == 0 else good))
                return _LINES

            messages, elapsed = in_parallel(service.address, 2, seconds, step)
            return messages / elapsed

        windows = session.windows(lambda seconds: _in_turns("good", "rare", rate, seconds))
    said = "NDJSON, one in a million in quarantine: rate beside none"
    yield session.figure_of("typed.rare.ratio", said, "x", "ratio", windows)


@bench("typed.columns")
def columns(session: Session) -> Iterator[Figure]:
    """Values by Arrow into a topic of columns, beside the same bodies by Arrow."""
    values = [_value(number) for number in range(_ROWS)]
    bodies = pa.array([json.dumps(value).encode() for value in values], pa.binary())
    plain = arrow_stream(pa.RecordBatch.from_pydict({"body": bodies}))
    typed = arrow_stream(pa.RecordBatch.from_pydict({"value": pa.array(values)}))
    yield from _rates(session, "typed.columns", "columns", _ARROW, (plain, typed), _ROWS, "Arrow, a struct column")


@bench("typed.sync1")
def synchronous_client(session: Session) -> Iterator[Figure]:
    """One client that waits for each message."""
    body = json.dumps({"messages": [{"body": json.dumps(_value(7))}]}).encode()
    calls = {
        topic: request("POST", f"/v1/topics/{topic}/messages", kind=_JSON, body=body) for topic in ("bytes", "typed")
    }
    with running_service(session.fresh("typed.sync1")) as service:
        _make(service, "json")

        def window(seconds: float) -> dict[str, float]:
            took = {topic: synchronous(service.address, call, 1, seconds / 2)[0] for topic, call in calls.items()}
            p50 = {topic: float(np.percentile(times, 50)) for topic, times in took.items()}
            return {**p50, "ratio": p50["typed"] / p50["bytes"]}

        windows = session.windows(window, warmups=4)
    said = "one synchronous client, 136 B nested bodies: p50 beside a topic of bytes"
    yield session.figure_of("typed.sync1.ratio", said, "x", "ratio", windows)
