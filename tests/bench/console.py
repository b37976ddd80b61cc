"""The console on a warehouse with very many topics and groups, in a real browser; and a hundred open tails.

3,000 topics, 1,000 groups --service--> Chromium: each page until its rows are there
                                    --> an open overview: CPU of the service beside one that nobody looks at
                                    --> 100 event streams of one partition, half of which are never read
"""

from __future__ import annotations

import contextlib
import multiprocessing
import selectors
import statistics
import time
from collections.abc import Iterator
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Final

from playwright.sync_api import Page

from deltamq.tables.log.warehouse import Warehouse
from tests.bench.figure import Figure
from tests.bench.load import Address, Connection, LoadError, request
from tests.bench.registry import bench
from tests.bench.rest.many import build
from tests.bench.service import Service, running_service
from tests.bench.session import Session
from tests.console.chromium import CHROMIUM, chromium

__all__: list[str] = []

_SIZES: Final = {"quick": (100, 70)}
_SIZE_MOST: Final = (3_000, 1_000)
#: Seconds of CPU that are compared.
_OPEN_S: Final = {"quick": 2.0}
_OPEN_MOST_S: Final = 60.0
#: Until what the making of groups has left in memory is stored.
_SETTLED_S: Final = {"quick": 1.0}
_SETTLED_MOST_S: Final = 60.0
_SAMPLED_S: Final = 60.0
_REPEATS: Final = 5
_TAILS: Final = 100
_LAST: Final = "topic-00001"
#: Pages, each with words that it shows when what it is about is there.
_PAGES: Final = {
    "overview": ("#/", "group-0"),
    "topics": ("#/topics", "topic-00000"),
    "topic": (f"#/topics/{_LAST}", f"{_LAST}@broker-a"),
    "messages": (f"#/topics/{_LAST}/messages?offset=0", "Stored"),
    "groups": ("#/groups", "group-00000"),
    "group": ("#/groups/group-00001", "Last consumed"),
    "inflight": ("#/groups/group-00001/in-flight", "Held by"),
    "retries": ("#/groups/group-00001/retries", "Nothing waits"),
    "jobs": ("#/jobs", "revive"),
    "cluster": ("#/cluster", "Drain"),
    "settings": ("#/settings", "Default"),
}
#: Goes to a page, and returns the milliseconds until its words are there.
_UNTIL: Final = """([address, words]) => new Promise((done, failed) => {
  const began = performance.now();
  const look = () => {
    if (document.querySelector("main")?.innerText.includes(words)) return done(performance.now() - began);
    if (performance.now() - began > 30_000) return failed(new Error(address + " does not show " + words));
    requestAnimationFrame(look);
  };
  location.hash = address;
  requestAnimationFrame(look);
})"""


@bench("console")
def console(session: Session) -> Iterator[Figure]:
    """What pages take, what an open one costs, and what a hundred tails do, with 3,000 topics and 1,000 groups."""
    if CHROMIUM is None:
        session.say("console: no chromium")
        return
    topics, groups = _SIZES.get(session.effort.name, _SIZE_MOST)
    folder = session.fresh("console")
    warehouse = Warehouse.open(str(folder / "warehouse"))
    with contextlib.closing(warehouse):
        build(warehouse, {f"topic-{at:05d}": 1 for at in range(topics)})
    of = f"{topics:,} topics and {groups:,} groups"
    with running_service(folder) as service:
        for at in range(groups):
            service.call("PUT", f"/v1/groups/group-{at:05d}", {})
            asked = {"max_messages": 1, "client_id": "bench", "invisible_ms": 3_600_000}
            service.call("POST", f"/v1/groups/group-{at:05d}/topics/topic-{at % topics:05d}/pop", asked)
        yield from _browsed(session, service, of)
        yield from _tailed(session, service, folder)


def _browsed(session: Session, service: Service, of: str) -> Iterator[Figure]:
    open_s = _OPEN_S.get(session.effort.name, _OPEN_MOST_S)
    _until_sampled(service)
    _cpu_percent(service, _SETTLED_S.get(session.effort.name, _SETTLED_MOST_S))
    idle = _cpu_percent(service, open_s)
    with chromium() as browser:
        page = browser.new_page(viewport={"width": 1_400, "height": 900})
        page.goto(f"http://{service.address[0]}:{service.address[1]}/")
        for name, (address, words) in _PAGES.items():
            took = [_shown_ms(page, address, words) for _ in range(_REPEATS)]
            yield session.figure(f"console.{name}.took", f"{address} with {of}", "ms", took)
        _shown_ms(page, *_PAGES["overview"])
        used = _cpu_percent(service, open_s)
        what = f"of a core, for an open overview with {of}"
        yield session.figure("console.open.cpu", what, "%", [max(0.0, used - idle)], idle=round(idle, 2))


