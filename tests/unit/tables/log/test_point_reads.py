"""Single messages of a partition: all that are asked for, and of those that are not there each is named."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mq.errors import Unavailable
from tables.log.log import PartitionLog
from tables.log.point_reads import TooMuch, pick
from tables.log.warehouse import Warehouse
from tables.settings import LogSettings
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


@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
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


def test_one_that_cannot_be_read_is_named_and_the_others_are_found(
    log: PartitionLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = log.read

    def failing(offset: int, *, max_messages: int, max_bytes: int) -> object:
        if offset <= 333 < offset + max_messages:
            raise Unavailable("the disk says no")
        return read(offset, max_messages=max_messages, max_bytes=max_bytes)

    monkeypatch.setattr(log, "read", failing)
    wanted = set(range(300, 400)) | {550}
    picked = pick(log, _offsets(wanted), bytes_max=None)
    assert list(picked.unreadable) == [333]
    assert "the disk says no" in picked.unreadable[333]
    assert picked.rows.column("offset").to_pylist() == sorted(wanted - {333})


def test_more_than_there_is_room_for_is_refused(log: PartitionLog) -> None:
    with pytest.raises(TooMuch):
        pick(log, _offsets(set(range(200, 400))), bytes_max=1_000)
