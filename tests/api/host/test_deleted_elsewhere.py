"""A topic that another process deletes: what one that has not heard of it answers, and how that differs from damage."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.api.running import Api, Reply, config_for, running

#: The second process looks at the metadata when it must, and not by itself.
_SELDOM = {"refresh_ms": 60_000, "lease_ms": 600_000, "lease_renew_ms": 300_000}


class Two(NamedTuple):
    """`owner` has broker-a; `asked` began later and learns nothing of the other's changes by itself."""

    owner: Api
    asked: Api


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Two]:
    warehouse = tmp_path_factory.mktemp("deleted")
    with (
        running(config_for(warehouse, brokers=("broker-a",))) as owner,
        running(config_for(warehouse, brokers=("broker-b",), **_SELDOM)) as asked,
    ):
        yield Two(owner, asked)


def _known_to_both(two: Two, topic: str) -> str:
    """A topic with a message in each partition, which the asked process has open, but not in memory."""
    for partition in (f"{topic}@broker-a", f"{topic}@broker-b"):
        assert two.owner.send(topic, {"body": "x", "partition": partition}).status == 200
        assert two.asked.fetch(topic, partition, "?offset=1").json["status"] == "no_new_message"
    return f"{topic}@broker-a"


def _told(reply: Reply) -> tuple[int, str]:
    return reply.status, reply.json["code"]


@pytest.mark.promise("DAMAGE-2")
@pytest.mark.parametrize("first", ["produce", "fetch", "fetch of a tag", "pop"])
def test_meta_01_a_topic_that_another_process_deleted_is_not_found(two: Two, topic: str, first: str) -> None:
    """Whichever call meets the missing files first, and the one after it."""
    partition = _known_to_both(two, topic)
    pop = f"/v1/groups/g/topics/{topic}/pop"
    assert two.owner.call("DELETE", f"/v1/topics/{topic}").status == 204
    calls: dict[str, Callable[[], Reply]] = {
        "produce": lambda: two.asked.send(topic, {"body": "y", "partition": partition}),
        "fetch": lambda: two.asked.fetch(topic, partition),
        "fetch of a tag": lambda: two.asked.fetch(topic, partition, "?tags=none"),
        "pop": lambda: two.asked.call("POST", pop, {"partition": f"{topic}@broker-b"}),
    }
    refused = calls[first]()
    assert _told(refused) == (404, "topic_not_found")
    assert str(two.asked.service.warehouse.folder) not in refused.body.decode()
    assert _told(two.asked.fetch(topic, partition)) == (404, "topic_not_found")


def test_meta_01_a_topic_that_was_made_again_elsewhere_is_asked_for_again(two: Two, topic: str) -> None:
    partition = _known_to_both(two, topic)
    assert two.owner.call("DELETE", f"/v1/topics/{topic}").status == 204
    assert two.owner.send(topic, {"body": "new", "partition": partition}).status == 200
    refused = two.asked.fetch(topic, partition)
    assert (_told(refused), refused.headers["retry-after"]) == ((503, "topic_changed"), "1")
    assert two.asked.bodies_of(topic, partition) == ["new"]
    assert two.asked.send(topic, {"body": "y", "partition": partition}).json["ranges"][0]["base_offset"] == 1


@pytest.mark.promise("DAMAGE-2")
def test_a_living_topic_whose_files_are_gone_is_corrupt(tmp_path: Path) -> None:
    partition = "orders@broker-a"
    with running(config_for(tmp_path)) as api:
        assert api.send("orders", {"body": "x", "partition": partition}).status == 200
        folder = Path(api.partitions("orders")[partition]["location"])
    with running(config_for(tmp_path)) as api:
        assert api.fetch("orders", partition, "?offset=1").json["status"] == "no_new_message"
        shutil.rmtree(folder)
        for reply in (
            api.send("orders", {"body": "y", "partition": partition}),
            api.fetch("orders", partition),
            api.send("orders", {"body": "y", "partition": partition}),
        ):
            assert _told(reply) == (500, "corrupt"), reply
            assert str(tmp_path) not in reply.body.decode()
