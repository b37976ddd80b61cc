"""One run: services and jobs, loads, a nemesis, the end, and the verdict.

start -> topic, groups -> loads ||| nemesis -> heal -> wait, scan, drain, list -> check -> report
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from pathlib import Path
from statistics import quantiles
from typing import Any, Final

import msgspec

from tests.e2e.chaos_proxy import ChaosProxy
from tests.e2e.service_process import DELTAMQ, ServiceProcess
from tests.history.checker.check import Checked, Reach, check
from tests.history.checker.ops import GroupRules, History, TopicRules
from tests.history.checker.record import Recorder, read_history
from tests.history.checker.report import in_words, to_json
from tests.history.clients.bodies import SCHEMA
from tests.history.clients.door import Door
from tests.history.clients.orderlies import OrderlyClients
from tests.history.clients.poppers import Popper, PopSettings
from tests.history.clients.readers import Reader, pages, partitions_of
from tests.history.clients.sdk_senders import SdkSenders
from tests.history.clients.senders import Sender, SendSettings
from tests.history.runs.final import Calm, drain, is_done, list_dead, scan_files, scan_service, wait_until
from tests.history.runs.nemesis import Fault, Jobs, Nemesis
from tests.object_servers import ObjectServer, fetched

__all__ = ["TOPIC", "GroupPlan", "Plan", "Run", "System", "judged", "playing", "run"]

TOPIC: Final = "orders"
#: The exclusive group.
ORDERLY: Final = "ledger"
#: Short times, so that much happens in a few seconds.
SMALL_TIMES: Final = {
    "DELTAMQ_QUEUE_INVISIBLE_MS_MIN": "50",
    "DELTAMQ_QUEUE_STAY_BUFFER_MS": "500",
    # Retries go when their group is done with them; the topic and the dead letters are scanned at the end.
    "DELTAMQ_RETENTION_WAIT_FOR_GROUPS": "true",
    "DELTAMQ_RETENTION_RETRY_MS": "20000",
    "DELTAMQ_RETENTION_SYSTEM_MS": "60000",
}
_UPKEEP_S: Final = 2.0


class GroupPlan(msgspec.Struct, frozen=True, kw_only=True):
    """A group that pops, and how many consumers it has."""

    pops: PopSettings
    consumers: int = 2
    max_attempts: int = 4
    retry_ms: int = 100


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What one run does."""

    seed: int = 1
    partitions: int = 4
    #: The brokers of each service process; empty: one service with its default brokers.
    hosts: tuple[tuple[str, ...], ...] = ()
    senders: int = 3
    plain_senders: int = 1
    #: Senders with a producer of the SDK, of each shell.
    sdk_senders: int = 2
    readers: int = 1
    delayed_percent: int = 3
    send_pause_s: float = 0.02
    groups: tuple[GroupPlan, ...] = ()
    #: The topic keeps the order of keys across expansions, and a request never names a partition.
    strict: bool = False
    #: The clients of an exclusive group, each in a process of its own.
    orderlies: int = 0
    #: The longest time that they work on a message.
    orderly_ms: int = 4
    jobs: tuple[str, ...] = ("revive", "delay")
    #: The jobs of another driver, which keep the tables small; `merge` starts Spark.
    upkeep: tuple[str, ...] = ("retain",)
    #: Leases and acknowledgements are stored before they are answered.
    durable: bool = False
    #: The share of answers that are lost on their way.
    loss: float = 0.0
    strikes: int = 0
    rest_s: tuple[float, float] = (0.3, 1.2)
    #: The loads go on until the nemesis is through, and for at least this long.
    seconds: float = 3.0
    drain_s: float = 60.0
    #: Whether the topic is static; its partitions are logical queues then.
    static: bool = False
    #: Whether the topic has a schema, which every other message fits.
    typed: bool = False
    #: For how long a producer repeats a request.
    patience_s: float = 60.0
    environment: Mapping[str, str] = msgspec.field(default_factory=dict)
    #: The object store that has the warehouse; None: a folder.
    server: ObjectServer | None = None
    #: What is started as a service, and with `clocked_jobs` as the jobs' driver, too.
    program: tuple[str, ...] = tuple(DELTAMQ)
    clocked_jobs: bool = False
    reach: Reach = msgspec.field(default_factory=Reach)


