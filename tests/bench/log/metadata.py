"""How long a start takes for the metadata, after processes have renewed their leases for weeks.

Three processes that renew every three seconds make a million events in five weeks. They are appended a thousand in a
commit here, with snapshots and upkeep as the service has them; `replayed` is the same log without any snapshot.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Final

from deltamq.mq.meta.brokers import Host, HostRenewed, decide_register
from deltamq.mq.meta.fold import AnyEvent, Meta
from deltamq.tables.log.warehouse import Warehouse
from deltamq.tables.queue.metadata import META_PARTITION, SNAPSHOT_EVENTS, MetaLog
from tests.bench.figure import Figure
from tests.bench.registry import bench
from tests.bench.session import Session

_COMMIT_EVENTS: Final = 1_000
_RENEWALS: Final = {"quick": 20_000}
_RENEWALS_MOST: Final = 1_000_000
_HOST: Final = Host(id="host-1", address="http://127.0.0.1:8080", brokers=("broker-a", "broker-b"), renewal=0, load=0)


def _renew(state: Meta) -> Sequence[AnyEvent]:
    renewal = state.brokers.hosts[_HOST.id].renewal
    return [HostRenewed(id=_HOST.id, renewal=renewal + 1 + at, load=0) for at in range(_COMMIT_EVENTS)]


def _fill(folder: str, renewals: int, snapshot_events: int) -> Meta:
    """Make the log; the state that it adds up to."""
    warehouse = Warehouse.open(folder)
    try:
        log = MetaLog(warehouse, snapshot_events=snapshot_events)
        log.submit_any(lambda state: decide_register(state.brokers, _HOST))
        for _ in range(renewals // _COMMIT_EVENTS):
            log.submit_any(_renew)
            log.maintain()
        return log.meta
    finally:
        warehouse.close()


def _start(folder: str, expected: Meta, _: float) -> dict[str, float]:
    """Open the log in a warehouse object of its own."""
    warehouse = Warehouse.open(folder)
    try:
        began = time.perf_counter()
        log = MetaLog(warehouse)
        took = (time.perf_counter() - began) * 1e3
        assert log.meta == expected, "a start knows what the processes before it knew"
        stats = warehouse.open_partition(META_PARTITION).stats()
        return {"took": took, "kept_events": stats.messages, "files": stats.files}
    finally:
        warehouse.close()


@bench("start.metadata")
def metadata(session: Session) -> Iterator[Figure]:
    """Opening the metadata log of a warehouse that is weeks old."""
    renewals = _RENEWALS.get(session.effort.name, _RENEWALS_MOST)
    cases = {"snapshots": SNAPSHOT_EVENTS, "replayed": renewals + _COMMIT_EVENTS}
    for name, snapshot_events in cases.items():
        folder = str(session.fresh(f"start.metadata.{name}"))
        expected = _fill(folder, renewals, snapshot_events)
        windows = session.windows(partial(_start, folder, expected))
        how = "from its last snapshot" if name == "snapshots" else "all of it"
        said = f"opening the metadata log after {renewals:,} renewals of leases, {how}"
        yield session.figure_of(f"start.metadata.{name}", said, "ms", "took", windows)
