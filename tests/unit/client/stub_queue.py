"""Groups and POP of the stub service: the in-memory queue behind the REST contract, in real time.

The in-memory queue (`twin`) decides; this module translates for HTTP. Jobs run before each call, so that due messages
are there, and each kind of call takes the next of its `faults`, as produce requests do.
"""

from __future__ import annotations

import base64
import enum
import json
import select
import socket
import threading
import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

import msgspec
import pyarrow as pa

from deltamq.mq.errors import DeltaMQError, NotFound
from deltamq.mq.meta.group_settings import InvisibleBounds
from deltamq.mq.queue.dead_letters import Deleted, LetterMarks, SentBack
from deltamq.mq.queue.progress import Start
from deltamq.mq.queue.retry import DEAD_REASON_HEADER, without_reason
from deltamq.mq.testing.broker import Popped
from deltamq.mq.testing.log import Row
from deltamq.mq.testing.queue import MemoryQueue
from tests.unit.client.stub_topics import ROWS

ORIGIN = pa.struct([("topic", pa.string()), ("partition", pa.string()), ("offset", pa.int64())])
POP_ROWS = pa.schema(
    [
        *ROWS,
        pa.field("deliver_time", pa.timestamp("us", tz="UTC")),
        pa.field("origin", ORIGIN),
        pa.field("partition", pa.string()),
        pa.field("handle", pa.string()),
        pa.field("delivery_attempt", pa.int32()),
    ]
)


class QueueFault(enum.Enum):
    """The faults of a call."""

    NONE = "answer as usual"
    DROP_BEFORE = "close the connection, nothing done"
    DROP_AFTER = "do it, then close the connection without an answer"
    UNAVAILABLE = "503, nothing done"
    GARBAGE = "do it, then answer 200 with what is no answer"
    HANG_AFTER = "do it, then answer nothing until the test ends"
    GATE_AFTER = "do it, then answer when the test opens the gate"
    FORBIDDEN = "403, nothing done"


class QueueCall(msgspec.Struct, frozen=True):
    """One received call."""

    verb: str
    group: str
    request: dict[str, Any]
    fault: QueueFault
    at: float = msgspec.field(default_factory=time.monotonic)