class System(msgspec.Struct):
    """What runs, for those who hurt it."""

    services: list[ServiceProcess]
    jobs: Jobs | None
    upkeep: Jobs | None
    recorder: Recorder
    #: Their addresses, and those through which the loads go, where answers may be lost.
    urls: list[str]
    ways: list[str]
    orderlies: OrderlyClients | None = None


class Run(msgspec.Struct):
    """What a run showed."""

    plan: Plan
    history: History
    checked: Checked

    @property
    def recovery_s(self) -> list[float]:
        """For each fault, the time from its beginning until a send that began after it was answered."""
        sends = [(send.begun, send.ended) for send in self.history.sends if send.ok]
        waits = []
        for fault in self.history.faults:
            after = [ended for begun, ended in sends if begun > fault.begun]
            waits += [(min(after) - fault.begun) / 1e9] if after else []
        return waits

    @property
    def figures(self) -> dict[str, object]:
        """What goes into the table of faults."""
        found = self.checked.findings
        figures: dict[str, object] = {
            "verdict": str(self.checked.verdict),
            "acknowledged": sum(len(send.ids) for send in self.history.sends if send.ok),
            "deliveries": sum(len(pop.deliveries) for pop in self.history.pops),
            "handled": len(self.history.handled),
            "faults": len(self.history.faults),
            "anomalies": found.count,
            "redelivered": found.allowed["redelivered-after-expiry"] + found.allowed["redelivered-after-crash"],
            "unknown stored": found.allowed["unknown-stored"],
            "unknown absent": found.allowed["unknown-absent"],
        }
        waits = self.recovery_s
        if len(waits) > 1:
            figures["serving again p50 s"] = round(quantiles(waits, n=100)[49], 2)
            figures["serving again max s"] = round(max(waits), 2)
        return figures

    def __str__(self) -> str:
        return in_words(self.history, self.checked)


def run(folder: Path, plan: Plan, hurt: Callable[[System], Sequence[Fault]] = lambda _: ()) -> Run:
    """Play a plan in a folder that is its own; the history stays there."""
    with playing(folder, plan) as system:
        _load(system, plan, hurt(system))
        _end(system, plan, folder)
    return judged(folder, plan)


@contextmanager
def playing(folder: Path, plan: Plan) -> Iterator[System]:
    """What a plan asks for runs, with its topic and groups, and a recorder."""
    folder.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        recorder = Recorder(folder / "history.jsonl")
        stack.callback(recorder.close)
        stack.enter_context(_environment(plan))
        system = _started(stack, folder, plan, recorder)
        with closing(Door(system.urls)) as door:
            _make(door, recorder, plan)
        if plan.orderlies:
            system.orderlies = OrderlyClients(folder, system.urls, ORDERLY, plan.orderlies, plan.orderly_ms)
            stack.callback(system.orderlies.close)
        yield system


def judged(folder: Path, plan: Plan) -> Run:
    """The verdict on what was recorded in a folder, which is left beside it."""
    history = read_history(sorted(folder.glob("history*.jsonl")))
    made = Run(plan, history, check(history, plan.reach))
    results = to_json(history, made.checked, seed=plan.seed, figures=made.figures)
    (folder / "results.json").write_text(json.dumps(results, indent=1), encoding="utf-8")
    (folder / "report.txt").write_text(str(made), encoding="utf-8")
    return made


