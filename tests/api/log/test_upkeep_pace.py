"""When upkeep follows the commits of a partition."""

from __future__ import annotations

import pytest

from deltamq.api.log.tending import UpkeepPace
from tests.api.running import Api, until


def test_upkeep_follows_a_lonely_commit_soon() -> None:
    pace = UpkeepPace()
    assert pace.committed(100.0) == 0.02
    pace.begun(100.02)
    assert pace.committed(200.0) == 0.02


def test_a_busy_partition_waits_for_a_second() -> None:
    pace = UpkeepPace()
    pace.begun(100.0)
    assert pace.committed(100.25) == 0.75
    assert pace.committed(100.99) == 0.02


def test_or_for_128_commits() -> None:
    pace = UpkeepPace()
    pace.begun(100.0)
    waits = [pace.committed(100.0 + number / 1_000) for number in range(128)]
    assert waits[-2] == pytest.approx(1 - 0.126) and waits[-1] == 0.0
    pace.begun(100.2)
    assert pace.committed(100.2) == 1.0


def test_the_files_of_a_busy_partition_become_few(api: Api, topic: str) -> None:
    api.put_topic(topic, partitions=1)
    for number in range(200):
        api.send(topic, str(number))
    found = api.service.topics.find(topic)
    assert found is not None
    opened = found.partition(f"{topic}@broker-a").open()
    until(lambda: len(opened.state.files) < 64)
    assert api.bodies_of(topic, f"{topic}@broker-a") == [str(number) for number in range(200)]
