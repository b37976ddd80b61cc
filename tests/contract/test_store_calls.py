"""What the service says of its calls is what went over the wire (SPEC LOOK-22), seen by a proxy before the server."""

from __future__ import annotations

import pytest

from deltamq.tables.log.warehouse import Warehouse
from deltamq.tables.settings import LogSettings
from deltamq.tables.store.store import StoreUnsafe
from tests.rows import REF, all_bodies, batch, numbered_bodies
from tests.store_proxy import Fault, StoreProxy

# The first run builds server and proxy.
pytestmark = pytest.mark.timeout(600)

#: The proxy's names of ours; POST begins and ends a put in parts.
WIRE = {
    "put": ("PUT", "POST"),
    "put_if_absent": ("CONDITIONAL_PUT",),
    "get": ("GET",),
    "head": ("HEAD",),
    "list": ("LIST",),
}


@pytest.mark.parametrize(("status", "code"), [(501, "NotImplemented"), (400, "InvalidArgument")])
def test_rely_3_a_store_that_refuses_conditional_puts_is_named(proxy: StoreProxy, status: int, code: str) -> None:
    proxy.set_faults(Fault(operations=("CONDITIONAL_PUT",), status=status, code=code))
    try:
        with pytest.raises(StoreUnsafe, match=rf"s3://warehouse/old takes a plain put and no conditional one .*{code}"):
            Warehouse.open("", store=proxy.store("old"))
    finally:
        proxy.set_faults()
    assert proxy.store("old").folders("") == []


def test_look_22_the_counts_are_those_of_the_wire(proxy: StoreProxy) -> None:
    store = proxy.store("counted")
    proxy.reset()
    warehouse = Warehouse.open("", store=store, settings=LogSettings(rollup_files=4, checkpoint_commits=8))
    log = warehouse.create(REF)
    for body in numbered_bodies("m", 30):
        log.append([batch(body)])
        log.maintain()
    store.put("large", bytes(12 << 20), durable=True)
    assert store.read_parts("large", 12 << 20, [(0, 10), (4 << 20, 5 << 20)]).size == 12 << 20
    store.delete_tree("large-tree")
    warehouse.close()
    again = Warehouse.open("", store=store)
    assert all_bodies(again.open_partition(REF)) == numbered_bodies("m", 30)
    again.close()

    ours, wire = store.calls.so_far().calls, proxy.counts()
    on_wire = {name: sum(wire.calls.get(call, 0) for call in calls) for name, calls in WIRE.items()}
    assert {name: ours[name].requests for name in WIRE} == on_wire
    assert ours["put"].bytes + ours["put_if_absent"].bytes <= sum(wire.bytes_in.values())
    assert 0 <= wire.bytes_out["GET"] - ours["get"].bytes < 4_096, "more are answers that there is no such key"
    assert ours["put_if_absent"].requests > 30 and ours["list"].requests > 0