def _environment(plan: Plan) -> ExitStack:
    """The settings of the processes that start while it is open."""
    wanted = {**SMALL_TIMES, "DELTAMQ_QUEUE_MEMORY_MATCH": str(not plan.durable).lower(), **plan.environment}
    wanted |= {} if plan.server is None else plan.server.environment()
    before = {name: os.environ.get(name) for name in wanted}

    def restore() -> None:
        for name, value in before.items():
            os.environ.pop(name, None) if value is None else os.environ.__setitem__(name, value)

    stack = ExitStack()
    stack.callback(restore)
    os.environ.update(wanted)
    return stack


def _started(stack: ExitStack, folder: Path, plan: Plan, recorder: Recorder) -> System:
    warehouse = _warehouse(folder, plan)
    services = []
    for brokers in plan.hosts or ((),):
        flags = [flag for broker in brokers for flag in ("--broker", broker)]
        service = ServiceProcess(folder / "warehouse", "--warehouse", str(warehouse), *flags, program=plan.program)
        stack.callback(service.close)
        services.append(service)
    jobs = None
    if plan.jobs:
        jobs = Jobs(warehouse, plan.jobs, plan.program if plan.clocked_jobs else DELTAMQ)
        stack.callback(jobs.kill)
    upkeep = None
    if plan.upkeep:
        program = plan.program if plan.clocked_jobs else DELTAMQ
        upkeep = Jobs(warehouse, plan.upkeep, program, every_s=_UPKEEP_S)
        stack.callback(upkeep.kill)
    urls = ways = [service.url for service in services]
    if plan.loss:
        ports = [int(url.rpartition(":")[2]) for url in urls]
        ways = [stack.enter_context(ChaosProxy(port, loss=plan.loss, seed=plan.seed)).url for port in ports]
    return System(services, jobs, upkeep, recorder, urls, ways)


def _warehouse(folder: Path, plan: Plan) -> Path | str:
    return folder / "warehouse" if plan.server is None else plan.server.uri(folder.name)


def _make(door: Door, recorder: Recorder, plan: Plan) -> None:
    """The topic and the groups, and what they promise."""
    wanted: dict[str, object] = {"partitions": plan.partitions}
    if plan.static:
        wanted = {"static": True, "total_queues": plan.partitions}
    wanted |= ({"order_strategy": "strict"} if plan.strict else {}) | ({"schema": SCHEMA} if plan.typed else {})
    made = door.call("PUT", f"/v1/topics/{TOPIC}", wanted)
    assert made.ok, made
    recorder.rules(TopicRules(topic=TOPIC, strict=plan.strict))
    if plan.orderlies:
        made = door.call("PUT", f"/v1/groups/{ORDERLY}", {"consume_strategy": "exclusive"})
        assert made.ok, made
        recorder.rules(GroupRules(group=ORDERLY, topics=(TOPIC,), exclusive=True))
    for group in plan.groups:
        pops = group.pops
        order: object = {"": False, "partition": True, "key": "key"}[pops.order]
        wanted = {"max_attempts": group.max_attempts, "retry_policy": {"fixed_ms": group.retry_ms}, "order": order}
        made = door.call("PUT", f"/v1/groups/{pops.group}", wanted)
        assert made.ok, made
        recorder.rules(
            GroupRules(
                group=pops.group,
                topics=(TOPIC,),
                max_attempts=group.max_attempts,
                order=pops.order,
                durable=plan.durable,
            )
        )


