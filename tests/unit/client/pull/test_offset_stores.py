"""A pull consumer that goes on where it, or its group, has been (SPEC CONS-1, CONS-4)."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from deltamq.mq.client.pull.consumer import PullConsumer
from deltamq.mq.client.pull.offsets import FileOffsets, GroupOffsets
from deltamq.mq.errors import Refused
from tests.unit.client.pop.pop_consumers import QUICK
from tests.unit.client.stub_service import StubService

PARTITION = "orders@broker-a"


@pytest.fixture
def pull(stub: StubService) -> Callable[..., list[int]]:
    """Poll so many messages with a consumer of its own; commit them."""
    stub.create("orders", 1).log(PARTITION).extend({"offset": at, "body": b"%d" % at} for at in range(10))

    def pull(offsets: Any, count: int, **settings: Any) -> list[int]:
        with PullConsumer(stub.url, "orders", offsets=offsets, patience=QUICK, **settings) as consumer:
            found = [message.offset for message in consumer.poll(count)]
            assert consumer.commit() == {PARTITION: found[-1] + 1}
            return found

    return pull


def test_cons_07_broadcast_clients_hear_everything_each_at_its_own_pace(
    pull: Callable[..., list[int]], tmp_path: Path
) -> None:
    one, other = FileOffsets(tmp_path / "one.json"), FileOffsets(tmp_path / "other.json")
    assert pull(one, 4) == [0, 1, 2, 3]
    assert pull(other, 2) == [0, 1]
    assert pull(FileOffsets(tmp_path / "one.json"), 3) == [4, 5, 6], "a new process goes on"
    assert pull(other, 8) == [2, 3, 4, 5, 6, 7, 8, 9]


def test_kept_offsets_survive_a_power_cut(
    pull: Callable[..., list[int]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[tuple[int, bool]] = []
    fsync = os.fsync

    def sync(file: int) -> None:
        fsync(file)
        synced.append((os.fstat(file).st_ino, (tmp_path / "kept.json").exists()))

    monkeypatch.setattr(os, "fsync", sync)
    pull(FileOffsets(tmp_path / "kept.json"), 2)
    assert synced == [((tmp_path / "kept.json").stat().st_ino, False), (tmp_path.stat().st_ino, True)]


def test_cons_02_the_start_holds_only_where_nothing_is_kept(pull: Callable[..., list[int]], tmp_path: Path) -> None:
    offsets = FileOffsets(tmp_path / "kept.json")
    assert pull(offsets, 2, start=6) == [6, 7]
    assert pull(offsets, 1, start="first") == [8]


@pytest.mark.parametrize("start", ["last", 5, {PARTITION: 3}], ids=["last", "offset", "offsets"])
def test_model_4_what_an_expansion_added_meanwhile_is_read_from_its_first_message(
    stub: StubService, pull: Callable[..., list[int]], tmp_path: Path, start: Any
) -> None:
    offsets = FileOffsets(tmp_path / "kept.json")
    assert pull(offsets, 2, start=6) == [6, 7]
    stub.expand("orders", 2)
    added = stub.topics["orders"].route.partitions[1]
    stub.topics["orders"].log(added).extend({"offset": at, "body": b"%d" % at} for at in range(10))
    with PullConsumer(stub.url, "orders", offsets=offsets, start=start, patience=QUICK) as consumer:
        assert consumer.positions() == {PARTITION: 8, added: 0}


def test_cons_02_the_start_holds_for_what_was_there_and_is_not_kept(
    stub: StubService, pull: Callable[..., list[int]], tmp_path: Path
) -> None:
    """Nobody knows of these that they were added: nothing is kept at all, or what is kept is of a later one."""
    stub.expand("orders", 2)
    old, new = stub.topics["orders"].route.partitions
    for name in (old, new):
        stub.topics["orders"].log(name).extend({"offset": at, "body": b"%d" % at} for at in range(10, 12))

    def positions(**settings: Any) -> dict[str, int]:
        offsets = FileOffsets(tmp_path / "kept.json")
        with PullConsumer(stub.url, "orders", offsets=offsets, patience=QUICK, **settings) as consumer:
            consumer.commit()
            return consumer.positions()

    assert positions(partitions=[new], start="last") == {new: 2}
    assert positions(start="last") == {old: 12, new: 2}
    (tmp_path / "kept.json").unlink()
    assert positions(start="last") == {old: 12, new: 2}, "nothing is kept"
    (tmp_path / "kept.json").unlink()
    assert positions(partitions=[old], start="last") == {old: 12}
    assert positions(partitions=[old, new], start="last") == {old: 12, new: 2}, "who names partitions reads these"
    (tmp_path / "kept.json").write_text(json.dumps({"orders": {"topic_id": "t-1", "offsets": {old: 7}}}))
    assert positions(start={new: 1}) == {old: 7, new: 1}, "the start names it"


def test_a_file_keeps_the_offsets_of_several_topics(
    stub: StubService, pull: Callable[..., list[int]], tmp_path: Path
) -> None:
    stub.create("bills", 1).log("bills@broker-a").append({"offset": 0, "body": b"0"})
    offsets = FileOffsets(tmp_path / "kept.json")
    pull(offsets, 3)
    with PullConsumer(stub.url, "bills", offsets=offsets, patience=QUICK) as consumer:
        consumer.poll()
        consumer.commit()
    assert pull(offsets, 1) == [3]


def test_a_file_that_holds_something_else_is_refused(pull: Callable[..., list[int]], tmp_path: Path) -> None:
    (tmp_path / "kept.json").write_text("[1, 2]")
    with pytest.raises(Refused) as refused:
        pull(FileOffsets(tmp_path / "kept.json"), 1)
    assert refused.value.code == "offsets_unreadable"


def test_cons_04_shared_pull_goes_on_where_the_group_is(stub: StubService, pull: Callable[..., list[int]]) -> None:
    stub.queue.offsets = lambda group, topic: kept.get(group, {})
    kept: dict[str, dict[str, int]] = {"audit": {PARTITION: 7}}
    assert pull(GroupOffsets("audit"), 2) == [7, 8]
    committed = [call.request for call in stub.queue.calls_of("PUT")]
    assert committed == [{"offsets": {PARTITION: 9}, "topic_id": "t-1"}]
    assert pull(GroupOffsets("new"), 1) == [0], "a group that has not begun begins at the start"


def test_without_a_store_there_is_nothing_to_commit(stub: StubService) -> None:
    stub.create("orders", 1)
    with PullConsumer(stub.url, "orders", patience=QUICK) as consumer, pytest.raises(Refused) as refused:
        consumer.commit()
    assert refused.value.code == "no_offsets"
