"""A schema changes in each way while two processes are killed in turn: nothing stops, nothing is lost (SPEC TYPE-5)."""

from __future__ import annotations

import io
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import fastavro
import pytest
from deltalake import DeltaTable

from deltamq import Admin, PopConsumer, Producer, PullConsumer
from deltamq.jobs.queue.revive import revive
from deltamq.jobs.tasks.warehouses import warehouse_of
from deltamq.jobs.upkeep.compact import CompactItem, compact_ranges
from deltamq.mq.client.messages.received import PoppedMessage
from deltamq.mq.errors import Conflict
from deltamq.tables.config import load
from deltamq.tables.delta.snapshot import load as load_log
from deltamq.tables.log.warehouse import refs
from deltamq.tables.paths import Space
from tests.e2e.test_two_brokers import Two, two_processes, until
from tests.typed import record

NULL = {"default": None}
ID, NAME, COUNT = ("id", "long"), ("name", ["null", "string"], NULL), ("count", ["null", "int"], NULL)
PLACE = {"type": "record", "name": "Place", "fields": [{"name": "zip", "type": "string"}]}
WIDE = ("count", ["null", "long"], NULL)
RENAMED = ("total", ["null", "long"], {**NULL, "aliases": ["count"]})
#: A record is added, a field removed, another one widened, and renamed by an alias.
VERSIONS = (
    record(ID, NAME, COUNT),
    record(ID, NAME, COUNT, ("place", ["null", PLACE], NULL)),
    record(ID, COUNT, ("place", ["null", PLACE], NULL)),
    record(ID, WIDE, ("place", ["null", PLACE], NULL)),
    record(ID, RENAMED, ("place", ["null", PLACE], NULL)),
)
WRONG = record(("id", "boolean"))
SENT_PER_STEP = 40


def value_of(number: int, version: int) -> dict[str, Any]:
    count = number + 2**40 if version >= 3 else number
    value: dict[str, Any] = {"id": number, "total" if version == 4 else "count": count}
    if version < 2:
        value["name"] = f"n{number}"
    if version > 0:
        value["place"] = {"zip": f"z{number}"}
    return value