def _load(system: System, plan: Plan, faults: Sequence[Fault]) -> None:
    """Everybody works until the nemesis is through."""
    stop, recorder = threading.Event(), system.recorder
    with closing(Door(system.urls)) as door:
        names = tuple(one["partition"] for one in partitions_of(door, TOPIC))
    senders: list[Sender] = []
    for at in range(plan.senders + plan.plain_senders):
        settings = SendSettings(
            topic=TOPIC,
            idempotent=at < plan.senders,
            partitions=() if plan.strict else names,
            delayed_percent=plan.delayed_percent if at < plan.senders else 0,
            pause_s=plan.send_pause_s,
            patience_s=plan.patience_s,
        )
        senders.append(Sender(Door(_turned(system.ways, at)), recorder, settings, plan.seed * 1_000 + at, stop))
    sdk = [
        SdkSenders(
            system.ways,
            recorder,
            TOPIC,
            plan.seed,
            stop,
            shell=shell,
            senders=plan.sdk_senders,
            pause_s=plan.send_pause_s,
            patience_s=plan.patience_s,
        )
        for shell in (("loop", "threads") if plan.sdk_senders else ())
    ]
    workers: list[Any] = [*senders, *sdk]
    for number, group in enumerate(plan.groups):
        for at in range(group.consumers):
            seed = plan.seed * 1_000 + 100 * (number + 1) + at
            workers.append(Popper(Door(_turned(system.ways, at)), recorder, group.pops, seed, stop))
    for at in range(plan.readers):
        workers.append(Reader(Door(_turned(system.ways, at)), recorder, TOPIC, plan.seed * 1_000 + 900 + at, stop))
    nemesis = Nemesis(
        recorder,
        faults,
        count=plan.strikes if faults else 0,
        rest_s=plan.rest_s,
        seed=plan.seed,
        stop=stop,
        enough=lambda: sum(one.answered for one in senders) >= plan.reach.sends,
    )
    for worker in workers:
        worker.start()
    nemesis.start()
    nemesis.join()
    stop.wait(plan.seconds)
    stop.set()
    for worker in workers:
        worker.join(90)
        assert not worker.is_alive(), f"{worker.name} does not end"
    for worker in (*workers, nemesis):
        if worker.failure is not None:
            raise worker.failure


def _turned(urls: Sequence[str], by: int) -> list[str]:
    at = by % len(urls)
    return [*urls[at:], *urls[:at]]


def _end(system: System, plan: Plan, folder: Path) -> None:
    """The witnesses, on a network that loses nothing. What is delayed is waited for first: it comes by itself."""
    recorder = system.recorder
    so_far = read_history([recorder.path])
    delayed = {id_ for send in so_far.sends if send.ok and send.due is not None for id_ in send.ids}
    with closing(Door(system.urls, timeout_s=30)) as door:
        wait_until(_Arrivals(door, delayed).are_all_there, within_s=plan.drain_s)
        for group in plan.groups:
            drain(system.urls, recorder, group.pops, within_s=plan.drain_s)
            list_dead(door, recorder, group.pops.group)
        if system.orderlies is not None:
            _end_orderlies(door, system.orderlies, recorder, plan)
        scan_service(door, recorder, TOPIC)
        scan_files(door, recorder, TOPIC, _table_of(folder, plan))


def _table_of(folder: Path, plan: Plan) -> Callable[[str], Path]:
    """Return what gives the folder with the files of a partition, by its location."""
    if (server := plan.server) is None:
        return Path
    start = f"{server.uri(folder.name)}/"
    return lambda location: fetched(server.store(folder.name), location.removeprefix(start), folder / "fetched")


def _end_orderlies(door: Door, clients: OrderlyClients, recorder: Recorder, plan: Plan) -> None:
    """The exclusive group comes to the end, and its clients go as they should."""
    with recorder.begin(recorder.process(), "drained", group=ORDERLY) as op:
        done = wait_until(Calm(partial(is_done, door, ORDERLY, TOPIC)), within_s=plan.drain_s)
        op.ok() if done else op.info()
    assert clients.leave() == [0] * len(clients.clients), "a client did not go well"


class _Arrivals:
    """Follows the partitions until the messages that are waited for are there."""

    def __init__(self, door: Door, missing: set[str]) -> None:
        self._door = door
        self._missing = missing
        self._positions: dict[str, int] = {}

    def are_all_there(self) -> bool:
        for one in partitions_of(self._door, TOPIC) if self._missing else ():
            for answer in pages(self._door, TOPIC, one["partition"], self._positions.get(one["partition"], 0)):
                self._missing -= {message["message_id"] for message in answer.body["messages"]}
                self._positions[one["partition"]] = answer.body["next_offset"]
        return not self._missing