def _until_sampled(service: Service) -> None:
    """Wait for the first sample of all groups, which the overview shows when there are many."""
    until = time.monotonic() + _SAMPLED_S
    while not service.call("GET", "/v1/history?metric=lag")["series"]:
        if time.monotonic() > until:
            raise LoadError("no sample of lag")
        time.sleep(0.5)


def _shown_ms(page: Page, address: str, words: str) -> float:
    page.evaluate(_UNTIL, ["#/nowhere", "No such page"])
    return float(page.evaluate(_UNTIL, [address, words]))


def _cpu_percent(service: Service, seconds: float) -> float:
    began, cpu = time.perf_counter(), service.cpu_s()
    time.sleep(seconds)  # the length of the measurement, not a wait for anything
    return 100 * (service.cpu_s() - cpu) / (time.perf_counter() - began)


def _tailed(session: Session, service: Service, folder: Path) -> Iterator[Figure]:
    """Sends to a partition that nobody, and then a hundred event streams follow."""
    (partition,) = service.make_topic("tailed", 1)
    body = b'{"messages": [{"body": "' + b"x" * 1_000 + b'"}]}'
    send = request("POST", "/v1/topics/tailed/messages", kind="application/json", body=body)
    alone = session.windows(lambda seconds: _sent(service, send, seconds))
    before = service.rss_mib()
    with _tails(service, partition):
        beside = session.windows(lambda seconds: _sent(service, send, seconds))
        grown = service.rss_mib() - before
    rates = [window["rate"] for window in alone], [window["rate"] for window in beside]
    ratios = [there / without for without, there in zip(*rates, strict=False)]
    what = f"of the rate of a synchronous sender, while {_TAILS} tails follow the partition"
    alone_rate, beside_rate = (round(statistics.median(rate)) for rate in rates)
    yield session.figure("console.tails.ratio", what, "x", ratios, alone=alone_rate, beside=beside_rate)
    what = f"memory for {_TAILS} tails, half of them never read"
    yield session.figure("console.tails.rss", what, "MiB", [grown])


def _sent(service: Service, send: bytes, seconds: float) -> dict[str, float]:
    connection, sent = Connection(service.address), 0
    try:
        began = time.perf_counter()
        while time.perf_counter() - began < seconds:
            answer = connection.exchange(send)
            if answer.status != 200:
                raise LoadError(f"a send was answered {answer.status}")
            sent += 1
        return {"rate": sent / (time.perf_counter() - began)}
    finally:
        connection.close()


@contextlib.contextmanager
def _tails(service: Service, partition: str) -> Iterator[None]:
    """Follow a partition a hundred times, in another process; every second stream is never read."""
    end = service.stored("tailed")[partition]
    path = f"/v1/topics/tailed/partitions/{partition}/messages?offset={end}"
    context = multiprocessing.get_context("spawn")
    begun = context.Event()
    reader = context.Process(target=_follow, args=(service.address, path, begun), daemon=True)
    reader.start()
    try:
        if not begun.wait(60):
            raise LoadError("the tails did not begin")
        yield
        if not reader.is_alive():
            raise LoadError("the process that reads the tails ended")
    finally:
        reader.kill()
        reader.join()


def _follow(address: Address, path: str, begun: Event) -> None:
    """Begin every stream, and read every second one for ever."""
    tails = [Connection(address) for _ in range(_TAILS)]
    for tail in tails:
        tail.socket.sendall(request("GET", path, accept="text/event-stream"))
    with selectors.DefaultSelector() as selector:
        for tail in tails[::2]:
            tail.socket.setblocking(False)
            selector.register(tail.socket, selectors.EVENT_READ)
        begun.set()
        while selector.get_map():
            for key, _ in selector.select():
                if not key.fileobj.recv(65_536):  # type: ignore[union-attr] # a socket was registered
                    selector.unregister(key.fileobj)