class StubQueue:
    """The in-memory queue, its clock and its lock."""

    def __init__(self, changed: threading.Condition) -> None:
        self.twin = MemoryQueue(now_ms=_wall_ms(), invisible=InvisibleBounds(min_ms=1))
        self.changed = changed
        #: What became of dead letters, by group.
        self.marks: dict[str, LetterMarks] = defaultdict(LetterMarks)
        self.faults: dict[str, deque[QueueFault]] = defaultdict(deque)
        self.calls: list[QueueCall] = []
        #: Whether pops that would wait are answered at once, as by a service without long polls.
        self.impatient = False
        #: Number of pops whose acknowledgements belong to a cluster that is away.
        self.pops_while_away = 0
        self.jobs = True
        self.passed_ms = 0
        self.gate = threading.Event()
        #: Number of clients that had cancelled their pop when the gate opened.
        self.half_closed = 0
        self.pops_open = 0
        self.pops_cancelled = 0
        #: The stub that issued each handle: the hosts of one cluster share this, and forward calls for others' handles.
        self.issuers: dict[str, StubQueue] = {}

    # For tests: these take `changed` (reentrant), because the server's threads use the queue, too.

    def fill(self, topic: str, count: int, *, start: int = 0, partitions: int = 1, **fields: Any) -> None:
        """Add messages `start`, `start + 1`, ... to `topic`, which is created if it does not exist."""
        with self.changed:
            self.tick()
            self.twin.create_topic(topic, partitions)
            for n in range(start, start + count):
                values = {name: value(n) if callable(value) else value for name, value in fields.items()}
                self.twin.send(topic, str(n).encode(), **values)
            self.changed.notify_all()

    def let_pass(self, ms: int) -> None:
        """Advance the queue's clock."""
        with self.changed:
            self.passed_ms += ms
            self.tick()
            self.changed.notify_all()

    def look(self, what: Callable[[MemoryQueue], Any]) -> Any:
        """Return what `what` reads from the queue now."""
        with self.changed:
            self.tick()
            return what(self.twin)

    def is_done(self, group: str, topic: str) -> bool:
        """Return whether the group has finished every message."""
        with self.changed:
            self.tick()
            if group not in self.twin.tables.groups.groups:
                return False
            if self.twin.lag(group, topic) or self.twin.in_flight(group, topic):
                return False
            return not any(state.open for key, state in self.twin.tables.states.items() if key.group == group)

    def wait_for(self, condition: Callable[[], bool], timeout_s: float = 20.0) -> None:
        """Wait until time or another thread makes `condition` true."""
        deadline = time.monotonic() + timeout_s
        with self.changed:
            while not condition():
                assert time.monotonic() < deadline, "the condition did not come true in time"
                self.changed.wait(0.02)

    def calls_of(self, verb: str) -> list[QueueCall]:
        with self.changed:
            return [call for call in self.calls if call.verb == verb]

    def tick(self) -> None:
        """Set the queue's time to the wall clock plus the time that tests let pass, and do what is due."""
        self.twin.advance(max(0, _wall_ms() + self.passed_ms - self.twin.now_ms))
        if self.jobs:
            self.twin.run_jobs()

    def wait_at_gate(self, connection: socket.socket) -> None:
        """Wait until the test opens the gate; count a client that goes away meanwhile."""
        told = False
        while not self.gate.wait(0.01):
            if not told and _is_gone(connection):
                told = True
                with self.changed:
                    self.half_closed += 1
                    self.changed.notify_all()

    # Calls.

    def produced(self, topic: str, messages: Iterable[dict[str, Any]]) -> None:
        """Add messages that the stub stored to the queue, too."""
        self.tick()
        self.twin.create_topic(topic, 1)
        for message in messages:
            deliver = message.get("deliver_time")
            if isinstance(deliver, str):
                deliver = datetime.fromisoformat(deliver)
            self.twin.send(
                topic,
                message["body"],
                key=message.get("key"),
                tag=message.get("tag"),
                headers=message.get("headers"),
                message_id=message.get("message_id"),
                delay_ms=message.get("delay_ms"),
                deliver_time_ms=None if deliver is None else round(deliver.timestamp() * 1000),
            )

    def take(self, verb: str, group: str, request: dict[str, Any]) -> QueueFault:
        """Note a call; returns its fault."""
        with self.changed:
            faults = self.faults[verb]
            fault = faults.popleft() if faults else QueueFault.NONE
            self.calls.append(QueueCall(verb, group, request, fault))
            self.changed.notify_all()
            return fault

    def pop(
        self, group: str, topic: str, request: dict[str, Any], connection: socket.socket, ended: threading.Event
    ) -> tuple[list[Popped], dict[str, Any]] | None:
        """Pop, with a wait for messages; returns None if the client went away."""
        failed = self._carried(group, request["ack"]) if request.get("ack") else []
        deadline = time.monotonic() + (0.0 if self.impatient else request.get("wait_ms", 0) / 1000)
        tags = None if request.get("tags", "*") == "*" else {tag.strip() for tag in request["tags"].split("||")}
        with self.changed:
            self.pops_open += 1
            try:
                while True:
                    if _is_gone(connection):
                        self.pops_cancelled += 1
                        return None
                    self.tick()
                    if group not in self.twin.tables.groups.groups:
                        if request.get("retry") == "only":
                            raise NotFound("no such group", code="group_not_found")
                        self.twin.put_group(group)
                    popped = self.twin.pop(
                        group,
                        topic,
                        request.get("max_messages", 32),
                        invisible_ms=request.get("invisible_ms"),
                        order=request.get("order"),
                        tags=tags,
                        filter=request.get("filter"),
                        attempt_id=request.get("attempt_id"),
                    )
                    left_s = deadline - time.monotonic()
                    if popped or left_s <= 0 or ended.is_set():
                        return popped, self._popped(popped, failed, request, group)
                    # Messages become due by time, without a call: look again soon.
                    self.changed.wait(min(left_s, 0.01))
            finally:
                self.pops_open -= 1
                self.changed.notify_all()

    def _carried(self, group: str, handles: list[str]) -> list[dict[str, str]]:
        """Settle acknowledgements that came with a pop; return the failed ones."""
        if self.pops_while_away:
            self.pops_while_away -= 1
            return [{"handle": handle, "code": "queue_unserved"} for handle in handles]
        found: list[dict[str, str]] = self.settle(group, handles, StubQueue._ack)["failed"]
        return found

    def _popped(self, popped: list[Popped], failed: list[Any], request: dict[str, Any], group: str) -> dict[str, Any]:
        self.issuers.update(dict.fromkeys((one.handle for one in popped), self))
        invisible_ms = request.get("invisible_ms") or self.twin.tables.groups.group(group).settings.invisible_ms
        document = {
            "messages": [message_json(one) for one in popped],
            "pop_time": _rfc3339(self.twin.now_ms),
            "invisible_ms": invisible_ms,
            "rest": 0,
        }
        return {**document, "failed_acks": failed} if "ack" in request else document

    def call(self, group: str, verb: str, request: dict[str, Any]) -> dict[str, Any]:
        """Answer a call of `ack`, `nack`, `dead` or `invisible`."""
        if verb == "invisible":
            return {"handle": self._issuer(request["handle"]).change(group, request["handle"], request["invisible_ms"])}
        ways: dict[str, Callable[..., None]] = {
            "ack": StubQueue._ack,
            "nack": StubQueue._nack,
            "dead": StubQueue._dead,
        }
        how = ways[verb]
        return self.settle(group, request["handles"], how, **{k: request[k] for k in request if k != "handles"})

    def settle(self, group: str, handles: list[str], how: Callable[..., None], **more: Any) -> dict[str, Any]:
        """Settle each handle at the host that issued it, with one host's lock at a time."""
        failed = []
        for handle in handles:
            issuer = self._issuer(handle)
            with issuer.changed:
                issuer.tick()
                try:
                    how(issuer, group, handle, **more)
                except DeltaMQError as error:
                    failed.append({"handle": handle, "code": error.code})
                issuer.changed.notify_all()
        return {"acked": len(handles) - len(failed), "failed": failed}

    def _issuer(self, handle: str) -> StubQueue:
        return self.issuers.get(handle, self)

    def change(self, group: str, handle: str, invisible_ms: int) -> str:
        """Give a message of this host another invisible time; returns its new handle."""
        with self.changed:
            self.tick()
            try:
                changed = self.twin.change(group, handle, invisible_ms)
            finally:
                self.changed.notify_all()
            self.issuers[changed] = self
            return changed

    def _ack(self, group: str, handle: str) -> None:
        for code in self.twin.ack(group, [handle]).failed.values():
            raise DeltaMQError(code=code)

    def _nack(self, group: str, handle: str, **more: Any) -> None:
        self.twin.nack(group, handle, **more)

    def _dead(self, group: str, handle: str, reason: str) -> None:
        self.twin.dead(group, handle, reason)

    # Groups.

    def group_json(self, name: str) -> dict[str, Any]:
        group = self.twin.tables.groups.group(name)
        topics = []
        for topic in sorted(self.twin.tables.topics):
            committed = self.offsets(name, topic)
            if committed:
                views = [self._lane_json(lane, committed.get(lane.partition)) for lane in self.twin.lanes(name, topic)]
                topics.append({"topic": topic, "lag": self.twin.lag(name, topic), "partitions": views})
        return {
            "group": name,
            "epoch": group.epoch,
            **group.settings.to_json(),
            "created_time": _rfc3339(group.created_ms),
            "topics": topics,
        }

    def _lane_json(self, lane: Any, committed: int | None) -> dict[str, Any]:
        log = self.twin.tables.lane_log(lane)
        return {
            "partition": lane.partition,
            "retry": lane.retry,
            "committed_offset": committed,
            "min_offset": log.min_offset,
            "end_offset": log.end_offset,
            "lag": log.end_offset - (committed or 0),
            "in_flight": self.twin._broker.in_flight(lane),
            "last_consume_time": None,
        }

    def offsets(self, group: str, topic: str) -> dict[str, int]:
        self.tick()
        tables = self.twin.tables
        found = {}
        for lane in self.twin.lanes(group, topic):
            committed = tables.groups.committed_in(lane, tables.committed.get(lane))
            if committed is not None:
                found[lane.partition] = committed.offset
        return found

    def reset(self, group: str, topic: str, request: dict[str, Any]) -> dict[str, int]:
        to, keep = request["to"], request.get("retries") != "drop"
        if isinstance(to, dict):
            (to,) = to.values()
        else:
            to = Start.from_json(to, field="to")
        self.twin.reset_offsets(group, topic, to, keep_retries=keep)
        normal = {lane.partition for lane in self.twin.lanes(group, topic) if not lane.retry}
        return {partition: offset for partition, offset in self.offsets(group, topic).items() if partition in normal}

    def letters_answer(
        self, group: str, method: str, more: list[str], query: dict[str, str], request: dict[str, Any]
    ) -> dict[str, Any]:
        """Answer a call about dead letters."""
        match method, more:
            case "GET", []:
                return self.dead_letters(group, query)
            case "GET", ["counts"]:
                return self.count_letters(group, query)
            case "POST", ["replay"]:
                return self.replay(group, request)
            case "DELETE", []:
                return self.delete_letters(group, request)
        raise NotFound("no such path", code="path_not_found")

    def dead_letters(self, group: str, query: dict[str, str]) -> dict[str, Any]:
        self.tick()
        marks = self.marks[group]
        states = [query["state"]] if "state" in query else ["new", "sent_back"]
        rows = [row for row in self._letters(group, query) if marks.state(row.offset) in states]
        if "cursor" in query:
            offset = sum(row.offset < int(query["cursor"].rpartition(":")[2]) for row in rows)
        else:
            offset = int(query["offset"])
        some = rows[offset : offset + int(query["limit"])]
        letters = [
            {
                "partition": f"%DLQ%{group}@memory",
                "topic": row.origin.topic if row.origin else None,
                "reason": row.headers.get(DEAD_REASON_HEADER),
                "attempts": row.reconsume_times,
                "state": marks.state(row.offset),
                "sent_back_time": "2026-01-02T00:00:00Z" if marks.sent(row.offset) else None,
                "sent_back_by": None,
                **row_json(row),
            }
            for row in some
        ]
        left = rows[offset + len(some) :]
        return {
            "group": group,
            "total": len(rows),
            "messages": letters,
            "next_offset": offset + len(some) if left else None,
            "cursor": f"memory:{left[0].offset}" if left else None,
        }

    def _letters(self, group: str, asked: Mapping[str, Any]) -> list[Row]:
        rows = self.twin.dead_letters(group)
        reason = asked.get("reason")
        return [row for row in rows if reason in (None, row.headers.get(DEAD_REASON_HEADER))]

    def count_letters(self, group: str, query: dict[str, str]) -> dict[str, Any]:
        """Count dead letters by state; all have the reason of the first."""
        rows = self._letters(group, query)
        found = Counter(self.marks[group].state(row.offset) for row in rows)
        counts = {state: found[state] for state in ("new", "sent_back", "deleted")}
        by = [{"reason": rows[0].headers.get(DEAD_REASON_HEADER), **counts}] if rows else []
        return {"group": group, **counts, "counts": by}

    def replay(self, group: str, request: dict[str, Any]) -> dict[str, Any]:
        """Send dead letters back to their origin, as new messages."""
        rows, failed = self._asked(group, request)
        marks = self.marks[group]
        new = [row for row in rows if marks.state(row.offset) == "new" or "offsets" in request]
        for row in new:
            assert row.origin is not None
            self.twin.send(row.origin.topic, row.body, key=row.key, tag=row.tag, headers=without_reason(row.headers))
        marks.add(SentBack(tuple((row.offset, row.offset + 1) for row in new), request["to"], 0))
        sent = [row for row in rows if row not in new and marks.state(row.offset) == "sent_back"]
        return {"replayed": len(new), "duplicates": len(sent), **failed}

    def delete_letters(self, group: str, request: dict[str, Any]) -> dict[str, Any]:
        rows, failed = self._asked(group, request)
        marks = self.marks[group]
        kept = [row for row in rows if marks.state(row.offset) != "deleted"]
        marks.add(Deleted(tuple((row.offset, row.offset + 1) for row in kept), 0))
        return {"deleted": len(kept), "duplicates": len(rows) - len(kept), **failed}

    def _asked(self, group: str, request: dict[str, Any]) -> tuple[list[Row], dict[str, Any]]:
        """Return the dead letters that a request is about, and what it says of those that are not there."""
        wanted = request.get("offsets")
        offsets = None if wanted is None else {offset for some in wanted.values() for offset in some}
        letters = self._letters(group, request)
        gone = sorted((offsets or set()) - {row.offset for row in letters})
        failed = [
            {"partition": f"%DLQ%{group}@memory", "offset": offset, "code": "offset_out_of_range"} for offset in gone
        ]
        rows = [row for row in letters if offsets is None or row.offset in offsets]
        return rows, {"failed": failed, "failed_total": len(failed)}


