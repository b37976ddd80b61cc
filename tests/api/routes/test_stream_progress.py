"""A running service shows how far a streaming query has come in its group (SPARK-2, option `group`)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from deltamq.jobs.read.options import Mode, parse_options
from deltamq.jobs.stream.followed import FollowedTopics
from deltamq.jobs.stream.group_progress import GroupProgress
from deltamq.jobs.stream.planner import StreamPlanner
from deltamq.mq.streams import StreamOffset, TopicOffset
from tests.api.running import Api, config_for, running, until

pytestmark = pytest.mark.static_too

GROUP, PATH = "dashboard", "/v1/groups/dashboard/topics/orders/offsets"


def _lags(api: Api) -> dict[str, tuple[int | None, int]]:
    shown: Any = api.call("GET", PATH).json
    return {view["partition"]: (view["committed_offset"], view["lag"]) for view in shown["partitions"]}


def _position(planner: StreamPlanner, **offsets: int) -> StreamOffset:
    latest = planner.latest()
    topics = {name: TopicOffset(topic.id, offsets) for name, topic in latest.topics.items()}
    return StreamOffset(warehouse=latest.warehouse, topics=topics)


def test_spark_02_lag_of_a_streams_group_is_shown_by_a_service_that_runs(tmp_path: Path) -> None:
    config = config_for(tmp_path)
    with running(config) as api:
        api.put_topic("orders", partitions=2)
        a, b = "orders@broker-a", "orders@broker-b"
        api.send("orders", *({"body": "x", "partition": p} for p in (a, b) for _ in range(5)))
        options = parse_options({"topic": "orders"}, warehouse=config.warehouse.uri, mode=Mode.STREAM)
        planner = StreamPlanner(options)
        followed: FollowedTopics = planner.followed
        progress = GroupProgress(config.warehouse.uri, GROUP, config.warehouse.cluster, followed)
        try:
            until(lambda: api.call("GET", PATH).status == 200)
            for offset in (2, 3, 5):
                progress.commit(_position(planner, **{a: offset, b: 1}))
                until(lambda offset=offset: _lags(api).get(a) == (offset, 5 - offset))
            assert _lags(api)[b] == (1, 4)
            api.call("PUT", PATH, {"offsets": {b: 4}})
            progress.commit(_position(planner, **{a: 5, b: 2}))
            until(lambda: _lags(api)[a] == (5, 0))
            assert _lags(api)[b] == (4, 1), "a commit never goes back"
            api.call("POST", f"{PATH}/reset", {"to": "first"})
            progress.commit(_position(planner, **{a: 5, b: 5}))
            assert _lags(api) | {a: (0, 5), b: (0, 5)} == _lags(api), "void since the reset"
        finally:
            progress.close()