class Load:
    """What producers send with the newest version that they know, and what a group and a stream are given."""

    def __init__(self, two: Two, uri: str) -> None:
        self.urls = [two.a.url, two.b.url]
        self.ids: list[int] = []
        #: The version of each message that was acknowledged.
        self.sent: dict[int, int] = {}
        self.popped: dict[int, dict[str, Any]] = {}
        self.streamed: list[dict[str, Any]] = []
        self.failed: list[BaseException] = []
        self.compacted = 0
        self.done, self.sends_end = threading.Event(), threading.Event()
        self._conf = load(overrides={"warehouse.uri": uri})
        self._writers = [fastavro.parse_schema(json.loads(text)) for text in VERSIONS]

    def body(self, number: int, version: int) -> bytes:
        out = io.BytesIO(b"\0" + self.ids[version].to_bytes(4, "big"))
        out.seek(5)
        fastavro.schemaless_writer(out, self._writers[version], value_of(number, version))
        return out.getvalue()

    def produce(self, first: int) -> None:
        with Producer(self.urls, timeout_s=60) as producer:
            number = first
            while not self.sends_end.is_set():
                version = len(self.ids) - 1
                producer.send("orders", self.body(number, version), key=f"{number}")
                self.sent[number] = version
                number += 2

    def stream(self) -> None:
        with PullConsumer(self.urls, "orders", typed=True) as consumer:
            while not self.done.is_set():
                self.streamed += [message.value or {} for message in consumer.poll(wait_ms=200)]

    def jobs(self) -> None:
        """Join all files of each partition, which the job does with large ones, and deliver again."""
        warehouse = warehouse_of(self._conf)
        while not self.done.wait(0.5):
            for ref in refs(warehouse.store, Space.TOPICS):
                files = load_log(warehouse.store, ref.folder).files
                if len(files) > 1:
                    done = compact_ranges(CompactItem(self._conf, ref, ((files[0].start, files[-1].end),), False))
                    assert not done.error, done
                    self.compacted += sum(result.rows for result in done.results)
            # What a killed process had handed out comes again.
            revive(None, self._conf, datetime.now(UTC))

    def handle(self, message: PoppedMessage) -> None:
        assert message.value is not None
        self.popped[message.value["id"]] = message.value

    def _kept(self, work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:
            self.failed.append(error)

    def threads(self) -> list[threading.Thread]:
        works = (partial(self.produce, 0), partial(self.produce, 1), self.stream, self.jobs)
        return [threading.Thread(target=self._kept, args=(work,)) for work in works]


@pytest.fixture
def two(tmp_path: Path) -> Iterator[Two]:
    with two_processes(tmp_path / "w") as both:
        yield both


@pytest.mark.long
@pytest.mark.timeout(600)
def test_type_5_a_schema_changes_in_each_way_while_processes_are_killed(two: Two, tmp_path: Path) -> None:
    """Old rows read as before, each message is stored once with all its fields, and a wrong change is refused."""
    made = Load(two, str(tmp_path / "w"))
    threads = made.threads()
    with ExitStack() as ends:
        admin = ends.enter_context(Admin(made.urls))
        asked: dict[str, Any] = {"format": "avro", "wire": "confluent", "on_invalid": "quarantine"}
        for version, text in enumerate(VERSIONS):
            info = admin.create_topic("orders", partitions=2, schema={**asked, "schema": text})
            assert info.schema is not None and info.schema.version == version + 1
            assert info.schema.schema_id is not None
            made.ids.append(info.schema.schema_id)
            if not version:
                for thread in threads:
                    thread.start()
                ends.callback(join, made, threads)
                ends.enter_context(
                    PopConsumer(made.urls, "billing", "orders", made.handle, typed=True, invisible_ms=5_000)
                )
            step(made)
            # The process that has just stored the version, or the other one, while messages of both versions are sent.
            victim = (two.a, two.b)[version % 2].process
            victim.kill()
            step(made)
            victim.start()
            with pytest.raises(Conflict) as refused:
                admin.create_topic("orders", schema={**asked, "schema": WRONG})
            assert refused.value.code == "incompatible_schema"
            step(made)
        made.sends_end.set()
        for thread in threads[:2]:
            thread.join()
        until(lambda: made.failed or len(made.streamed) >= len(made.sent), 60)
        until(lambda: made.failed or len(made.popped) == len(made.sent), 90)
    assert not made.failed, made.failed
    assert made.compacted, "files of unlike versions were joined meanwhile"

    stored = stored_values(tmp_path / "w")
    assert sorted(row["id"] for row in stored) == sorted(made.sent)
    for rows in (stored, made.streamed, list(made.popped.values())):
        for row in rows:
            check(row, made.sent[row["id"]])


def check(row: dict[str, Any], version: int) -> None:
    """Check a value against what was sent: columns that its version lacks are null, a renamed one has both names."""
    value = value_of(row["id"], version)
    count = value.get("count", value.get("total"))
    assert (row["count"], row.get("name"), row.get("place")) == (count, value.get("name"), value.get("place"))
    assert row.get("total") in ((count,) if version == 4 else (None, count))


def step(made: Load) -> None:
    wanted = len(made.sent) + SENT_PER_STEP
    until(lambda: made.failed or len(made.sent) >= wanted, 60)


def join(made: Load, threads: list[threading.Thread]) -> None:
    made.done.set()
    made.sends_end.set()
    for thread in threads:
        thread.join()


def stored_values(warehouse: Path) -> list[dict[str, Any]]:
    """Return the values of all partitions, as another engine reads them."""
    rows: list[dict[str, Any]] = []
    for log in sorted((warehouse / "topics" / "orders").glob("*/_delta_log")):
        rows += DeltaTable(str(log.parent)).to_pyarrow_table(columns=["value", "invalid"]).to_pylist()
    assert all(row["invalid"] is None for row in rows)
    return [row["value"] for row in rows]
