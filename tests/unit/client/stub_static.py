"""Static topics of the stub service: the pure core decides, messages lie in memory by physical partition."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import UTC, datetime
from typing import Any

from deltamq.mq.errors import NotFound
from deltamq.mq.meta import static_topics
from deltamq.mq.routing import Route
from deltamq.mq.static.logical_queue import LogicalQueue
from deltamq.mq.static.mappings import MappingRemoved
from deltamq.mq.static.queue_names import queue_index, queue_name
from deltamq.mq.static.reading import next_after, read_start
from deltamq.mq.static.segments import Segment
from tests.static_topics import TOPIC, StaticWorld

Row = dict[str, Any]

#: What the description of a plain topic says of logical queues.
PLAIN: Row = {"static": False, "total_queues": None, "logical_queues": None}


class StubStatic:
    """One static topic, `orders`; a remapping waits for `seal` if `seals` is False, as if a process were away."""

    def __init__(self, brokers: Sequence[str], total_queues: int, *, strict: bool = False) -> None:
        self.world = StaticWorld(brokers=brokers)
        self.world.put(total_queues, strict=strict)
        self.seals = True
        self.rows: dict[str, list[Row]] = {}
        self.remaps: list[dict[str, Any]] = []

    @property
    def route(self) -> Route:
        """The route by the names that clients use."""
        static = self.world.topic.static
        assert static is not None
        names = tuple(queue_name(index) for index in range(static.total))
        return Route(epoch=self.world.topic.route.epoch, partitions=names, owners=static.owners)

    def queue(self, name: str) -> LogicalQueue | None:
        index = queue_index(name)
        return None if index is None else self.world.queues.get(index)

    def lose_mapping(self, broker: str) -> None:
        """Remove a broker's mapping, as if its storage were lost."""
        self.world.apply([MappingRemoved(topic_id=self.world.topic.id, holder=broker)])

    # Sends and fetches.

    def append(self, name: str, rows: Sequence[Row]) -> int:
        """Append to a queue; return the logical offset of the first one, -1 while it is not decided."""
        queue = self.queue(name)
        assert queue is not None, "the queue is served"
        moved = self.world.meta.moved_keys(self.world.topic.id)
        partition = moved.behind.get(queue.leader.partition, queue.leader.partition)
        log = self.rows.setdefault(partition, [])
        log += [{**row, "append_time": datetime.now(UTC)} for row in rows]
        offsets = self.world.send(queue.index, len(rows))
        return -1 if offsets[0] is None else offsets[0]

    def bounds(self, queue: LogicalQueue) -> tuple[int, int]:
        newest = queue.newest_readable
        return queue.readable[0].logic_offset, newest.logical(self._end(newest))

    def _end(self, segment: Segment) -> int:
        return len(self.rows.get(segment.partition, []))

    def fetch(self, name: str, offset: int, count: int) -> tuple[str, list[Row], int]:
        """Return status, rows and next offset of a fetch; it never crosses a segment."""
        queue = self.queue(name)
        if queue is None:
            raise NotFound("no such queue", code="partition_not_found")
        low, high = self.bounds(queue)
        if not low <= offset <= high:
            return ("offset_too_small" if offset < low else "offset_too_large"), [], offset
        segment, physical = read_start(queue, offset)
        found = self.rows.get(segment.partition, [])[physical : physical + count]
        rows = [{**row, "offset": segment.logical(physical + at)} for at, row in enumerate(found)]
        return ("found" if rows else "no_new_message"), rows, next_after(queue, segment, physical + len(found))

    # The calls of administrators.

    def put(self, wanted: dict[str, Any]) -> None:
        self.world.put(wanted["total_queues"], brokers=_tuple(wanted.get("brokers")))

    def remap(self, wanted: dict[str, Any]) -> dict[str, Any]:
        self.remaps.append(wanted)
        mode, plan = wanted["mode"], wanted.get("plan", False)
        before, kept = self.world.queues, self.world.meta
        self.world.remap(wanted["brokers"], mode, wanted.get("queues"))
        if self.seals and not plan:
            self.world.seal()
        after = self.world.queues
        if plan:
            self.world.meta = kept
        moved = [
            _moved(before[index], queue)
            for index, queue in after.items()
            if queue.leader.partition != before[index].leader.partition
        ]
        return {"topic": TOPIC, "plan": plan, "mode": mode, "moved": moved, "seal_ms": None if plan else 2.5}

    def check(self) -> dict[str, Any]:
        meta, topic = self.world.meta, self.world.topic
        assert topic.static is not None
        faults = _faults(static_topics.static_faults(meta, topic))
        mappings = [
            {
                "broker": holder,
                "epoch": one.epoch,
                "total_queues": one.total_queues,
                "hosted": len(one.hosted),
                "copies": len(one.copies),
            }
            for holder, one in sorted(meta.mappings(topic.id).by_broker.items())
        ]
        basis = {"topic": TOPIC, "epoch": topic.static.epoch, "total_queues": topic.static.total}
        return {**basis, "complete": not faults, "faults": faults, "mappings": mappings}

    def repair(self, wanted: dict[str, Any]) -> dict[str, Any]:
        faults, kept = self.check()["faults"], self.world.meta
        self.world.repair()
        repaired = sorted(self.world.meta.mappings(self.world.topic.id).by_broker) if faults else []
        if wanted.get("plan"):
            self.world.meta = kept
        return {"topic": TOPIC, "plan": bool(wanted.get("plan")), "faults": faults, "repaired": repaired}

    # The description.

    def describe(self) -> dict[str, Any]:
        """Return what a static topic's description has besides that of a plain one."""
        route, served = self.route, self.world.queues
        owned = {
            index: [[low, high] for low, high, owner in route.owners if owner == index]
            for index in range(len(route.partitions))
        }
        queues = [{**self._queue(index, served.get(index)), "logical_partitions": owned[index]} for index in owned]
        return {
            "static": True,
            "total_queues": len(queues),
            "logical_queues": queues,
            "routes_epoch": route.epoch,
            "order_strategy": self.world.topic.settings.order_strategy,
        }

    def _queue(self, index: int, queue: LogicalQueue | None) -> Row:
        basis = {"queue": index, "partition": queue_name(index)}
        if queue is None:
            return {**basis, "state": "queue_unserved", "segments": []}
        low, high = self.bounds(queue)
        segments = [self._segment(queue, segment) for segment in queue.segments]
        messages = sum(self._end(segment) for segment in queue.segments)
        numbers = {"min_offset": low, "max_offset": high, "messages": messages, "holes": queue.holes, "epoch": 1}
        return {**basis, **numbers, "state": "serving", "segments": segments}

    @staticmethod
    def _segment(queue: LogicalQueue, segment: Segment) -> Row:
        return {
            "gen": segment.gen,
            "partition": segment.partition,
            "broker": segment.broker,
            "logic_offset": segment.logic_offset,
            "start_offset": segment.start_offset,
            "end_offset": segment.end_offset,
            "state": "leader" if segment is queue.leader else "sealed",
        }


def _tuple(names: Collection[str] | None) -> tuple[str, ...] | None:
    return None if names is None else tuple(names)


def _moved(before: LogicalQueue, after: LogicalQueue) -> Row:
    old = after.segments[-2]
    return {
        "queue": after.index,
        "from": before.leader.broker,
        "to": after.leader.broker,
        "old_partition": old.partition,
        "new_partition": after.leader.partition,
        "end_offset": old.end_offset if old.is_sealed else None,
        "logic_offset": after.leader.logic_offset if after.leader.is_decided else None,
    }


def _faults(found: Sequence[Any]) -> list[Row]:
    return [{"kind": one.kind, "broker": one.broker, "queue": one.queue, "detail": one.detail} for one in found]
