"""Clients of an exclusive group, for tests of the service's REST calls."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from tests.api.running import Api, Reply

__all__ = ["Member", "exclusive_group"]

Json = dict[str, Any]


def exclusive_group(api: Api, group: str, **settings: object) -> None:
    reply = api.call("PUT", f"/v1/groups/{group}", {"consume_strategy": "exclusive", **settings})
    assert reply.status in (200, 201), reply


@dataclass
class Member:
    """One client of a group that consumes one topic."""

    api: Api
    group: str
    topic: str
    id: str
    #: Numbers of the locks that the client was granted, by partition.
    numbers: dict[str, int] = field(default_factory=dict)

    @property
    def _path(self) -> str:
        return f"/v1/groups/{self.group}/topics/{self.topic}"

    def send_beat(self, query: str = "", **body: object) -> Reply:
        wanted = {"topics": {self.topic: {"order": True}}, **body}
        return self.api.call("POST", f"/v1/groups/{self.group}/clients/{self.id}/heartbeat{query}", wanted)

    def beat(self, query: str = "", **body: object) -> Json:
        reply = self.send_beat(query, **body)
        assert reply.status == 200, reply
        answer: Json = reply.json
        return answer

    def allocated(self) -> list[str]:
        """Return the partitions that the client may consume now."""
        found: list[str] = self.beat()["allocation"][self.topic]
        return found

    def wait_for_change(self, epoch: int, wait_ms: int = 5_000) -> Json:
        return self.beat(f"?wait_ms={wait_ms}&allocation_epoch={epoch}")

    def send_take(self, *partitions: str, **body: object) -> Reply:
        asked = {"client_id": self.id, "partitions": list(partitions), **body}
        return self.api.call("POST", f"{self._path}/locks", asked)

    def take(self, *partitions: str, **body: object) -> Json:
        reply = self.send_take(*partitions, **body)
        assert reply.status == 200, reply
        answer: Json = reply.json
        assert answer["partitions"] == list(answer["locks"]) == list(answer["offsets"])
        self.numbers |= answer["locks"]
        return answer

    def release(self, *partitions: str, **body: object) -> list[str]:
        asked = {"client_id": self.id, "partitions": list(partitions), **body}
        reply = self.api.call("DELETE", f"{self._path}/locks", asked)
        assert reply.status == 200, reply
        found: list[str] = reply.json["partitions"]
        return found

    def fetch(self, partition: str, query: str = "") -> Reply:
        return self.api.fetch(self.topic, partition, f"?group={self.group}&client_id={self.id}{query}")

    def commit(self, partition: str, offset: int, **body: object) -> Reply:
        asked = {"offsets": {partition: offset}, "client_id": self.id, **body}
        return self.api.call("PUT", f"{self._path}/offsets", asked)

    def leave(self) -> Json:
        return self.beat(online=False)
