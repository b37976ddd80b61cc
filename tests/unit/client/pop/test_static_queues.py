"""Pop consumers of static topics: at the hosts of all segments; handles answer wherever they are sent (STATIC-20)."""

from __future__ import annotations

from typing import Any

import pytest

from deltamq.mq.client.pop.lease import Lease
from deltamq.mq.client.shells.shell import run_now
from tests.unit.client.pop.pop_consumers import Consume
from tests.unit.client.stub_service import StubService

A, B = "broker-a", "broker-b"


@pytest.mark.threads
def test_static_20_a_topic_is_popped_at_the_hosts_of_all_its_segments(stub: StubService, consume: Consume) -> None:
    """Both queues are led by one broker; messages that are not consumed yet lie at the other, too."""
    static = stub.create_static(2)
    static.remap({"brokers": [B], "mode": "strict"})
    with StubService() as other:
        stub.beside(other)
        consumer = consume(lambda _: None)
        targets: Any = None
        while targets is None or len(targets) < 2:
            run_now(consumer._client.hosts.look())
            targets = run_now(consumer._pollers._wanted())
        assert {host.url for _, host in targets} == {stub.url, other.url}
        consumer.close(timeout_s=5)


def test_static_20_a_message_of_a_logical_queue_is_settled_at_any_host() -> None:
    def lease(partition: str) -> Lease:
        return Lease("orders", partition, 10_000, "handle", invisible_ms=1_000, popped_at=0.0)

    assert lease("0@__logical_queue_broker__").broker is None
    assert lease("%RETRY%billing@broker-a").broker == A
