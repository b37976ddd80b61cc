"""A queue in a service with a clock that tests move: consumers, the revive job, and the contents of the tables."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Coroutine, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar
from urllib.parse import quote

import msgspec
from msgspec.structs import replace

from deltamq.api.ports import REAL, Ports
from deltamq.mq.limits import WAIT_MS_MAX
from deltamq.mq.names import broker_of
from deltamq.mq.queue.checkpoint import LaneKey
from deltamq.mq.queue.progress import Committed
from deltamq.mq.queue.revive_log import CheckpointState
from deltamq.tables.config import Config
from deltamq.tables.config_sections import QueueSettings
from deltamq.tables.log.paging import pages
from deltamq.tables.log.warehouse import Warehouse
from deltamq.tables.paths import PartitionRef
from deltamq.tables.queue.recovery import recover
from deltamq.tables.queue.refs import dead_ref, retry_ref
from deltamq.tables.store.store import Store
from tests.api.as_static import AsStatic
from tests.api.running import ARROW, JSON, Api, Reply, config_for, running
from tests.queue_engines import revive_job
from tests.set_clock import SetClock

__all__ = ["Consumer", "Popped", "Queue", "queue_in"]

Json = dict[str, Any]
T = TypeVar("T")


class Popped(msgspec.Struct, frozen=True):
    """One pop's answer."""

    messages: list[Json]
    rest: int
    invisible_ms: int
    failed: dict[str, str]

    @property
    def bodies(self) -> list[str]:
        return [message["body"] for message in self.messages]

    @property
    def handles(self) -> list[str]:
        return [message["handle"] for message in self.messages]

    @property
    def attempts(self) -> list[int]:
        return [message["delivery_attempt"] for message in self.messages]


class Consumer(msgspec.Struct, frozen=True):
    """A group in a topic."""

    api: Api
    group: str
    topic: str

    @property
    def path(self) -> str:
        return f"/v1/groups/{quote(self.group, safe='')}"

    def ask(self, accept: str = JSON, **request: Any) -> Reply:
        path = f"{self.path}/topics/{quote(self.topic, safe='')}/pop"
        return self.api.call("POST", path, request, Accept=accept)

    def pop(self, max_messages: int = 32, **request: Any) -> Popped:
        reply = self.ask(max_messages=max_messages, **request)
        assert reply.status == 200, reply
        answer = reply.json
        failed = {one["handle"]: one["code"] for one in answer["failed_acks"]}
        return Popped(answer["messages"], answer["rest"], answer["invisible_ms"], failed)

    def pop_again(self, count: int, **request: Any) -> Popped:
        """Pop until `count` messages have come: another process has appended them, and the service soon sees them."""
        found = self.pop(count, wait_ms=WAIT_MS_MAX, **request)
        while len(found.messages) < count:
            more = self.pop(count - len(found.messages), wait_ms=WAIT_MS_MAX, **request)
            assert more.messages, f"only {found.bodies} came"
            found = replace(more, messages=[*found.messages, *more.messages])
        return found

    def pop_arrow(self, max_messages: int = 32, **request: Any) -> Reply:
        reply = self.ask(ARROW, max_messages=max_messages, **request)
        assert reply.status == 200, reply
        return reply

    def pop_all(self, **request: Any) -> list[Json]:
        """Pop until no message is left; returns all of them."""
        found: list[Json] = []
        while messages := self.pop(1_024, **request).messages:
            found += messages
        return found

    def call(self, what: str, **request: Any) -> Reply:
        return self.api.call("POST", f"{self.path}/{what}", request)

    def handles_call(self, what: str, handles: list[str], **request: Any) -> dict[str, str]:
        """Call ack, nack or dead, and check the count; returns the codes of the refused handles."""
        reply = self.call(what, handles=handles, **request)
        assert reply.status == 200, reply
        failed = reply.json["failed"]
        (count,) = [value for name, value in reply.json.items() if name != "failed"]
        assert count == len(handles) - len(failed)
        return {one["handle"]: one["code"] for one in failed}

    def ack(self, handles: list[str]) -> dict[str, str]:
        return self.handles_call("ack", handles)

    def nack(self, handles: list[str], **request: Any) -> dict[str, str]:
        return self.handles_call("nack", handles, **request)

    def dead(self, handles: list[str], reason: str = "rejected") -> dict[str, str]:
        return self.handles_call("dead", handles, reason=reason)

    def invisible(self, handle: str, invisible_ms: int) -> Reply:
        return self.call("invisible", handle=handle, invisible_ms=invisible_ms)

    def lanes(self, *, retry: bool = False) -> list[LaneKey]:
        """Return the group's lanes of the topic's partitions, or of its retry partitions."""
        subscription = self.api.service.lanes.group_topic(
            self.api.service.topics.state.topic(self.topic), self.api.service.groups.state.group(self.group)
        )
        return [seat.key for seat in subscription.lanes(None) if seat.key.retry is retry]

    def in_flight(self) -> int:
        return sum(
            self.api.service.lanes.in_flight(lane) for retry in (False, True) for lane in self.lanes(retry=retry)
        )


