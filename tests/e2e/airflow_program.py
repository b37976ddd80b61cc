"""Runs in an environment of its own: Airflow's triggers on a topic, as its triggerer runs them; prints what it sees.

python airflow_program.py URL TOPIC
"""

from __future__ import annotations

import asyncio
import json
import sys
from importlib import import_module

import structlog
from airflow.providers.common.messaging.triggers.msg_queue import MessageQueueTrigger
from airflow.triggers.shared_stream import SharedStreamManager

#: Seconds after which Airflow gives up a message whose event is not stored.
_ACK_TIMEOUT_S = 2.0


class Triggers:
    """Two triggers with the same arguments, and the events that they fired; Airflow's database stores `stored_max`."""

    def __init__(self, url: str, topic: str, stored_max: int) -> None:
        path, self._arguments = MessageQueueTrigger(scheme="deltamq", topic=topic, group="airflow", url=url).serialize()
        module, _, name = path.rpartition(".")
        self._class = getattr(import_module(module), name)
        log = structlog.wrap_logger(structlog.PrintLogger(sys.stderr))
        self._streams = SharedStreamManager(log=log, ack_timeout=_ACK_TIMEOUT_S)
        self._stored_max = stored_max
        self.fired: dict[int, list[dict[str, object]]] = {1: [], 2: []}

    async def run(self, number: int) -> None:
        trigger = self._class(**self._arguments)
        key = trigger.shared_stream_key()
        try:
            stream = self._streams.subscribe(trigger_id=number, trigger=trigger, key=key)
            async for event in trigger.filter_shared_stream(stream):
                bound = self._streams.bind_pending_event(trigger_id=number, key=key)
                assert bound is not None
                self.fired[number].append(event.payload)
                if len(self.fired[number]) <= self._stored_max:
                    self._streams.confirm_persisted([bound])
        finally:
            await self._streams.unsubscribe(number, key)


async def main(url: str, topic: str) -> None:
    triggers = Triggers(url, topic, stored_max=3)
    running = [asyncio.create_task(triggers.run(number)) for number in triggers.fired]
    print("listening", flush=True)
    ended = await asyncio.gather(*running, return_exceptions=True)  # when the fourth event is not stored in time
    assert triggers.fired[1] == triggers.fired[2]
    print(json.dumps([triggers.fired[1], [type(error).__name__ for error in ended]]), flush=True)


asyncio.run(main(*sys.argv[1:]))
