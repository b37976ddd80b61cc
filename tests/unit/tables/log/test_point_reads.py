"""Single messages of a partition: all that are asked for, and of those that are not there each is named."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from deltamq.mq.errors import Unavailable
from deltamq.tables.log.log import PartitionLog
from deltamq.tables.log.point_reads import TooMuch, pick
from deltamq.tables.log.warehouse import Warehouse
from deltamq.tables.settings import LogSettings
from deltamq.tables.store.store import MemoryStore
from tests.faulty_store import FaultyStore
from tests.rows import REF, batch

_MESSAGES = 600


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PartitionLog]:
    """Three hundred files of two messages, the first hundred gone."""
    warehouse = Warehouse.open(str(tmp_path_factory.mktemp("w")), settings=LogSettings(tail_bytes_max=65_536))
    log = warehouse.create(REF)
    for at in range(0, _MESSAGES, 2):
        log.append([batch(b"m%d" % at, b"m%d" % (at + 1))])
    log.delete_below(200)
    yield log
    warehouse.close()


def _offsets(found: set[int]) -> np.ndarray:
    return np.array(sorted(found), dtype=np.int64)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.sets(st.integers(0, _MESSAGES + 20)))
def test_every_offset_is_found_gone_or_unreadable(log: PartitionLog, wanted: set[int]) -> None:
    picked = pick(log, _offsets(wanted), bytes_max=None)
    assert picked.gone == {offset for offset in wanted if offset < 200}
    assert set(picked.unreadable) == {offset for offset in wanted if offset >= _MESSAGES}
    there = [offset for offset in sorted(wanted) if 200 <= offset < _MESSAGES]
    assert picked.rows.column("body").to_pylist() == [b"m%d" % offset for offset in there]
    some = there[::-2]
    places = picked.places(np.array(some, dtype=np.int64))
    assert picked.rows.take(pa.array(places)).column("offset").to_pylist() == some


def test_one_that_cannot_be_read_is_named_and_the_others_are_found() -> None:
    files = MemoryStore()
    writer = Warehouse.open("", store=files)
    for at in range(100):
        writer.create(REF).append([batch(b"m%d" % at)])
    writer.close()
    # A process that opens the log now has none of its rows in memory.
    store = FaultyStore(files)
    reader = Warehouse.open("", store=store)
    log = reader.open_partition(REF)
    damaged = log.files[33].path

    def damage(key: str) -> None:
        if key.endswith(damaged):
            raise Unavailable("the disk says no")

    store.before["read"] = store.before["read_parts"] = damage
    wanted = set(range(10, 60)) | {99}
    picked = pick(log, _offsets(wanted), bytes_max=None)
    assert list(picked.unreadable) == [33]
    assert "the disk says no" in picked.unreadable[33]
    assert picked.rows.column("offset").to_pylist() == sorted(wanted - {33})
    reader.close()


def test_more_than_there_is_room_for_is_refused(log: PartitionLog) -> None:
    with pytest.raises(TooMuch):
        pick(log, _offsets(set(range(200, 400))), bytes_max=1_000)
