"""Two clusters, each with a warehouse and a service of its own, that know each other (SPEC STATIC-19)."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

import msgspec
from msgspec.structs import replace

from deltamq.api.ports import REAL, Ports
from deltamq.tables.config import Config
from tests.api.running import Api, Reply, config_for, running
from tests.free_ports import free_port

__all__ = ["GlobalTopic", "TwoClusters", "name_of"]

Json = dict[str, Any]
NAMES = ("east", "west")


def name_of(queue: int) -> str:
    """The name under which clients know a queue of a global topic."""
    return f"{queue}@__global_logical_queue_broker__"


@dataclass
class TwoClusters:
    """East and west; each can be stopped and started again on its port."""

    folder: Path
    ports: dict[str, int] = field(default_factory=lambda: {name: free_port() for name in NAMES})
    api: dict[str, Api] = field(default_factory=dict)
    #: Further settings of both services.
    service: dict[str, Any] = field(default_factory=dict)
    _running: dict[str, contextlib.ExitStack] = field(default_factory=dict)

    def config(self, name: str) -> Config:
        others = tuple(f"{other}=http://127.0.0.1:{port}" for other, port in self.ports.items() if other != name)
        config = config_for(
            self.folder / name,
            port=self.ports[name],
            brokers=("broker-a", "broker-b"),
            clusters=others,
            **{"clusters_refresh_ms": 3_600_000, **self.service},
        )
        return replace(config, warehouse=replace(config.warehouse, cluster=name))

    def start(self, name: str, ports: Ports = REAL) -> Api:
        stack = self._running[name] = contextlib.ExitStack()
        self.api[name] = stack.enter_context(running(self.config(name), ports))
        return self.api[name]

    def stop(self, name: str) -> None:
        self._running.pop(name).close()

    @property
    def east(self) -> Api:
        return self.api["east"]

    @property
    def west(self) -> Api:
        return self.api["west"]

    @classmethod
    @contextlib.contextmanager
    def running(cls, folder: Path) -> Iterator[TwoClusters]:
        clusters = cls(folder)
        try:
            for name in NAMES:
                clusters.start(name)
            yield clusters
        finally:
            for name in list(clusters._running):
                clusters.stop(name)


class GlobalTopic(msgspec.Struct, frozen=True):
    """One global topic as one cluster's service sees it."""

    api: Api
    name: str

    def at(self, api: Api) -> GlobalTopic:
        return GlobalTopic(api, self.name)

    def ask(self, method: str, path: str = "", body: Any = None) -> Reply:
        return self.api.call(method, f"/v1/topics/{quote(self.name, safe='')}{path}", body)

    def create(self, total_queues: int, **wanted: object) -> Reply:
        asked = {"static": True, "scope": "global", "clusters": list(NAMES), "total_queues": total_queues, **wanted}
        return self.ask("PUT", "", asked)

    def remap(self, *clusters: str, **wanted: object) -> Reply:
        return self.ask("POST", "/remap", {"clusters": list(clusters), **wanted})

    def send_to(self, queue: int, *bodies: str, **request: Any) -> list[int]:
        """The global offsets of messages that name their queue; -1 for undecided ones."""
        messages: list[dict[str, object]] = [{"body": body, "partition": name_of(queue)} for body in bodies]
        reply = self.api.send(self.name, *messages, **request)
        assert reply.status == 200, reply
        (placed,) = reply.json["ranges"]
        assert placed["partition"] == name_of(queue)
        first = placed["base_offset"]
        return [first + at if first >= 0 else first for at in range(placed["count"])]

    def fetch(self, queue: int, offset: int = 0, rest: str = "") -> Reply:
        return self.api.fetch(self.name, name_of(queue), f"?offset={offset}{rest}")

    def read(self, queue: int, offset: int = 0) -> list[tuple[int, str]]:
        """Offset and body of all messages from an offset on, as a reader gets them that follows `next_offset`."""
        found: list[tuple[int, str]] = []
        while True:
            answer = self.fetch(queue, offset).json
            found += [(one["offset"], one["body"]) for one in answer["messages"]]
            if not answer["messages"] and answer["next_offset"] == offset:
                return found
            offset = answer["next_offset"]

    def clusters(self) -> dict[int, str | None]:
        """The cluster that takes each queue's messages, as the service shows it."""
        return {one["queue"]: one["cluster"] for one in self.ask("GET").json["logical_queues"]}
