"""A process whose store takes no writes is not ready, though it reads (SPEC RELY-10)."""

from __future__ import annotations

from deltamq.api.ports import Ports
from deltamq.mq.errors import READ_ONLY, Unavailable
from deltamq.tables.store.store import MemoryStore
from tests.api.running import config_for, running, until
from tests.faulty_store import FaultyStore

_LEASE = {"lease_ms": 3_000, "lease_renew_ms": 500, "lease_margin_ms": 500}


def test_rely_10_a_process_that_may_no_longer_write_is_not_ready_until_it_may() -> None:
    store = FaultyStore(MemoryStore(), cheap_look=False)

    def refuse(_: str) -> None:
        raise Unavailable("cannot write: access denied", code=READ_ONLY)

    with running(config_for("memory", **_LEASE), Ports(store=store)) as api:
        api.put_topic("orders", partitions=1)
        store.before["put"] = store.before["put_if_absent"] = refuse
        assert api.call("GET", "/readyz").status == 200, "what only reads is not in doubt"
        assert api.send("orders", "a").status == 503
        until(lambda: api.call("GET", "/readyz").status == 503)
        unready = api.call("GET", "/readyz").json
        assert unready["code"] == "lease_lost" and "access denied" in unready["detail"]
        store.before.clear()
        until(lambda: api.call("GET", "/readyz").status == 200)
        assert api.send("orders", "b").status == 200
        assert any("b" in bodies for bodies in api.bodies("orders").values())
