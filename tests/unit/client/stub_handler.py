"""The HTTP side of the stub service: calls, answers, and their faults."""

from __future__ import annotations

import base64
import contextlib
import json
import socket
import time
from datetime import datetime
from http.server import BaseHTTPRequestHandler
from io import BufferedIOBase
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, unquote, urlsplit

import pyarrow as pa

from deltamq.mq.errors import DeltaMQError, NotFound
from deltamq.mq.filters.evaluation import Fields, evaluate
from deltamq.mq.filters.parser import parse_filter
from deltamq.mq.routing import default_route
from tests.unit.client.stub_queue import QueueFault, decoded, pop_stream
from tests.unit.client.stub_static import StubStatic
from tests.unit.client.stub_topics import AFTER, BEFORE, BROKERS, Fault, Post, Topic, stream_of

if TYPE_CHECKING:
    from tests.unit.client.stub_service import StubService

ARROW = "application/vnd.apache.arrow.stream"
_JSON = "application/json"


def handler_of(stub: StubService) -> type[BaseHTTPRequestHandler]:
    return type("Handler", (_Handler,), {"stub": stub})


class _Headers:
    """The headers of a request, by names in any case; Python reads them as those of an e-mail, which takes long."""

    def __init__(self, lines: BufferedIOBase) -> None:
        self._values: dict[str, str] = {}
        while line := lines.readline().strip():
            name, _, value = line.decode("latin-1").partition(":")
            self._values[name.lower()] = value.strip()

    def __getitem__(self, name: str) -> str | None:
        return self._values.get(name.lower())


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    stub: StubService
    headers: Any
    raw_requestline: bytes

    def setup(self) -> None:
        super().setup()
        self.stub.connections.add(self.connection)

    def finish(self) -> None:
        self.stub.connections.discard(self.connection)
        with contextlib.suppress(OSError):
            super().finish()

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing."""

    # Answers.

    def answer(self, status: int, document: Any, headers: dict[str, str] | None = None) -> None:
        self.answer_raw(status, json.dumps(document).encode(), "application/json", headers)

    def answer_uncut(self, status: int, document: Any) -> None:
        """Answer a background request of clients, without the cuts that tests order."""
        self._whole(status, json.dumps(document).encode(), "application/json", {})

    def answer_raw(self, status: int, body: bytes, kind: str, headers: dict[str, str] | None = None) -> None:
        if self.stub.cuts:
            lines = {"Content-Type": kind, "Content-Length": str(len(body)), **(headers or {})}
            head = f"HTTP/1.1 {status} OK\r\n" + "".join(f"{name}: {value}\r\n" for name, value in lines.items())
            self.wfile.write((head.encode() + b"\r\n" + body)[: self.stub.cuts.popleft()])
            self.drop()
        else:
            self._whole(status, body, kind, headers or {})

    def _whole(self, status: int, body: bytes, kind: str, headers: dict[str, str]) -> None:
        self.send_response_only(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def problem(self, status: int, code: str, headers: dict[str, str] | None = None, **facts: Any) -> None:
        document = {"type": "about:blank", "title": code, "status": status, "detail": f"stub: {code}", "code": code}
        self.answer(status, {**document, **facts}, headers)

    def drop(self) -> None:
        self.close_connection = True
        self.connection.shutdown(socket.SHUT_RDWR)

    # Calls.

    def parts(self) -> tuple[list[str], dict[str, str]]:
        split = urlsplit(self.path)
        query = {name: values[0] for name, values in parse_qs(split.query).items()}
        return [unquote(part) for part in split.path.strip("/").split("/")], query

    def parse_request(self) -> bool:
        self.requestline = self.raw_requestline.decode("latin-1")
        self.command, self.path, self.request_version = self.requestline.split()
        self.close_connection = False
        self.headers = _Headers(self.rfile)
        if self.stub.away:
            self.stub.away_calls += 1
            self.drop()
            return False
        token = self.headers["Authorization"]
        self.stub.tokens.append(token)
        if self.stub.valid_tokens is not None and (token or "").removeprefix("Bearer ") not in self.stub.valid_tokens:
            self.rfile.read(int(self.headers["Content-Length"] or 0))
            # Before the answer: the client may go on, and its test look, as soon as it is sent.
            self.stub.refused_calls.append(f"{self.command} {urlsplit(self.path).path}")
            self.problem(401, "unauthenticated")
            return False
        return True

    def do_GET(self) -> None:
        parts, query = self.parts()
        self.stub.gets.append(self.path)
        match parts:
            case ["healthz"]:
                self.answer(200, {"status": "alive"})
            case ["readyz"]:
                if self.stub.ready:
                    self.answer(200, {"status": "ready"})
                else:
                    self.problem(503, "unavailable", {"Retry-After": "1"})
            case ["v1", "cluster"]:
                self.answer_uncut(200, self.stub.cluster_json())
            case ["v1", "topics"]:
                self.answer(200, {"topics": sorted(self.stub.topics)})
            case ["v1", "topics", name, *rest]:
                topic = self.stub.topics.get(name)
                if topic is None:
                    self.problem(404, "topic_not_found")
                elif not rest:
                    self.answer(200, self.stub.describe(topic))
                elif rest == ["offsets"]:
                    self.offsets(topic, query)
                else:
                    self.fetch(topic, rest[1], query)
            case ["v1", "groups", *rest]:
                self.group_call("GET", rest, query)
            case _:
                self.problem(404, "path_not_found")

    def offsets(self, topic: Topic, query: dict[str, str]) -> None:
        moment = datetime.fromisoformat(query["time"])
        found = []
        for name in topic.route.partitions:
            log = topic.log(name)
            at = next((row["offset"] for row in log if row["append_time"] >= moment), len(log))
            found.append({"partition": name, "offset": at})
        self.answer(200, {"topic": topic.name, "time": query["time"], "offsets": found})

    def do_PUT(self) -> None:
        parts, query = self.parts()
        wanted = json.loads(self.rfile.read(int(self.headers["Content-Length"])) or b"{}")
        if parts[1] == "groups":
            self.group_call("PUT", parts[2:], query, wanted)
            return
        name = parts[2]
        created = name not in self.stub.topics
        if wanted.get("static"):
            self.put_static(name, wanted)
            return
        if created:
            self.stub.create(name, wanted.get("partitions", 2), strict=wanted.get("order_strategy") == "strict")
        elif wanted.get("partitions", 10**6) < len(self.stub.topics[name].route.partitions):
            self.problem(409, "partitions_cannot_shrink")
            return
        self.answer(201 if created else 200, self.stub.describe(self.stub.topics[name]))

    def put_static(self, name: str, wanted: dict[str, Any]) -> None:
        present = self.stub.topics.get(name)
        if present is None:
            self.stub.create_static(wanted["total_queues"], strict=wanted.get("order_strategy") == "strict")
        elif present.static is None:
            self.problem(409, "topic_not_static")
            return
        else:
            try:
                present.static.put(wanted)
            except DeltaMQError as error:
                self.problem(error.status, error.code)
                return
            present.route = present.static.route
        self.answer(201 if present is None else 200, self.stub.describe(self.stub.topics[name]))

    def static_call(self, name: str, verb: str, request: dict[str, Any]) -> None:
        topic = self.stub.topics.get(name)
        static = None if topic is None else topic.static
        if static is None:
            self.problem(404 if topic is None else 409, "topic_not_found" if topic is None else "topic_not_static")
            return
        try:
            with self.stub.changed:
                answer = static.check() if verb == "check" else getattr(static, verb)(request)
                self.stub.changed.notify_all()
        except DeltaMQError as error:
            self.problem(error.status, error.code)
            return
        self.answer(200, answer)

    def do_DELETE(self) -> None:
        parts, query = self.parts()
        if parts[1] == "groups" or "messages" in parts:
            body = self.rfile.read(int(self.headers["Content-Length"] or 0))
            self.group_call("DELETE", parts[2:], query, decoded(body))
        elif self.stub.topics.pop(parts[2], None) is None:
            self.problem(404, "topic_not_found")
        elif self.stub.faults and self.stub.faults[0] is Fault.DROP_AFTER:
            self.stub.faults.popleft()
            self.drop()
        else:
            self.answer(200, {})

    def do_POST(self) -> None:
        parts, query = self.parts()
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if parts[1] == "groups":
            self.group_call("POST", parts[2:], query, decoded(body))
            return
        if parts[-1] in ("remap", "check", "repair"):
            self.static_call(parts[2], parts[-1], decoded(body))
            return
        messages, producer_id, seq, expected = self.decode(body)
        with self.stub.changed:
            fault = self.stub.faults.popleft() if self.stub.faults else Fault.NONE
            post = Post(
                parts[2],
                query.get("partition") or (messages[0].get("partition") if messages else None),
                producer_id,
                seq,
                body,
                self.headers["Content-Type"],
                len(messages),
                fault,
                time.monotonic(),
                self.headers["traceparent"],
            )
            self.stub.posts.append(post)
            self.stub.changed.notify_all()
        self.stub.on_post(post)
        if "partition" in query:
            messages = [{**message, "partition": query["partition"]} for message in messages]
        self.produce(post, messages, int(query["expected_offset"]) if "expected_offset" in query else expected)

    def decode(self, body: bytes) -> tuple[list[dict[str, Any]], str, int, int | None]:
        if self.headers["Content-Type"] == ARROW:
            rows = pa.ipc.open_stream(body).read_all().to_pylist()
            messages = [{**row, "headers": dict(row["headers"]) if row.get("headers") else None} for row in rows]
            return messages, self.headers["Producer-Id"], int(self.headers["Producer-Seq"]), None
        request = json.loads(body)
        for message in request["messages"]:
            text = message.pop("body", None)
            message["body"] = text.encode() if text is not None else base64.b64decode(message.pop("body_base64"))
        producer = request["producer"]
        return request["messages"], producer["id"], producer["seq"], request.get("expected_offset")

    def produce(self, post: Post, messages: list[dict[str, Any]], expected: int | None) -> None:
        fault = post.fault
        if fault in BEFORE:
            self.problem(*BEFORE[fault], {"Retry-After": "1"} if fault is Fault.BUSY_SECOND else None)
        elif fault is Fault.HTML_502:
            self.answer_raw(502, b"<html>Bad gateway</html>", "text/html")
        elif fault is Fault.DROP_BEFORE:
            self.drop()
        elif fault is Fault.HANG_BEFORE:
            self.stub.ended.wait()
            self.drop()
        elif post.topic not in self.stub.topics and not self.create_by_send(post.topic):
            self.problem(404, "topic_not_found")
        elif post.partition is not None and post.partition not in self.stub.topics[post.topic].route.partitions:
            self.problem(404, "partition_not_found", field="partition")
        elif self.stub.is_unserved(post.topic, messages):
            self.problem(503, "queue_unserved", field="partition")
        elif expected is not None and expected != len(self.stub.topics[post.topic].log(str(post.partition))):
            end = len(self.stub.topics[post.topic].log(str(post.partition)))
            self.problem(412, "offset_mismatch", end_offset=end)
        elif any(self.stub.refuses(message) for message in messages):
            self.problem(422, "invalid_value", field="messages[0].body")
        else:
            self.stored(post, self.stub.store(post, messages))

    # Groups.

    def group_call(
        self, method: str, parts: list[str], query: dict[str, str], request: dict[str, Any] | None = None
    ) -> None:
        """Answer a call of groups or POP, as the in-memory queue decides."""
        request = request or {}
        verb = parts[-1] if method == "POST" else method
        fault = self.stub.queue.take(verb, parts[0] if parts else "", request)
        before = {QueueFault.UNAVAILABLE: (503, "unavailable"), QueueFault.FORBIDDEN: (403, "forbidden")}
        if fault is QueueFault.DROP_BEFORE:
            self.drop()
            return
        if fault in before:
            self.problem(*before[fault])
            return
        try:
            if verb == "pop":
                self.pop_call(parts[0], parts[2], request, fault)
            elif verb in ("heartbeat", "locks"):
                self.told(fault, 200, json.dumps(self.order_answer(verb, parts, query, request)).encode(), _JSON)
            else:
                with self.stub.changed:
                    status, document = self.group_answer(method, parts, query, request)
                body = b"" if status == 204 else json.dumps(document).encode()
                self.told(fault, status, body, "application/json")
        except DeltaMQError as error:
            self.problem(error.status, error.code)

    def order_answer(
        self, verb: str, parts: list[str], query: dict[str, str], request: dict[str, Any]
    ) -> dict[str, Any]:
        """Return the answer to a call of an exclusive group that may wait."""
        order, ended = self.stub.order, self.stub.ended
        if verb == "locks":
            return order.take(parts[0], parts[2], request, ended)
        return order.heartbeat(parts[0], parts[2], request, query, ended)

    def pop_call(self, group: str, topic: str, request: dict[str, Any], fault: QueueFault) -> None:
        found = self.stub.queue.pop(group, topic, request, self.connection, self.stub.ended)
        if found is None:
            self.drop()
            return
        popped, document = found
        if self.headers["Accept"] != ARROW:
            self.told(fault, 200, json.dumps(document).encode(), "application/json")
            return
        headers = {"Mq-Invisible-Ms": str(document["invisible_ms"]), "Mq-Rest": "0"}
        self.told(fault, 200, pop_stream(popped, document.get("failed_acks", [])), ARROW, headers)

    def told(
        self, fault: QueueFault, status: int, body: bytes, kind: str, headers: dict[str, str] | None = None
    ) -> None:
        """Send the answer to a call that is done, or the fault in its place."""
        if fault is QueueFault.HANG_AFTER:
            self.stub.ended.wait()
        if fault is QueueFault.GATE_AFTER:
            self.stub.queue.wait_at_gate(self.connection)
        if fault in (QueueFault.DROP_AFTER, QueueFault.HANG_AFTER):
            self.drop()
        elif fault is QueueFault.GARBAGE:
            self.answer_raw(200, b"{]", kind)
        else:
            self.answer_raw(status, body, kind, headers)

    def group_answer(
        self, method: str, parts: list[str], query: dict[str, str], request: dict[str, Any]
    ) -> tuple[int, Any]:
        queue, twin = self.stub.queue, self.stub.queue.twin
        told = self.stub.order.answer(method, parts, request)
        if told is not None:
            return 200, told
        match method, parts:
            case "GET", []:
                return 200, {"groups": sorted(twin.tables.groups.groups)}
            case "GET", [group]:
                return 200, queue.group_json(group)
            case "PUT", [group]:
                created = group not in twin.tables.groups.groups
                twin.put_group(group, **request)
                return 201 if created else 200, queue.group_json(group)
            case "DELETE", [group]:
                twin.delete_group(group)
                return 204, {}
            case "DELETE", [topic, "messages", message_id]:
                queue.tick()
                twin.cancel(topic, message_id)
                return 204, {}
            case ("GET", [group, "topics", topic, "offsets"]) | ("PUT", [group, "topics", topic, "offsets"]):
                return 200, {
                    "group": group,
                    "topic": topic,
                    "offsets": request.get("offsets") or queue.offsets(group, topic),
                }
            case "POST", [group, "topics", topic, "offsets", "reset"]:
                return 200, {"group": group, "topic": topic, "epoch": 1, "offsets": queue.reset(group, topic, request)}
            case _, [group, "dead-letters", *more]:
                return 200, queue.letters_answer(group, method, more, query, request)
            case "POST", [group, ("ack" | "nack" | "dead" | "invisible") as verb]:
                return 200, queue.call(group, verb, request)
        raise NotFound("no such path", code="path_not_found")

    def create_by_send(self, name: str) -> bool:
        if self.stub.auto_create:
            self.stub.topics[name] = Topic(name, default_route(name, BROKERS))
        return self.stub.auto_create

    def stored(self, post: Post, answer: dict[str, Any] | None) -> None:
        fault = post.fault
        if answer is None:
            self.problem(409, "producer_sequence_out_of_order")
        elif fault in AFTER:
            self.problem(*AFTER[fault])
        elif fault is Fault.DROP_AFTER:
            self.drop()
        elif fault is Fault.HANG_AFTER:
            self.stub.ended.wait()
            self.drop()
        elif fault is Fault.GARBAGE:
            self.answer_raw(200, b"{]", "application/json")
        elif fault is Fault.HALF_ANSWER:
            body = json.dumps(answer).encode()
            self.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body[: len(body) // 2])
            self.wfile.flush()
            self.drop()
        else:
            self.answer(200, answer)

    def fetch(self, topic: Topic, partition: str, query: dict[str, str]) -> None:
        if partition not in topic.route.partitions:
            self.problem(404, "partition_not_found")
            return
        if "group" in query:
            try:
                self.stub.order.pull(query["group"], topic.name, partition, query["client_id"])
            except DeltaMQError as error:
                self.problem(error.status, error.code, partition=partition)
                return
        if topic.static is not None:
            self.fetch_queue(topic.static, partition, query)
            return
        log = topic.log(partition)
        offset = int(query["offset"])
        low = topic.min_offsets.get(partition, 0)
        with self.stub.changed:
            self.stub.changed.wait_for(
                lambda: self.stub.ended.is_set() or not low <= offset == len(log), int(query.get("wait_ms", 0)) / 1000
            )
            rows = log[max(offset, low) : offset + int(query["max_messages"])]
        wanted = query.get("tags", "*")
        tags = {tag.strip() for tag in wanted.split("||")}
        condition = parse_filter(query.get("filter", "TRUE"))
        kept = [
            row
            for row in rows
            if (wanted == "*" or row.get("tag") in tags) and evaluate(condition, Fields(row.get("key"), row.get("tag")))
        ]
        status = "found" if kept else "no_new_message"
        if offset < low or offset > len(log):
            status, kept, rows = ("offset_too_small" if offset < low else "offset_too_large"), [], []
        self.fetched(status, kept, offset + len(rows), (low, len(log)))

    def fetch_queue(self, static: StubStatic, name: str, query: dict[str, str]) -> None:
        offset, count = int(query["offset"]), int(query["max_messages"])

        def is_news() -> bool:
            status, _, next_offset = static.fetch(name, offset, count)
            return self.stub.ended.is_set() or status != "no_new_message" or next_offset > offset

        with self.stub.changed:
            self.stub.changed.wait_for(is_news, int(query.get("wait_ms", 0)) / 1000)
            status, rows, next_offset = static.fetch(name, offset, count)
            queue = static.queue(name)
            assert queue is not None
            bounds = static.bounds(queue)
        self.fetched(status, rows, next_offset, bounds)

    def fetched(self, status: str, rows: list[dict[str, Any]], next_offset: int, bounds: tuple[int, int]) -> None:
        headers = {
            "Mq-Status": status,
            "Mq-Next-Offset": str(next_offset),
            "Mq-Min-Offset": str(bounds[0]),
            "Mq-Max-Offset": str(bounds[1]),
        }
        self.answer_raw(200, stream_of(rows), ARROW, headers)
        with self.stub.changed:
            self.stub.fetches_answered += 1
            self.stub.changed.notify_all()
