"""Values on which the tasks of one query agree (SPEC SPARK-13): the first task that needs one makes it for all.

Spark plans a read of a Python source once, and keeps that plan in its table object for every later query. So the
state that a query reads is chosen when it runs, by its tasks, which share only the store:

    task 1 ──make, put if absent──► reads/<application>/<execution>-<name> ◄──read── task 2, 3, ...

All scans of a query have one execution, subqueries and joins included; so have the queries that a statement runs for
its own work. A task that is tried again finds the value.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Callable
from typing import Final, NamedTuple

import pyarrow as pa
from pyspark import TaskContext

from deltamq.jobs.tasks.warehouse_files import delete_unchanged
from deltamq.mq.errors import DeltaMQError, Refused, Unknown
from deltamq.tables.store.store import FileMissing, Store

#: The folder of these values in a warehouse; the job `retain` removes what ended applications left there.
READS: Final = "reads"
#: A statement and the queries that it runs to do its work, as a MERGE does.
_STATEMENT: Final = "spark.sql.execution.root.id"
#: Each query of `foreachBatch` counts on its own, though they share the root execution of the batch.
_EXECUTION: Final = "spark.sql.execution.id"
_OF_STREAM: Final = "sql.streaming.queryId"
#: Settings that identify an application; Spark hands its settings to each task of a query.
_OF_APPLICATION: Final = ("spark.app.id", "spark.app.startTime", "spark.driver.host", "spark.driver.port")
#: Queries of an application whose values are kept: a query may still run while a thousand others come after it.
_QUERIES_KEPT: Final = 1_000
_CLEAN_EVERY: Final = 64
_REMEMBERED_MAX: Final = 256
_FORGOTTEN_MS: Final = 86_400_000
#: The values that this worker has read, the oldest first: it runs many tasks of one query.
_remembered: Final[OrderedDict[str, bytes]] = OrderedDict()


class QueryId(NamedTuple):
    """One execution of a query in one application."""

    application: str
    number: int

    def key(self, name: str) -> str:
        """Return the store's key of a value."""
        return f"{READS}/{self.application}/{self.number:012d}-{_digest(name)}"


def current_query(plan: str) -> QueryId:
    """Return the query of the task that runs here.

    A job that is no SQL query (`df.rdd`) has no execution: `plan` and its stage identify it.
    """
    context = TaskContext.get()
    if context is None:
        return QueryId(f"alone-{_digest(plan)}", 0)
    in_stream = context.getLocalProperty(_OF_STREAM) is not None
    execution = context.getLocalProperty(_EXECUTION if in_stream else _STATEMENT)
    if execution is None:
        return QueryId(f"plan-{_digest(plan)}", context.stageId())
    settings = "|".join(context.getLocalProperty(name) or "" for name in _OF_APPLICATION)
    return QueryId(_digest(settings), int(execution))


def agreed(store: Store, query: QueryId, name: str, make: Callable[[], bytes]) -> bytes:
    """Return the value of this name for this query, made by the first of its tasks.

    Raises
    ------
    Refused
        `query_not_agreed`: the store takes no file, so that the tasks cannot agree.
    """
    key = query.key(name)
    value = _remembered.get(f"{store.uri('')} {key}")
    if value is None:
        value = _read_or_made(store, query, key, make)
        _remembered[f"{store.uri('')} {key}"] = value
        while len(_remembered) > _REMEMBERED_MAX:
            _remembered.popitem(last=False)
    return value


def agreed_rows(store: Store, query: QueryId, name: str, make: Callable[[], pa.Table]) -> pa.Table:
    """Return rows on which the tasks of a query agree, as `agreed` does."""

    def made() -> bytes:
        sink, rows = pa.BufferOutputStream(), make()
        with pa.ipc.new_stream(sink, rows.schema) as writer:
            writer.write_table(rows)
        return bytes(sink.getvalue())

    with pa.ipc.open_stream(agreed(store, query, name, made)) as reader:
        return reader.read_all()


def _read_or_made(store: Store, query: QueryId, key: str, make: Callable[[], bytes]) -> bytes:
    try:
        return bytes(store.read(key))
    except FileMissing:
        value = make()
    try:
        if store.put_if_absent(key, value, durable=False):
            _clean(store, query)
            return value
    except Unknown:
        pass  # the read below returns the first task's value
    except (DeltaMQError, OSError) as error:
        raise Refused(
            f"the tasks of this query cannot agree on one state, because {store.uri(READS)} takes no files ({error}): "
            "let them write there, or read a fixed state with the option asOfTime",
            code="query_not_agreed",
            field="warehouse",
        ) from error
    return bytes(store.read(key))


def _clean(store: Store, query: QueryId) -> None:
    if query.number % _CLEAN_EVERY or query.number <= _QUERIES_KEPT:
        return
    folder = f"{READS}/{query.application}"
    for name in store.names(folder):
        if name[:12].isdigit() and int(name[:12]) < query.number - _QUERIES_KEPT:
            store.delete(f"{folder}/{name}")


def forget_queries(store: Store, now_ms: int) -> None:
    """Remove the values of applications that have made none for a day: a query agrees at its beginning."""
    delete_unchanged(store, READS, now_ms - _FORGOTTEN_MS)


def _digest(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=10).hexdigest()
