"""Memory of the service: resident bytes while it takes and serves a steady load.

Before the soak, tails and cache are filled to their settings. Then one client appends Arrow batches at a fixed rate,
one reads history, one reads the tail and two produce single messages as fast as they are answered: every path
allocates, nothing grows but the table. `memory.growth` compares the last third of the soak with the middle third.
"""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Iterator
from typing import Final

from deltamq.tables.settings import LogSettings
from tests.bench.figure import Figure, at_most
from tests.bench.load import Connection, checked, in_parallel, request
from tests.bench.payloads import arrow_stream, json_request, record_batch
from tests.bench.registry import bench
from tests.bench.rest.fetch import Reader, fill
from tests.bench.rest.produce import ARROW
from tests.bench.service import Service, running_service
from tests.bench.session import Session

_PARTITIONS: Final = 4
_FILLED: Final = 2_400_000
_BATCH_ROWS: Final = 10_000
_BATCHES_PER_S: Final = 5
_LOOK_S: Final = 0.2


def _soak(service: Service, ends: dict[str, int], seconds: float) -> list[tuple[float, float]]:
    """Run the load; (second, MiB) of each look at the service."""
    batch = request("POST", "/v1/topics/bench/messages", kind=ARROW, body=arrow_stream(record_batch(_BATCH_ROWS, 100)))
    single = request("POST", "/v1/topics/bench/messages", kind="application/json", body=json_request(1, 100))
    history = [Reader(name, 0, end) for name, end in ends.items()]
    tail = [Reader(name, max(0, end - 10_000), end) for name, end in ends.items()]
    turn = [0, 0, 0, 0, 0]

    def step(connection: Connection, client: int) -> int:
        turn[client] += 1
        if client == 0:
            checked(connection.exchange(batch))
            time.sleep(1 / _BATCHES_PER_S)  # the pace of the load, not a wait for anything
        elif client == 1:
            history[turn[1] % len(history)].step(connection, 50_000)
        elif client == 2:
            tail[turn[2] % len(tail)].step(connection, 1_000)
        else:
            checked(connection.exchange(single))
        return 1

    looks: list[tuple[float, float]] = []
    stopped = threading.Event()
    began = time.monotonic()

    def look() -> None:
        while not stopped.wait(_LOOK_S):
            looks.append((time.monotonic() - began, service.rss_mib()))

    looker = threading.Thread(target=look)
    looker.start()
    try:
        in_parallel(service.address, len(turn), seconds, step)
    finally:
        stopped.set()
        looker.join()
    return looks


@bench("memory")
def memory(session: Session) -> Iterator[Figure]:
    """Idle, filled, under a steady load."""
    soak_s = session.effort.soak_s
    with running_service(session.fresh("memory")) as service:
        idle = service.rss_mib()
        fill(service, min(_FILLED, session.effort.history_messages))
        ends = service.stored("bench")
        _soak(service, ends, soak_s / 5)
        looks = _soak(service, ends, soak_s)
    settings = LogSettings()
    queue = 256 << 20
    bound = idle + (_PARTITIONS * settings.tail_bytes_max + settings.cache_bytes_max + queue) / 2**20
    sizes = [size for _, size in looks]
    third = max(1, len(sizes) // 3)
    middle, end = statistics.mean(sizes[third : 2 * third]), statistics.mean(sizes[-third:])
    load = f"{soak_s:.0f} s of Arrow, JSON and fetches of tail and history, {_PARTITIONS} partitions"
    yield session.figure("memory.idle", "resident memory of the service after its start", "MiB", [idle])
    yield Figure(
        name="memory.peak",
        what=f"greatest resident memory in {load}; bound: idle, tails, cache and request queue of the settings",
        unit="MiB",
        samples=[max(sizes)],
        target=at_most(bound, "bounded by settings"),
    )
    yield session.figure(
        "memory.growth",
        f"resident memory in the last third of {load}, to the middle third",
        "%",
        [100 * (end / middle - 1)],
        middle_mib=round(middle, 1),
        end_mib=round(end, 1),
    )