class Queue:
    """A warehouse, a clock, and a service that tests may stop and start."""

    def __init__(self, folder: Path, clock: SetClock, config: Config, ports: Ports, *, static: bool = False) -> None:
        """With `static`, all topics are static."""
        self.folder = folder
        self.static = static
        self.clock = clock
        #: The engine of the jobs (`tests.queue_engines`).
        self.engine = "local"
        self.config = config
        self._ports = replace(ports, clock=clock)
        self._stack = contextlib.ExitStack()
        self._names: dict[str, list[str]] = {}
        self.api: Api
        self.start()

    def start(self, **queue: Any) -> None:
        """Start a service, with changed settings of the queue if any are given."""
        if queue:
            self.config = replace(self.config, queue=replace(self.config.queue, **queue))
        api = self._stack.enter_context(running(self.config, self._ports))
        self.api = AsStatic(api.port, api.service, self._names) if self.static else api

    def stop(self) -> None:
        """Stop the service cleanly."""
        self._stack.close()

    def restart(self, **queue: Any) -> None:
        self.stop()
        self.start(**queue)

    def crash(self, **queue: Any) -> None:
        """Restart without storing what is only in memory; tests/faults kill real processes."""
        lanes = self.api.service.lanes

        async def forgetful() -> None:
            for timer in lanes._timers:
                timer.cancel()

        lanes.stop = forgetful  # type: ignore[method-assign] # a killed process stores nothing
        self.clock.advance_ms(1)
        self.restart(**queue)

    @property
    def now_ms(self) -> int:
        return self.clock.wall_us() // 1_000

    def advance(self, ms: int) -> None:
        """Advance the clock; returns when the service has stored everything that is due."""
        self.clock.advance_ms(ms)
        self.settle()

    def settle(self) -> None:
        """Let the service store everything that is due, and the offsets that have moved."""
        lanes = self.api.service.lanes
        self.run(lanes.store_due())
        self.run(lanes.flush())

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the service's event loop; returns its result."""
        return asyncio.run_coroutine_threadsafe(work, self.api.service.loop).result(30)

    def consumer(self, group: str, topic: str = "orders") -> Consumer:
        return Consumer(self.api, group, topic)

    def topic(self, partitions: int = 1, name: str = "orders", **settings: object) -> list[str]:
        self.api.put_topic(name, partitions=partitions, **settings)
        return list(self.api.partitions(name))

    def group(self, name: str, **settings: object) -> Consumer:
        reply = self.api.call("PUT", Consumer(self.api, name, "").path, settings)
        assert reply.status in (200, 201), reply
        return self.consumer(name)

    def send(self, *bodies: str, topic: str = "orders", **fields: object) -> None:
        reply = self.api.send(topic, *[{"body": body, **fields} for body in bodies])
        assert reply.status == 200, reply

    def revive(self, *, ahead_ms: int = 0, store: Store | None = None) -> None:
        """Run the revive job once, as another process would, with its clock ahead or another store if given."""
        warehouse = Warehouse.open(str(self.folder), clock=self.clock, store=store)
        with contextlib.closing(warehouse):
            revive_job(self.engine, warehouse, self.config).run(self.now_ms + ahead_ms)

    # Contents of the tables.

    def committed(self, lane: LaneKey) -> Committed | None:
        return self._recovered()[0].get(lane)

    def states(self, lane: LaneKey) -> list[CheckpointState]:
        return self._recovered()[1].get(lane, [])

    def _recovered(self) -> tuple[dict[LaneKey, Committed], dict[LaneKey, list[CheckpointState]]]:
        warehouse = Warehouse.open(str(self.folder))
        with contextlib.closing(warehouse):
            found = recover(warehouse, self.config.warehouse.cluster, self.config.service.brokers)
        return dict(found.committed), {lane: list(states) for lane, states in found.states.items()}

    def rows(self, ref: PartitionRef) -> list[Json]:
        """Return all rows of a partition; none if there is no such table."""
        warehouse = Warehouse.open(str(self.folder))
        with contextlib.closing(warehouse):
            if not warehouse.exists(ref):
                return []
            log = warehouse.open_partition(ref)
            return [row for page in pages(log, log.min_offset) for row in page.rows.to_pylist()]

    def dead_letters(self, group: str) -> list[Json]:
        epoch = self.api.service.groups.state.group(group).epoch
        brokers = self.config.service.brokers
        return [row for broker in brokers for row in self.rows(dead_ref(group, epoch, broker))]

    def retries(self, group: str, topic: str = "orders") -> list[Json]:
        found = self.api.service.topics.state.topic(topic)
        epoch = self.api.service.groups.state.group(group).epoch
        brokers = dict.fromkeys(broker_of(name) for name in found.route.partitions)
        refs = [retry_ref(group, epoch, topic, found.generation, broker) for broker in brokers]
        return [row for ref in refs for row in self.rows(ref)]


@contextlib.contextmanager
def queue_in(
    folder: Path,
    ports: Ports = REAL,
    service: Mapping[str, Any] = MappingProxyType({}),
    *,
    static: bool = False,
    **queue: Any,
) -> Iterator[Queue]:
    """Yield a queue with a clock that only tests advance; `service` and `queue` are settings; see `Queue`."""
    config = replace(config_for(folder, **service), queue=QueueSettings(**queue))
    found = Queue(folder, SetClock(), config, ports, static=static)
    try:
        yield found
    finally:
        found.stop()