def message_json(popped: Popped) -> dict[str, Any]:
    """Return a message for a pop's JSON answer."""
    document = {"partition": popped.partition, **row_json(popped.row)}
    return {**document, "handle": popped.handle, "delivery_attempt": popped.delivery_attempt}


def row_json(row: Row) -> dict[str, Any]:
    document: dict[str, Any] = {
        "offset": row.offset,
        "message_id": row.message_id,
        "append_time": _rfc3339(row.append_time_ms),
        "born_time": _rfc3339(row.append_time_ms),
        "reconsume_times": row.reconsume_times,
    }
    try:
        document["body"] = row.body.decode()
    except UnicodeDecodeError:
        document["body_base64"] = base64.b64encode(row.body).decode()
    for name in ("key", "tag"):
        if getattr(row, name) is not None:
            document[name] = getattr(row, name)
    if row.headers:
        document["headers"] = row.headers
    if row.origin is not None:
        origin = row.origin
        document["origin"] = {"topic": origin.topic, "partition": origin.partition, "offset": origin.offset}
    return document


def pop_stream(popped: list[Popped], failed_acks: list[dict[str, str]]) -> bytes:
    """Return a pop's Arrow answer; refused handles are in the schema's metadata."""
    rows = []
    for one in popped:
        row = one.row
        appended = datetime.fromtimestamp(row.append_time_ms / 1000, UTC)
        origin = row.origin
        rows.append(
            {
                "offset": row.offset,
                "message_id": row.message_id,
                "key": row.key,
                "tag": row.tag,
                "headers": list(row.headers.items()),
                "body": row.body,
                "born_time": appended,
                "append_time": appended,
                "deliver_time": None,
                "origin": origin and {"topic": origin.topic, "partition": origin.partition, "offset": origin.offset},
                "partition": one.partition,
                "handle": one.handle,
                "delivery_attempt": one.delivery_attempt,
            }
        )
    sink = pa.BufferOutputStream()
    schema = POP_ROWS.with_metadata({"mq-failed-acks": json.dumps(failed_acks)}) if failed_acks else POP_ROWS
    with pa.ipc.new_stream(sink, schema) as writer:
        writer.write_table(pa.Table.from_pylist(rows, POP_ROWS))
    return bytes(sink.getvalue())


def _wall_ms() -> int:
    return time.time_ns() // 1_000_000


def _rfc3339(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat().replace("+00:00", "Z")


def _is_gone(connection: socket.socket) -> bool:
    """Return whether the client has closed its half of the connection."""
    readable, _, _ = select.select([connection], [], [], 0)
    try:
        return bool(readable) and connection.recv(1, socket.MSG_PEEK) == b""
    except OSError:
        return True


def decoded(body: bytes) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(body or b"{}")
    return found
