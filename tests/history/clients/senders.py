"""Producers: idempotent ones, who repeat until they know, and plain ones, who ask once and say what they know."""

from __future__ import annotations

import base64
import random
import threading
import zlib
from collections.abc import Sequence
from typing import Any, Final
from urllib.parse import quote

import msgspec

from tests.history.checker.ops import MS
from tests.history.checker.record import OpenOp, Recorder, now_ns
from tests.history.clients.bodies import body_of, draw_size
from tests.history.clients.door import Answer, Door, NeverSent, NoAnswer

__all__ = ["SendSettings", "Sender"]

_AGAIN_S: Final = 0.02


class SendSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What producers of a run do."""

    topic: str
    idempotent: bool = True
    batches: tuple[int, ...] = (1, 1, 1, 5, 20)
    #: Partitions that a request may name; else keys decide, or chance.
    partitions: tuple[str, ...] = ()
    keys: int = 8
    #: How many of a hundred requests are delayed, and by how long.
    delayed_percent: int = 0
    delay_ms: tuple[int, int] = (300, 1_500)
    #: The pause after each request, at most.
    pause_s: float = 0.02
    #: For how long a request is repeated; what has no answer by then has an unknown outcome.
    patience_s: float = 60


class Sender(threading.Thread):
    """One producer; its keys are its own, so that nobody else sends to them."""

    def __init__(
        self, door: Door, recorder: Recorder, settings: SendSettings, seed: int, stop: threading.Event
    ) -> None:
        super().__init__(name=f"sender-{seed}", daemon=True)
        self._door = door
        self._recorder = recorder
        self._settings = settings
        self._drawn = random.Random(seed)
        self._stopping = stop
        self._process = recorder.process()
        self._sent = 0
        self._seq = 0
        #: Requests that were acknowledged.
        self.answered = 0
        self.failure: BaseException | None = None

    def run(self) -> None:
        try:
            while not self._stopping.is_set():
                self._one()
                self._stopping.wait(self._drawn.uniform(0, self._settings.pause_s))
        except BaseException as error:
            self.failure = error
        finally:
            self._door.close()

    def _one(self) -> None:
        """One request, from its first byte to what can be known of it."""
        settings, drawn = self._settings, self._drawn
        ids = [f"{self._process}-{self._sent + i:06d}" for i in range(drawn.choice(settings.batches))]
        self._sent += len(ids)
        bodies = [body_of(id_, draw_size(drawn)) for id_ in ids]
        named = drawn.choice(settings.partitions) if settings.partitions and drawn.random() < 0.2 else None
        keys = [self._key() for _ in ids]
        delay_ms = drawn.randint(*settings.delay_ms) if drawn.randrange(100) < settings.delayed_percent else None
        request = self._request(ids, keys, bodies, named, delay_ms)
        begun = now_ns()
        with self._recorder.begin(
            self._process,
            "send",
            topic=settings.topic,
            ids=ids,
            keys=keys,
            crcs=[zlib.crc32(body) for body in bodies],
            partition=named,
            producer=str(self._process) if settings.idempotent else None,
            due=None if delay_ms is None else begun + delay_ms * MS,
        ) as op:
            self._ask(op, request, ids)
        if settings.idempotent:
            self._seq += 1

    def _key(self) -> str | None:
        keys = self._settings.keys
        return f"{self._process}.{self._drawn.randrange(keys)}" if keys and self._drawn.random() < 0.9 else None

    def _request(
        self,
        ids: Sequence[str],
        keys: Sequence[str | None],
        bodies: Sequence[bytes],
        named: str | None,
        delay_ms: int | None,
    ) -> dict[str, object]:
        messages = []
        for id_, key, body in zip(ids, keys, bodies, strict=True):
            message: dict[str, object] = {"message_id": id_, "body_base64": base64.b64encode(body).decode()}
            message |= {"key": key} if key is not None else {}
            message |= {"partition": named} if named is not None else {}
            message |= {"delay_ms": delay_ms} if delay_ms is not None else {}
            messages.append(message)
        request: dict[str, object] = {"messages": messages}
        if self._settings.idempotent:
            request["producer"] = {"id": f"producer-{self._process}", "seq": self._seq}
        return request

    def _ask(self, op: OpenOp, request: dict[str, object], ids: Sequence[str]) -> None:
        """Ask until the outcome is known; a plain producer asks once."""
        deadline = now_ns() + int(self._settings.patience_s * 1_000) * MS
        path = f"/v1/topics/{quote(self._settings.topic, safe='')}/messages"
        asked = False
        while True:
            try:
                answer = self._door.call("POST", path, request)
            except NeverSent:
                if not self._settings.idempotent and not asked:
                    op.fail(error="never sent")
                    self._stopping.wait(_AGAIN_S)
                    return
            except NoAnswer:
                asked = True
            else:
                if self._told(op, answer, ids, first=not asked):
                    return
                asked = True
            if not self._settings.idempotent or now_ns() > deadline:
                self._unknown(op)
                return
            self._stopping.wait(_AGAIN_S) or threading.Event().wait(_AGAIN_S)

    def _told(self, op: OpenOp, answer: Answer, ids: Sequence[str], *, first: bool) -> bool:
        """Whether the answer says what became of it."""
        if answer.ok:
            op.ok(placed=_places(answer.body, len(ids)))
            self.answered += 1
            return True
        if answer.refused and answer.status != 429:
            # A refusal of a repeated request says nothing about the first one.
            op.fail(error=answer.body.get("code")) if first else op.info(error=answer.body.get("code"))
            return True
        if answer.status == 429 and first and not self._settings.idempotent:
            op.fail(error="429")
            return True
        return False

    def _unknown(self, op: OpenOp) -> None:
        """Nobody knows; from now on this is another process, with another producer's id."""
        op.info(error="no answer")
        self._process = self._recorder.process()
        self._seq = -1


def _places(body: dict[str, Any], count: int) -> list[tuple[str, int]]:
    """Where each message went, in order; nothing for a request that waits to be due, or whose place is not decided."""
    places: list[tuple[str, int] | None] = [None] * count
    for part in body["ranges"]:
        if part.get("delayed") or part["base_offset"] < 0:
            return []
        indexes = part.get("indexes") or range(count)
        for at, index in enumerate(indexes):
            places[index] = (part["partition"], part["base_offset"] + at)
    return [place for place in places if place is not None]
