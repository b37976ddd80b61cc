"""The job `erase`, its tasks called directly: what readers and files have after each of its steps (SPEC ERASE-1)."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from msgspec.structs import replace

from deltamq.jobs.tasks.warehouses import close_warehouses, warehouse_of
from deltamq.jobs.upkeep.compact import compact
from deltamq.jobs.upkeep.erase import EraseItem, erase, erase_partitions
from deltamq.mq.errors import Corrupt, NotFound
from deltamq.mq.limits import KIB
from deltamq.tables.config import Config, load
from deltamq.tables.delta.stamped import ProducerStamp
from deltamq.tables.log.batch import Batch
from deltamq.tables.log.log import PartitionLog
from deltamq.tables.log.warehouse import Warehouse
from deltamq.tables.ops.erasures import Erasure, ask, finish, open_erasures, read_erasure, replace_open, store_ms
from deltamq.tables.ops.verification import Gravity, verify
from deltamq.tables.paths import PartitionRef, Space
from deltamq.tables.queue.refs import dead_ref, retry_ref, system_ref
from deltamq.tables.schema import INTERNAL_SCHEMA, MESSAGE_COLUMNS, ORIGIN
from deltamq.tables.settings import LogSettings
from deltamq.tables.typed_row import TYPED
from tests.rows import all_rows, batch, next_millisecond
from tests.typed import codec
from tests.unit.jobs.upkeep.test_compact import NOW
from tests.unit.jobs.warehouses import HEADERS, Filled, rows

A, B = (PartitionRef(Space.TOPICS, "orders", f"orders@broker-{x}") for x in "ab")
ADA, BODY = "ada@example.org", b'{"id":"SECRET-of-ada"}'
SCHEMA = json.dumps({"type": "object", "properties": {"id": {"type": "string"}}})


@pytest.fixture
def filled(tmp_path: Path) -> Iterator[Filled]:
    made = Filled(tmp_path / "warehouse", log_keep_ms=1_000)
    yield made
    close_warehouses()
    made.close()


def conf_of(filled: Filled, **overrides: object) -> Config:
    values = {"log.file_keep_ms": 1, "log.log_keep_ms": 1_000, **overrides}
    return load(overrides={"warehouse.uri": filled.uri, **values}, environ={})


def asked(filled: Filled, *keys: str, topic: str = "orders") -> Erasure:
    next_millisecond()
    erasure = ask(filled.warehouse.store, topic, keys, time.time_ns() // 1_000)
    next_millisecond()
    return erasure


def until_gone(filled: Filled, conf: Config, erasure: Erasure) -> Erasure:
    """Run the job until its old files are gone."""
    until = time.monotonic() + 60
    while read_erasure(filled.warehouse.store, erasure.id).state != "gone":
        erase(None, conf, NOW)
        assert time.monotonic() < until, "the erasure does not end"
        time.sleep(0.05)
    return read_erasure(filled.warehouse.store, erasure.id)


def holding(folder: Path | str, *words: bytes) -> list[str]:
    """Return the files below a folder in whose bytes, or whose columns, one of the words is."""
    found = []
    for path in sorted(path for path in Path(folder).rglob("*") if path.is_file()):
        try:
            data = path.read_bytes()
        except FileNotFoundError:  # a service takes files from its pool
            continue
        texts = [data]
        if path.suffix == ".parquet":
            table = pq.read_table(pa.BufferReader(data))
            texts += [str(table.column(name).to_pylist()).encode() for name in table.column_names]
        found += [str(path)] if any(word in text for text in texts for word in words) else []
    return found


def typed(bodies: list[bytes], key: str) -> Batch:
    return Batch(codec("json", SCHEMA).typed(rows(bodies, key=key)))


def copied(body: bytes, key: str, topic: str) -> Batch:
    """A row of a retry partition, of dead letters or of a delay log, from a message born a second ago."""
    origin = pa.array([{"topic": topic, "partition": A.name, "offset": 0}], ORIGIN)
    columns = {
        "key": pa.array([key], pa.string()),
        "headers": pa.array([[("who", key)]], HEADERS),
        "body": pa.array([body], pa.binary()),
        "born_time": pa.array([time.time_ns() // 1_000 - 1_000_000], INTERNAL_SCHEMA.field("born_time").type),
        "reconsume_times": pa.array([1], pa.int32()),
        "origin": origin,
    }
    return Batch(pa.RecordBatch.from_pydict(columns))


def sound(filled: Filled) -> bool:
    return [one for one in verify(filled.warehouse) if one.gravity is not Gravity.NOTE] == []


def read(log: PartitionLog) -> list[dict[str, object]]:
    log.refresh()
    shown: list[dict[str, object]] = all_rows(log).to_pylist()
    return shown


def test_erase_1_rows_keep_their_places_and_say_nothing_and_no_file_of_others_is_touched(filled: Filled) -> None:
    log = filled.append("orders", A.name, b"one", BODY, b"three", key="eve", headers={"trace": "x"})
    log.append([Batch(rows([BODY, BODY], key=ADA, headers={"mail": ADA}))])
    log.append([batch(b"of a producer", producer="p", seq=0)])
    other = filled.append("orders", B.name, b"other")
    before = read(log)
    files = {file.path for file in log.files}
    erasure = asked(filled, ADA)
    log.append([Batch(rows([b"sent later"], key=ADA))])

    conf = conf_of(filled)
    facts = erase(None, conf, NOW)
    assert (facts["rows"], facts["files"], facts["open"]) == (2, 1, 1)
    after = read(log)
    assert [row["offset"] for row in after] == list(range(7))
    assert after[:3] == before[:3] and after[5] == before[5]
    assert after[6]["body"] == b"sent later" and after[6]["key"] == ADA
    for was, now in zip(before[3:5], after[3:5], strict=True):
        assert (now["key"], now["headers"], now["body"]) == (None, None, None)
        kept = set(MESSAGE_COLUMNS) - {"key", "headers", "body"}
        assert {name: was[name] for name in kept} == {name: now[name] for name in kept}
    assert len(files - {file.path for file in log.files}) == 1, "only the file with the key is replaced"
    assert other.version == 1 and log.known_producer("p") is not None

    receipt = until_gone(filled, conf, erasure)
    assert (receipt.rows, receipt.copies, receipt.keys, receipt.count) == (2, {}, (), 1)
    assert open_erasures(filled.warehouse.store) == []
    assert sound(filled)


def test_erase_1_all_copies_and_no_byte_of_the_warehouse_has_key_or_body(filled: Filled) -> None:
    log = filled.append("orders", A.name, *[BODY] * 3, key=ADA)
    for _ in range(40):  # rolled up, so that there are dead files and a pool with the content
        log.append([Batch(rows([BODY, BODY], key=ADA)), Batch(rows([b"kept"], key="eve"))])
    while log.maintain():
        pass
    made = filled.warehouse.create(B)
    made.append([typed([BODY, b'{"id":"zoe"}'], ADA)])
    made.append([typed([b'{"id":"kept"}'], "eve")])
    cluster = conf_of(filled).warehouse.cluster
    retries = filled.warehouse.create(retry_ref("billing", 1, "orders", 0, "broker-a"))
    letters = filled.warehouse.create(dead_ref("billing", 1, "broker-a"))
    delayed = filled.warehouse.create(system_ref("rmq_sys_DELAY", cluster, "broker-a"))
    erasure = asked(filled, ADA)
    for copies, topic in ((retries, "orders"), (letters, "orders"), (delayed, "some-id/orders")):
        # appended by a job after the request, from messages of before
        copies.append([copied(BODY, ADA, topic)])
    letters.append([copied(b"of another topic", ADA, "invoices")])
    assert len(holding(filled.uri, b"SECRET-of-ada")) > 4

    # another process has the content in its memory, and goes on
    other = Warehouse.open(filled.uri, settings=LogSettings(file_keep_ms=1, log_keep_ms=1_000))
    seen = other.open_partition(A)
    assert ADA in {row["key"] for row in read(seen)}
    conf = conf_of(filled)
    erase(None, conf, NOW)
    assert ADA not in {row["key"] for row in read(seen)}
    seen.append([Batch(rows([b"goes on"], key="eve"))])
    while seen.maintain():
        pass
    compact(None, conf_of(filled, **{"jobs.compact_target_bytes": 64 * KIB}), NOW)
    receipt = until_gone(filled, conf, erasure)
    assert receipt.copies == {"retries": 1, "dead_letters": 1, "delayed": 1} and receipt.rows == 85
    other.close()
    assert holding(filled.uri, b"SECRET-of-ada", b"zoe") == []
    assert [Path(path).parts[-3] for path in holding(filled.uri, ADA.encode())] == ["billing"], "of another topic"
    typed_rows = filled.warehouse.open_partition(B)
    typed_rows.refresh()
    shown = typed_rows.read(0, max_messages=9, max_bytes=1 << 20, columns=(*MESSAGE_COLUMNS, *TYPED)).rows.to_pylist()
    assert [row["value"] for row in shown] == [None, None, {"id": "kept"}]
    assert [row["body"] for row in read(letters)] == [None, b"of another topic"]
    assert sound(filled)


def test_erase_1_a_request_in_an_erased_file_is_still_known_and_a_body_that_is_a_value_is_gone(filled: Filled) -> None:
    log = filled.warehouse.create(A)
    sent = codec("columns", "id STRING").typed(rows([b'{"id":"SECRET"}', b'{"id":"SECRET"}'], key=ADA))
    request = Batch(sent, ProducerStamp("p", 0, None, 2))
    log.append([request])
    asked(filled, ADA)
    assert erase(None, conf_of(filled), NOW)["rows"] == 2
    assert [row["body"] for row in read(log)] == [None, None]
    again = Warehouse.open(filled.uri)
    (told,) = again.open_partition(A).append([request])
    assert (told.base_offset, told.duplicate) == (0, True)
    again.close()


def test_erase_1_what_a_job_had_in_its_hands_is_erased_before_the_request_ends(filled: Filled) -> None:
    filled.append("orders", A.name, BODY, key=ADA)
    erasure, conf = asked(filled, ADA), conf_of(filled)
    assert erase(None, conf, NOW)["rows"] == 1
    retries = filled.warehouse.create(retry_ref("billing", 1, "orders", 0, "broker-a"))
    retries.append([copied(BODY, ADA, "orders")])
    receipt = until_gone(filled, conf, erasure)
    assert receipt.copies == {"retries": 1} and holding(filled.uri, b"SECRET-of-ada", ADA.encode()) == []


def test_erase_1_a_repeat_and_a_request_for_nothing_are_harmless(filled: Filled) -> None:
    log = filled.append("orders", A.name, BODY, key=ADA)
    conf = conf_of(filled)
    first = until_gone(filled, conf, asked(filled, ADA))
    log.refresh()
    version = log.version
    again = until_gone(filled, conf, asked(filled, ADA, "nobody"))
    log.refresh()
    assert (first.rows, again.rows, log.version) == (1, 0, version)
    until_gone(filled, conf, asked(filled, ADA, topic="never-made"))
    with pytest.raises(NotFound, match="no erasure 'x'"):
        read_erasure(filled.warehouse.store, "x")


def test_erase_1_a_kill_before_the_keys_are_deleted_is_finished_by_the_next_run(filled: Filled) -> None:
    erasure = asked(filled, ADA)
    store = filled.warehouse.store
    finish(store, erasure)
    replace_open(store, Erasure(id=erasure.id, topic="orders", asked_us=1, count=1, state="gone", keys=(ADA,)))
    erase(None, conf_of(filled), NOW)
    assert open_erasures(store) == [] and holding(filled.uri, ADA.encode()) == []


def test_erase_1_a_partition_whose_log_is_gone_keeps_the_request_open(filled: Filled, tmp_path: Path) -> None:
    for ref in (A, B):
        filled.append("orders", ref.name, BODY, key=ADA)
    erasure, conf = asked(filled, ADA), conf_of(filled)
    filled.warehouse.close_partition(A)
    log, away = Path(filled.uri, A.folder, "_delta_log"), tmp_path / "away"
    log.rename(away)
    with pytest.raises(Corrupt, match=r"1 tables failed.*orders@broker-a.*no log"):
        erase(None, conf, NOW)
    assert read_erasure(filled.warehouse.store, erasure.id).state == "waiting"
    away.rename(log)
    close_warehouses()
    assert until_gone(filled, conf, erasure).rows == 2


def test_erase_1_a_damaged_partition_spoils_no_other_and_the_request_stays_open(filled: Filled) -> None:
    for ref in (A, B):
        filled.append("orders", ref.name, BODY, key=ADA)
    victim = next(Path(filled.uri, A.folder).glob("*.parquet"))
    whole = victim.read_bytes()
    victim.write_bytes(whole[:40] + bytes([whole[40] ^ 1]) + whole[41:])
    erasure, conf = asked(filled, ADA), conf_of(filled)
    with pytest.raises(Corrupt, match=r"1 tables failed.*orders@broker-a"):
        erase(None, conf, NOW)
    assert read_erasure(filled.warehouse.store, erasure.id).state == "waiting"
    assert [row["key"] for row in read(filled.warehouse.open_partition(B))] == [None]
    victim.write_bytes(whole)
    close_warehouses()
    assert until_gone(filled, conf, erasure).rows == 2


def test_erase_1_a_file_that_no_commit_names_is_deleted_when_no_writer_can_commit_it(filled: Filled) -> None:
    filled.append("orders", A.name, BODY, key=ADA)
    file = next(Path(filled.uri, A.folder).glob("*.parquet"))
    orphan = file.with_name(f"{5:020d}-{'0' * 32}.parquet")
    orphan.write_bytes(file.read_bytes())
    erasure, conf = asked(filled, ADA), conf_of(filled)
    until = time.monotonic() + 60
    while (waiting := read_erasure(filled.warehouse.store, erasure.id)).gone_ms is None or (
        waiting.gone_ms < time.time_ns() // 1_000_000 + 3_600_000
    ):
        erase(None, conf, NOW)
        assert waiting.state != "gone" and time.monotonic() < until
    clock = warehouse_of(conf).clock
    later = replace(waiting, erased_boot_ms=clock.boot_ms() - conf.log.orphan_keep_ms)
    replace_open(filled.warehouse.store, later)
    erase(None, conf, NOW)
    assert read_erasure(filled.warehouse.store, erasure.id).state == "gone"
    assert holding(filled.uri, b"SECRET-of-ada", ADA.encode()) == []


def test_erase_2_on_another_machine_the_stores_clock_counts_and_no_wall_clock(
    filled: Filled, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled.append("orders", A.name, BODY, key=ADA)
    erasure, conf = asked(filled, ADA), conf_of(filled)
    erase(None, conf, NOW)
    first = read_erasure(filled.warehouse.store, erasure.id)
    monkeypatch.setattr("deltamq.jobs.upkeep.erase._MACHINE", "another")
    erase(None, conf, NOW)
    again = read_erasure(filled.warehouse.store, erasure.id)
    assert (again.machine, again.state) == ("another", "erased"), "on a disk the time begins again"
    assert again.erased_boot_ms >= first.erased_boot_ms
    store = warehouse_of(conf).store
    monkeypatch.setattr(store, "cheap_look", False)  # as an object store
    now_ms = store_ms(store)
    for before_ms, state in ((2_500, "erased"), (4_000, "gone")):
        replace_open(store, replace(again, machine="a third", erased_store_ms=now_ms - before_ms))
        erase(None, conf, NOW)
        assert read_erasure(store, erasure.id).state == state


def test_erase_1_a_task_that_runs_twice_does_nothing_the_second_time(filled: Filled) -> None:
    filled.append("orders", A.name, BODY, key=ADA)
    item = EraseItem(conf_of(filled), asked(filled, ADA).id, (A, B))
    assert [erase_partitions(item).rows for _ in range(2)] == [1, 0]
