"""What has stopped is named where people look, and messages that may go anywhere go elsewhere (SPEC RELY-10)."""

from __future__ import annotations

import logging
import shutil
from pathlib import Path

import pytest

from deltamq.mq.static.queue_names import queue_name
from tests.api.running import Api, config_for, running, until

GOOD, BAD = "orders@broker-a", "orders@broker-b"


def stop(api: Api, topic: str = "orders", partition: str = BAD) -> None:
    """Damage a partition's newest commit and let the service find that."""
    folder = Path(api.partitions(topic)[partition]["location"])
    newest = max((folder / "_delta_log").glob("*.json"))
    newest.with_name(f"{int(newest.stem) + 1:020d}.json").write_bytes(b"")
    assert api.send(topic, {"body": "y", "partition": partition}).json["code"] == "corrupt"


def test_rely_10_a_stopped_partition_is_named_and_the_process_stays_ready(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with running(config_for(tmp_path)) as api, caplog.at_level(logging.ERROR):
        api.put_topic("orders", partitions=2)
        assert api.send("orders", {"body": "x", "partition": BAD}).status == 200
        assert api.call("GET", "/readyz").json == {"status": "serving", "stopped_partitions": 0, "stopped": []}
        assert "deltamq_stopped_partitions 0.0" in api.call("GET", "/metrics").body.decode()
        stop(api)
        ready = api.call("GET", "/readyz")
        assert (ready.status, ready.json) == (200, {"status": "degraded", "stopped_partitions": 1, "stopped": [BAD]})
        assert "deltamq_stopped_partitions 1.0" in api.call("GET", "/metrics").body.decode()
        (named,) = api.call("GET", "/v1/cluster").json["stopped"]
        assert (named["space"], named["topic"], named["partition"], named["queue"]) == ("topics", "orders", BAD, None)
        assert named["code"] == "corrupt" and "empty or cut off" in named["detail"]
        stop_lines = [line for line in caplog.text.splitlines() if "event=partition_stopped" in line]
        assert len(stop_lines) == 1 and "folder=topics/orders/orders@broker-b code=corrupt" in stop_lines[0]
        assert api.call("DELETE", "/v1/topics/orders").status in (200, 204)
        assert api.call("GET", "/v1/cluster").json["stopped"] == []


@pytest.mark.parametrize("restart", [False, True], ids=["at once", "after a restart"])
def test_rely_10_messages_without_a_key_go_to_other_partitions(tmp_path: Path, restart: bool) -> None:
    config = config_for(tmp_path)
    with running(config) as api:
        api.put_topic("orders", partitions=2)
        for partition in (GOOD, BAD):
            assert api.send("orders", {"body": "x", "partition": partition}).status == 200
        stop(api)
        if not restart:
            assert [api.send("orders", {"body": str(i)}).status for i in range(20)] == [200] * 20
            sent = [api.send("orders", {"body": "p"}, producer={"id": "p", "seq": seq}).status for seq in range(20)]
            assert sent == [200] * 20, "what it held of producers is known"
            assert api.send("orders", {"body": "n", "partition": BAD}).json["code"] == "corrupt"
    if restart:
        with running(config) as api:
            assert api.send("orders", {"body": "n", "partition": BAD}).json["code"] == "corrupt"
            assert [api.send("orders", {"body": str(i)}).status for i in range(20)] == [200] * 20


@pytest.mark.parametrize("gone", ["_delta_log", "."], ids=["log", "folder"])
def test_rely_10_a_partition_whose_log_vanishes_under_the_service_is_named_and_passed_over(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, gone: str
) -> None:
    with running(config_for(tmp_path)) as api, caplog.at_level(logging.ERROR):
        api.put_topic("orders", partitions=2)
        for partition in (GOOD, BAD):
            assert api.send("orders", {"body": "x", "partition": partition}).status == 200
        shutil.rmtree(Path(api.partitions("orders")[BAD]["location"], gone))
        for _ in range(2):
            refused = api.send("orders", {"body": "y", "partition": BAD})
            assert (refused.status, refused.json["code"]) == (500, "corrupt")
            assert f"topics/orders/{BAD}" in refused.json["detail"] and "restore" in refused.json["detail"]
            assert str(tmp_path) not in refused.json["detail"]
        assert api.call("GET", "/readyz").json == {"status": "degraded", "stopped_partitions": 1, "stopped": [BAD]}
        assert "deltamq_stopped_partitions 1.0" in api.call("GET", "/metrics").body.decode()
        (named,) = api.call("GET", "/v1/cluster").json["stopped"]
        assert (named["partition"], named["detail"]) == (BAD, refused.json["detail"])
        assert caplog.text.count("event=partition_stopped") == 1
        assert [api.send("orders", {"body": str(i)}).status for i in range(20)] == [200] * 20
        sent = [api.send("orders", {"body": "p"}, producer={"id": "p", "seq": seq}).status for seq in range(20)]
        assert sent == [200] * 20
        assert api.fetch("orders", BAD).json["code"] == "corrupt"
        assert api.fetch("orders", GOOD).status == 200


def test_rely_10_a_logical_queue_is_named_by_its_number(tmp_path: Path) -> None:
    with running(config_for(tmp_path)) as api:
        api.put_topic("static", static=True, total_queues=2)
        queue = queue_name(1)
        assert api.send("static", {"body": "x", "partition": queue}).status == 200
        shown = api.call("GET", "/v1/topics/static").json
        segments = next(one["segments"] for one in shown["logical_queues"] if one["partition"] == queue)
        partitions = {one["partition"]: one for one in shown["partitions"]}
        folder = Path(partitions[segments[-1]["partition"]]["location"])
        newest = max((folder / "_delta_log").glob("*.json"))
        newest.with_name(f"{int(newest.stem) + 1:020d}.json").write_bytes(b"")
        assert api.send("static", {"body": "x", "partition": queue}).status == 500
        assert [one["queue"] for one in api.call("GET", "/v1/cluster").json["stopped"]] == [queue]


@pytest.mark.promise("HOST-6")
def test_rely_10_with_a_stopped_metadata_log_nothing_is_acknowledged(tmp_path: Path) -> None:
    with running(config_for(tmp_path)) as api:
        api.put_topic("orders", partitions=2)
        assert api.send("orders", {"body": "x", "key": "k"}).status == 200
        (log,) = (tmp_path / "sys").glob("meta/meta@meta/_delta_log")
        newest = max(log.glob("*.json"))
        newest.with_name(f"{int(newest.stem) + 1:020d}.json").write_bytes(b"")
        until(lambda: api.call("GET", "/readyz").status == 503)
        ready = api.call("GET", "/readyz")
        assert ready.json["code"] == "metadata_stopped" and "sys/meta" in ready.json["detail"]
        for refused in (
            api.send("orders", {"body": "y", "key": "k"}),
            api.send("orders", {"body": "y"}, producer={"id": "p", "seq": 0}),
            api.call("POST", "/v1/groups/g/topics/orders/pop", {}),
        ):
            assert (refused.status, refused.json["code"]) == (503, "metadata_stopped"), refused.json
        assert "deltamq_metadata_stopped 1.0" in api.call("GET", "/metrics").body.decode()
        (named,) = api.call("GET", "/v1/cluster").json["stopped"]
        assert (named["space"], named["topic"]) == ("sys", "meta")
        assert api.fetch("orders", api_partition(api)).status == 200, "what is stored can be read"


def api_partition(api: Api) -> str:
    return next(name for name, one in api.partitions("orders").items() if one["max_offset"])
