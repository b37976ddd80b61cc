"""Pops while queues move: sends, remappings of both kinds and pops at once; nothing is lost, nothing comes twice."""

from __future__ import annotations

import random
import threading
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

import pytest

from deltamq.mq.meta.group_settings import Ordering
from tests.api.queue_calls import Consumer, queue_in
from tests.api.static_pops import Static

QUEUES: Final = 3
KEYS: Final = 4
BROKERS: Final = ("broker-a", "broker-b")


def _send(static: Static, index: int, rounds: int) -> None:
    for number in range(rounds):
        for key in range(KEYS):
            static.send(index, f"{index}/{key}/{number}", key=f"{index}/{key}")


def _remap(static: Static, done: threading.Event, seed: int) -> None:
    draw = random.Random(seed)
    while not done.is_set():
        queues = draw.sample(range(QUEUES), draw.randint(1, QUEUES))
        mode = draw.choice(("strict", "available"))
        static.remap(draw.choice(BROKERS), mode=mode, queues=queues)


def _consume(consumer: Consumer, got: list[str], lock: threading.Lock, count: int) -> None:
    """Pop, count and acknowledge until all have come; what one client gets is acknowledged before its next pop."""
    handles: list[str] = []
    while True:
        found = consumer.pop(7, ack=handles, wait_ms=500)
        assert found.failed == {}
        handles = found.handles
        with lock:
            got += found.bodies
            if len(got) >= count and not handles:
                return


@pytest.mark.parametrize(
    ("order", "rounds"), [*(pytest.param(one, 40, marks=pytest.mark.long) for one in (False, True, "key")), ("key", 12)]
)
def test_static_20_pops_during_remappings_lose_nothing_and_repeat_nothing(
    tmp_path: Path, order: Ordering, rounds: int
) -> None:
    with queue_in(tmp_path / "warehouse") as queue:
        static = Static(queue.api).put(QUEUES, BROKERS)
        billing = queue.group("billing", order=order)
        got: list[str] = []
        done, lock = threading.Event(), threading.Lock()
        with ThreadPoolExecutor(8) as workers:
            remapping = workers.submit(_remap, static, done, 7)
            consuming = [workers.submit(_consume, billing, got, lock, QUEUES * KEYS * rounds) for _ in range(2)]
            for sending in [workers.submit(_send, static, index, rounds) for index in range(QUEUES)]:
                sending.result(100)
            done.set()
            for work in (remapping, *consuming):
                work.result(100)
        assert len(static.queue(0).segments) > 2, "queues moved meanwhile"
        assert sorted(got) == sorted(
            f"{index}/{key}/{number}" for index in range(QUEUES) for key in range(KEYS) for number in range(rounds)
        )
        if order is not False:
            by_key: dict[str, list[int]] = defaultdict(list)
            for body in got:
                key, _, number = body.rpartition("/")
                by_key[key].append(int(number))
            assert all(numbers == sorted(numbers) for numbers in by_key.values())
