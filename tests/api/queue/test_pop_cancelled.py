"""A client cancels a pop by closing its half of the connection: it is answered, and nothing popped by then is lost.

Otherwise what the pop had found would be hidden for its invisible time, up to hours.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from deltamq.api.ports import Ports
from tests.api.queue_calls import queue_in
from tests.api.raw_pop import RawPop
from tests.api.running import Api, config_for, running, until
from tests.faulty_store import HeldReads, faulty_disk


@pytest.fixture
def api(tmp_path: Path) -> Iterator[Api]:
    with running(config_for(tmp_path / "warehouse")) as found:
        found.put_topic("orders", partitions=2)
        found.call("PUT", "/v1/groups/billing", {})
        yield found


def test_pop_01_a_cancelled_pop_that_waits_is_answered_at_once(api: Api) -> None:
    pop = RawPop(api)
    until(lambda: api.service.lanes.waiting == 1)
    pop.cancel()
    assert pop.bodies() == []
    assert api.service.lanes.waiting == 0
    assert api.send("orders", "a").status == 200
    found = api.call("POST", "/v1/groups/billing/topics/orders/pop", {})
    assert [one["body"] for one in found.json["messages"]] == ["a"], "it took nothing more"


def test_pop_01_a_pop_cancelled_as_it_is_sent_gives_what_there_is(api: Api) -> None:
    assert api.send("orders", "a").status == 200
    for expected in (["a"], []):
        pop = RawPop(api)
        pop.cancel()
        assert pop.bodies() == expected


def test_sec_28_the_next_request_on_the_connection_ends_the_wait_and_is_answered_after_the_pop(api: Api) -> None:
    pop = RawPop(api)
    until(lambda: api.service.lanes.waiting == 1)
    pop.send_next()
    assert pop.bodies() == []
    assert pop.next_answer.startswith(b" 200 OK")
    assert api.send("orders", "a").status == 200
    pop = RawPop(api)
    pop.send_next()
    assert pop.bodies() == ["a"]
    assert pop.next_answer.startswith(b" 200 OK")


def test_pop_01_what_a_cancelled_pop_reads_meanwhile_is_given_to_its_client(tmp_path: Path) -> None:
    with queue_in(tmp_path / "warehouse") as queue:
        queue.topic()
        queue.send("a", "b")
    store, reads = faulty_disk(tmp_path / "warehouse"), HeldReads()
    # The messages are on the disk only, since another process took them.
    with queue_in(tmp_path / "warehouse", Ports(store=store, lane_busy_ms=60_000)) as queue:
        queue.group("billing")
        reads.begin(store)
        pop = RawPop(queue.api, max_messages=1)
        reads.wait()
        pop.cancel()
        reads.release()
        assert pop.bodies() == ["a"]


def test_pop_01_a_client_that_is_gone_leaves_its_place(api: Api) -> None:
    pop = RawPop(api)
    until(lambda: api.service.lanes.waiting == 1)
    pop.leave()
    until(lambda: api.service.lanes.waiting == 0)
