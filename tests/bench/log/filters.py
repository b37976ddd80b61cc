"""Filters: how fast one header is searched, beside a tag, and what a filter of several terms costs.

Every tenth message passes each filter, so that the search is measured and not the answer. In process.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Final

import numpy as np
import pyarrow as pa

from deltamq.api.queue.filtered_read import scan_filtered
from deltamq.mq.filters.parser import parse_filter
from deltamq.tables.log.batch import Batch
from deltamq.tables.log.log import PartitionLog
from deltamq.tables.row_filter import MessageFilter
from deltamq.tables.schema import HEADERS
from tests.bench.figure import Figure
from tests.bench.load import LoadError
from tests.bench.log.append import open_logs, upkeep
from tests.bench.payloads import bodies
from tests.bench.registry import bench
from tests.bench.session import Session

__all__ = ["search"]

_KINDS: Final = 10
_PAGE: Final = 100_000
_BYTES_MAX: Final = 64 << 20
_FILTERS: Final = {
    "tag": MessageFilter(tags=pa.array(["kind-3"])),
    "header": MessageFilter(condition=parse_filter("kind = 'kind-3'")),
    "number": MessageFilter(condition=parse_filter("number = 3")),
    "several": MessageFilter(
        condition=parse_filter("kind LIKE '%-3' AND number BETWEEN 2 AND 4 AND trace IS NOT NULL")
    ),
}


def _messages(count: int) -> pa.RecordBatch:
    """Messages of 100 B, each with a tag and three headers: a kind, its number, and a text of its own."""
    numbers = np.arange(count) % _KINDS
    kinds = pa.array([f"kind-{kind}" for kind in range(_KINDS)]).take(pa.array(numbers))
    traces = pa.array(np.arange(count)).cast(pa.string())
    values = pa.concat_arrays([kinds, pa.array(numbers).cast(pa.string()), traces])
    # Message by message: its kind, its number, its trace.
    order = np.arange(3 * count).reshape(3, count).T.ravel()
    names = pa.array(["kind", "number", "trace"]).take(pa.array(np.tile(np.arange(3), count)))
    offsets = pa.array(np.arange(0, 3 * count + 1, 3, dtype=np.int32))
    headers = pa.MapArray.from_arrays(offsets, names, values.take(pa.array(order)))
    return pa.RecordBatch.from_pydict({"body": bodies(count, 100), "tag": kinds, "headers": headers.cast(HEADERS)})


def _search(log: PartitionLog, wanted: MessageFilter, seconds: float) -> float:
    """Search the log from its start on, again and again; return the number of messages looked at in a second."""
    looked = found = at = 0
    began = time.perf_counter()
    while not looked or time.perf_counter() - began < seconds:
        at = 0 if at >= log.end_offset else at
        scanned = scan_filtered(log, at, wanted, max_messages=_PAGE, max_bytes=_BYTES_MAX)
        looked += scanned.reached - at
        found += 0 if scanned.kept is None else scanned.kept.num_rows
        at = scanned.reached
    rate = looked / (time.perf_counter() - began)
    if found * _KINDS != looked:
        raise LoadError(f"of {looked} messages {found} were found")
    return rate


@bench("filter.log")
def search(session: Session) -> Iterator[Figure]:
    """Rates of a tag filter and of SQL filters, and their ratios in the same windows."""
    stored = min(1_000_000, session.effort.history_messages)
    with open_logs(session.fresh("filter-log"), 1) as (log,), upkeep([log]):
        batch = Batch(_messages(min(_PAGE, stored)))
        while log.end_offset < stored:
            log.append([batch])

        def window(seconds: float) -> dict[str, float]:
            rates = {name: _search(log, wanted, seconds / 4) for name, wanted in _FILTERS.items()}
            return {**rates, "ratio": rates["header"] / rates["tag"]}

        windows = session.windows(window)
        how = f"{log.end_offset:,} messages of 100 B with three headers, one thread, one in ten passes"
        for name, said in {
            "tag": "a tag",
            "header": "a header that equals a text",
            "number": "a header that equals a number",
            "several": "LIKE, IN and IS NOT NULL over three headers",
        }.items():
            yield session.figure_of(f"filter.log.{name}.rate", f"filter, {said}: {how}", "msg/s", name, windows)
        yield session.figure_of("filter.log.ratio", f"filter, a header against a tag: {how}", "x", "ratio", windows)
