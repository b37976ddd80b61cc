"""Ordered consumers of the client on a static topic whose queues move between brokers (SPEC ORDER-5, STATIC-20)."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest

from deltamq import OrderlyConsumer, Verdict
from deltamq.mq.client.messages.received import OrderedMessage
from deltamq.mq.meta.static_topics import RemapMode
from tests.api.exclusive import exclusive_group
from tests.api.running import config_for, running, until
from tests.api.static_queues import Q0, Q1, StaticTopic

A, B = "broker-a", "broker-b"
ROUNDS = 4


class Heard:
    """What listeners heard of each partition, with the client that heard it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.of: dict[str, list[tuple[str, int, str]]] = defaultdict(list)

    def listener(self, client: str) -> object:
        def listen(message: OrderedMessage) -> Verdict:
            with self._lock:
                self.of[message.partition].append((client, message.offset, message.text))
            return Verdict.SUCCESS

        return listen

    def count(self) -> int:
        return sum(map(len, self.of.values()))


@pytest.mark.parametrize(
    "processes",
    [pytest.param(((A,), (B,)), id="two"), pytest.param(((A, B),), id="one", marks=pytest.mark.long)],
)
@pytest.mark.parametrize("mode", ["strict", pytest.param("available", marks=pytest.mark.long)])
def test_order_05_no_message_is_heard_twice_or_out_of_order_while_its_queue_moves(
    tmp_path: Path, mode: RemapMode, processes: Sequence[tuple[str, ...]]
) -> None:
    with ExitStack() as lives:
        apis = [lives.enter_context(running(config_for(tmp_path, brokers=brokers))) for brokers in processes]
        a, b = apis[0], apis[-1]
        until(lambda: a.service.meta.now.brokers.available == (A, B) and b.service.hosting.hosts(B))
        exclusive_group(a, "ledger")
        made = StaticTopic(a, "orders").put(2, A)
        heard, urls = Heard(), [f"http://127.0.0.1:{api.port}" for api in apis]
        clients = [
            OrderlyConsumer(urls, "ledger", "orders", heard.listener(name), client_id=name)  # type: ignore[arg-type]
            for name in ("one", "two")
        ]
        for client in clients:
            client.start()
        until(lambda: [len(client.partitions()) for client in clients] == [1, 1])
        sent = 0
        for number in range(ROUNDS):
            for queue in (0, 1):
                made.send(queue, *(f"{number}.{at}" for at in range(5)))
            sent += 10
            made.remap((B, A)[number % 2], mode=mode)
            made.send(0, f"{number}.5")
            made.send(1, f"{number}.5")
            sent += 2
            until(lambda: heard.count() >= sent)  # noqa: B023
        assert all(client.close() for client in clients), "all was committed and given back"
        texts = [f"{number}.{at}" for number in range(ROUNDS) for at in range(6)]
        for queue in (Q0, Q1):
            assert [text for _, _, text in heard.of[queue]] == texts
            offsets = [offset for _, offset, _ in heard.of[queue]]
            assert offsets == sorted(set(offsets))
            assert (offsets == list(range(6 * ROUNDS))) == (mode == "strict"), "only `available` leaves holes"
        shown = b.call("GET", "/v1/groups/ledger/topics/orders/offsets").json
        assert [(view["partition"], view["lag"]) for view in shown["partitions"]] == [(Q0, 0), (Q1, 0)]
