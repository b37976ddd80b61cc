"""A log that does not exist is looked for at each call on a disk, and seldomer and seldomer on an object store."""

from __future__ import annotations

import pytest

from deltamq.tables.log.appearing import Appearing
from deltamq.tables.log.warehouse import Warehouse
from deltamq.tables.store.store import MemoryStore
from tests.faulty_store import FaultyStore
from tests.rows import REF
from tests.set_clock import SetClock


@pytest.mark.parametrize(("is_cheap", "looks"), [(True, 100), (False, 8)])
def test_look_25_a_log_that_is_not_there_is_looked_for_as_often_as_looks_are_cheap(is_cheap: bool, looks: int) -> None:
    clock, store = SetClock(), FaultyStore(MemoryStore(), cheap_look=is_cheap)
    warehouse = Warehouse.open("", store=store, clock=clock)
    appearing = Appearing(warehouse)
    store.calls.clear()
    for _ in range(100):
        assert not appearing.is_there(REF)
        clock.advance_ms(1_000)
    assert len(store.keys("names")) == looks
    warehouse.create(REF)
    clock.advance_ms(30_000)
    assert appearing.is_there(REF)
    warehouse.close()
