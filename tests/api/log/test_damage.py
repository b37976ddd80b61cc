"""A damaged partition stops and says so; the others serve (SPEC RELY-4)."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.api.running import Api, config_for, running


@pytest.mark.promise("DAMAGE-1")
def test_a_damaged_partition_stops_while_the_others_serve(tmp_path: Path) -> None:
    config = config_for(tmp_path)
    good, bad = "orders@broker-a", "orders@broker-b"
    with running(config) as api:
        api.put_topic("orders", partitions=2)
        for partition in (good, bad):
            assert api.send("orders", {"body": "x" * 200, "partition": partition}).status == 200
        folder = Path(api.partitions("orders")[bad]["location"])
    (data,) = folder.glob("*.parquet")
    content = bytearray(data.read_bytes())
    content[content.index(b"x" * 200) + 100] ^= 1
    data.write_bytes(content)
    with running(config) as api:
        refused = api.fetch("orders", bad)
        assert (refused.status, refused.json["code"]) == (500, "corrupt")
        assert _code(api, bad) == "corrupt", "it stays stopped"
        assert api.send("orders", {"body": "y", "partition": good}).status == 200
        assert api.bodies_of("orders", good) == ["x" * 200, "y"]
        assert {name: p["state"] for name, p in api.partitions("orders").items()} == {good: "serving", bad: "corrupt"}
        assert api.call("GET", "/readyz").status == 200


def test_a_partition_that_cannot_be_opened_is_corrupt_too(tmp_path: Path) -> None:
    config = config_for(tmp_path)
    with running(config) as api:
        api.put_topic("orders", partitions=2)
        api.send("orders", {"body": "a", "partition": "orders@broker-b"})
        folder = Path(api.partitions("orders")["orders@broker-b"]["location"])
    newest = max((folder / "_delta_log").glob("*.json"))
    newest.write_bytes(b"")
    with running(config) as api:
        assert _code(api, "orders@broker-b") == "corrupt"
        assert api.fetch("orders", "orders@broker-b").json["code"] == "corrupt"
        other = {"body": "y", "partition": "orders@broker-a"}
        for seq in range(2):
            assert api.send("orders", other, producer={"id": "p", "seq": seq}).status == 200
        shown = api.partitions("orders")
        assert (shown["orders@broker-b"]["state"], shown["orders@broker-b"]["max_offset"]) == ("corrupt", None)
        assert (shown["orders@broker-a"]["state"], shown["orders@broker-a"]["max_offset"]) == ("serving", 2)
        by_time = api.call("GET", "/v1/topics/orders/offsets?time=2020-01-01T00:00:00Z")
        assert (by_time.status, by_time.json["code"]) == (500, "corrupt")


def _code(api: Api, partition: str) -> object:
    return api.send("orders", {"body": "y", "partition": partition}).json["code"]
