"""The pollers of a consumer, begun and ended by different threads."""

from __future__ import annotations

import threading

from deltamq.mq.client.pop.consumer import PopConsumer
from deltamq.mq.client.shells.shell import Running, Work, run_now
from tests.unit.client.pop.pop_consumers import QUICK
from tests.unit.client.stub_service import StubService


def test_an_end_that_comes_as_the_first_poller_begins_waits_for_it(stub: StubService) -> None:
    """It once found a thread that was not started, and failed: the consumer was not closed."""
    stub.create("orders", 1)
    consumer = PopConsumer(stub.url, "billing", "orders", lambda _: None, patience=QUICK)
    pollers = consumer._pollers
    failures: list[BaseException] = []

    def end() -> None:
        try:
            run_now(pollers.end())
        except BaseException as error:
            failures.append(error)

    ending = threading.Thread(target=end)

    begin = pollers._begin

    def late(name: str, work: Work) -> Running:
        ending.start()
        # As long as it takes to go wrong: an end that is right waits for this.
        ending.join(0.2)
        return begin(name, work)

    pollers._begin = late
    run_now(pollers.run(False))
    ending.join(10)
    assert not ending.is_alive() and failures == []
    consumer.close(timeout_s=1)
