"""The command line of the cluster, and of groups that consume in order."""

from __future__ import annotations

import os
import signal
import threading

import pytest

from tests.unit.client.cli.cli_run import Run
from tests.unit.client.orderly.orderly_consumers import PARTITION, fill
from tests.unit.client.stub_service import StubService

OTHER = "orders@broker-b"


def test_the_cluster_for_people(run: Run, stub: StubService) -> None:
    stub.hosted = {"broker-a": stub}
    lines = run("cluster").out.splitlines()
    assert lines[0] == "/w: 1 process, 2 brokers, 1 topics, routes epoch 1"
    assert lines[2].split()[:5] == ["broker-a", stub.url, "broker", "1", "1"]
    assert lines[3].split()[:2] == ["broker-b", "-"]


def test_the_cluster_for_machines(run: Run, stub: StubService) -> None:
    stub.hosted = {"broker-a": stub}
    told = run("cluster", "--json").json
    assert [(one["broker"], one["address"]) for one in told["brokers"]] == [("broker-a", stub.url), ("broker-b", None)]


@pytest.fixture
def exclusive(stub: StubService) -> None:
    """An exclusive group and two partitions with three messages each."""
    stub.create("orders", 2)
    fill(stub, 3)
    fill(stub, 3, OTHER)
    stub.order.strategies["ledger"] = "exclusive"
    with stub.changed:
        stub.queue.twin.put_group("ledger", consume_strategy="exclusive")


def test_order_06_an_exclusive_group_prints_each_partition_in_order_up_to_the_end(
    run: Run, stub: StubService, exclusive: None
) -> None:
    done = run("consume", "orders", "--group", "ledger")
    assert done.status == 0
    places = [line.split("\t")[0] for line in done.out.splitlines()]
    for partition in (PARTITION, OTHER):
        mine = [place for place in places if place.startswith(f"{partition}:")]
        assert mine == [f"{partition}:{offset}" for offset in range(3)]
    assert stub.order.committed == {PARTITION: 3, OTHER: 3}
    assert run("consume", "orders", "--group", "ledger").out == "", "it goes on where it was"


def test_order_06_what_is_not_printed_is_not_committed(run: Run, stub: StubService, exclusive: None) -> None:
    assert len(run("consume", "orders", "--group", "ledger", "--max", "4").out.splitlines()) == 4
    assert sum(stub.order.committed.values()) == 4
    assert len(run("consume", "orders", "--group", "ledger", "--json").out.splitlines()) == 2


def test_cons_01_a_new_group_may_be_asked_to_be_exclusive(run: Run, stub: StubService) -> None:
    stub.create("orders", 1)
    fill(stub, 1)
    assert run("consume", "orders", "--group", "fresh", "--order", "exclusive").out.startswith(f"{PARTITION}:0\t")
    assert stub.order.strategies["fresh"] == "exclusive"


def test_an_exclusive_group_allocates_its_partitions_itself(run: Run, stub: StubService, exclusive: None) -> None:
    done = run("consume", "orders", "--group", "ledger", "--partition", PARTITION)
    assert done.status == 2
    assert "leave out --partition" in done.err


def test_sigterm_ends_it_well(run: Run, stub: StubService, exclusive: None) -> None:
    def stop() -> None:
        stub.wait_for(lambda: sum(stub.order.committed.values()) == 6)
        os.kill(os.getpid(), signal.SIGTERM)

    stopping = threading.Thread(target=stop)
    stopping.start()
    done = run("consume", "orders", "--group", "ledger", "--follow")
    stopping.join()
    assert done.status == 0
    assert len(done.out.splitlines()) == 6
    assert {kind for kind, _, _ in stub.order.lock_events[-2:]} == {"release"}
