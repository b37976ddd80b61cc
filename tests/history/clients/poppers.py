"""Consumers of groups that pop: they acknowledge, forget, give back, renew, are late, and give up messages."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Sequence
from typing import Any, Final
from urllib.parse import quote

import msgspec

from tests.history.checker.ops import MS
from tests.history.checker.record import Recorder
from tests.history.clients.door import Answer, Door, NeverSent, NoAnswer

__all__ = ["PopSettings", "Popper"]

_AGAIN_S: Final = 0.02


class PopSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What consumers of one group do. The shares are of all answers; what is left is acknowledged."""

    group: str
    topic: str
    #: "" (none), "partition" or "key".
    order: str = ""
    max_messages: tuple[int, ...] = (1, 5, 32)
    invisible_ms: tuple[int, ...] = (600, 2_000, 6_000)
    forget: float = 0.05
    nack: float = 0.05
    renew: float = 0.05
    late: float = 0.02
    give_up: float = 0.005
    #: How long a pop waits for the first message.
    wait_ms: int = 50
    #: How often acknowledgements travel with the next pop.
    with_pop: float = 0.3


class Popper(threading.Thread):
    """One consumer, until it is told to stop."""

    def __init__(self, door: Door, recorder: Recorder, settings: PopSettings, seed: int, stop: threading.Event) -> None:
        super().__init__(name=f"popper-{seed}", daemon=True)
        self.door = door
        self.recorder = recorder
        self.settings = settings
        self._drawn = random.Random(seed)
        self.stopping = stop
        self.process = recorder.process()
        self._group = f"/v1/groups/{quote(settings.group, safe='')}"
        self._pop = f"{self._group}/topics/{quote(settings.topic, safe='')}/pop"
        #: Receipts that go with the next pop.
        self._carried: list[str] = []
        self.failure: BaseException | None = None

    def run(self) -> None:
        try:
            while not self.stopping.is_set():
                invisible_ms = self._drawn.choice(self.settings.invisible_ms)
                self.settle(self.pop(self._drawn.choice(self.settings.max_messages), invisible_ms), invisible_ms)
        except BaseException as error:
            self.failure = error
        finally:
            self.door.close()

    def pop(self, max_messages: int, invisible_ms: int) -> list[dict[str, Any]]:
        """Take messages; none when nobody knows."""
        wait_ms = self.settings.wait_ms
        carried, self._carried = self._carried, []
        request = {"max_messages": max_messages, "invisible_ms": invisible_ms, "wait_ms": wait_ms, "ack": carried}
        acks = self._begin("ack", carried) if carried else None
        with self.recorder.begin(self.process, "pop", group=self.settings.group, invisible=invisible_ms * MS) as op:
            answer = self._ask(self._pop, request)
            if answer is None or not answer.ok:
                op.info(error=_code(answer))
                if acks is not None:
                    acks.info(error=_code(answer))
                self._wait(answer)
                return []
            messages: list[dict[str, Any]] = answer.body["messages"]
            op.ok(deliveries=[_delivered(message) for message in messages])
        if not messages:
            # A process gives what lies with the brokers that it hosts.
            self.door.turn()
        if acks is not None:
            acks.ok(results=_results(carried, answer.body["failed_acks"]))
        return messages

    def settle(self, messages: Sequence[dict[str, Any]], invisible_ms: int) -> None:
        """Do something with what was popped."""
        handles = [str(message["handle"]) for message in messages]
        if not handles:
            return
        settings, draw = self.settings, self._drawn.random()
        acts: tuple[tuple[float, Callable[[], object]], ...] = (
            (settings.forget, lambda: None),
            (settings.nack, lambda: self.call("nack", handles, delay_ms=self._drawn.choice((50, 200)))),
            (settings.renew, lambda: self._renew(handles, invisible_ms)),
            (settings.late, lambda: self._late(handles, invisible_ms)),
            (settings.give_up, lambda: self.call("dead", handles[:1], reason="poison")),
        )
        for share, act in acts:
            if draw < share:
                act()
                return
            draw -= share
        if self._drawn.random() < settings.with_pop:
            self._carried = handles
        else:
            self.call("ack", handles)

    def _renew(self, handles: list[str], invisible_ms: int) -> None:
        """Ask for more time for the first message, then acknowledge all."""
        fresh = self.extend(handles[0], invisible_ms)
        self.call("ack", [fresh or handles[0], *handles[1:]])

    def _late(self, handles: list[str], invisible_ms: int) -> None:
        """Acknowledge when the time is over: some are done all the same, others were given away again."""
        self.stopping.wait(min(invisible_ms, 1_000) / 1_000)
        self.call("ack", handles)

    def extend(self, handle: str, invisible_ms: int) -> str | None:
        """The new handle, if there is one."""
        with self._begin("extend", [handle], invisible=invisible_ms * MS) as op:
            answer = self._ask(f"{self._group}/invisible", {"handle": handle, "invisible_ms": invisible_ms})
            if answer is None or answer.status >= 500:
                op.info(error=_code(answer))
                self._wait(answer)
                return None
            if not answer.ok:
                op.fail(results={handle: _code(answer)})
                return None
            fresh = str(answer.body["handle"])
            op.ok(results={handle: "ok"}, renewed=fresh)
            return fresh

    def call(self, kind: str, handles: list[str], **other: object) -> None:
        """Acknowledge, give back, or give up."""
        with self._begin(kind, handles) as op:
            answer = self._ask(f"{self._group}/{kind}", {"handles": handles, **other})
            if answer is None or not answer.ok:
                op.info(error=_code(answer))
                self._wait(answer)
            else:
                op.ok(results=_results(handles, answer.body["failed"]))

    def _begin(self, kind: str, handles: list[str], **other: object) -> Any:
        return self.recorder.begin(
            self.process, "settle", kind=kind, group=self.settings.group, receipts=handles, **other
        )

    def _ask(self, path: str, request: dict[str, object]) -> Answer | None:
        """The answer; None when nobody knows. After that this is another process."""
        try:
            return self.door.call("POST", path, request)
        except (NoAnswer, NeverSent):
            self.process = self.recorder.process()
            return None

    def _wait(self, answer: Answer | None) -> None:
        assert answer is None or answer.status in (404, 429, 503, 500), answer
        self.stopping.wait(_AGAIN_S)


def _code(answer: Answer | None) -> str:
    return "no answer" if answer is None else str((answer.body or {}).get("code", answer.status))


def _delivered(message: dict[str, Any]) -> tuple[object, ...]:
    names = ("message_id", "delivery_attempt", "handle", "partition", "offset")
    return (*(message[name] for name in names), message.get("key"))


def _results(handles: Sequence[str], failed: Sequence[dict[str, str]]) -> dict[str, str]:
    return dict.fromkeys(handles, "ok") | {one["handle"]: one["code"] for one in failed}
