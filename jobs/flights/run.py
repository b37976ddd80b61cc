"""The main job from start to report: the order of starts, waits and stops.

service, jobs, workers start --.
Spark starts -------------------+--> replay, while Spark looks repeatedly     --> wait until the groups --> compare
flights become events ---------'     and the workers of two groups consume         have nothing left

    compare: the acknowledgements, the messages by REST and by Spark; for the groups also the workers' deliveries;
    and the tables of two streaming queries on the topic
"""

from __future__ import annotations

import socket
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from contextlib import contextmanager
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec
import pyarrow as pa
from msgspec.structs import replace
from rich.console import Console

from deltamq.jobs.flights.account import Account
from deltamq.jobs.flights.agreement import Agreement, Line, compare, compare_streams
from deltamq.jobs.flights.child import Child, JobFailed, await_all, in_thread
from deltamq.jobs.flights.events import events_of, read_airlines, read_airports, read_flights
from deltamq.jobs.flights.groups import Crew, fresh_groups
from deltamq.jobs.flights.reading import Ask, Look, ask
from deltamq.jobs.flights.replay import Ledger, Replay, served_account
from deltamq.jobs.flights.screen import bar, look_text, next_steps, report_tables
from deltamq.jobs.flights.streaming import StreamAccount, expected_stream
from deltamq.mq.client.admin.admin import Admin
from deltamq.mq.client.produce.producer import Producer
from deltamq.mq.wire.topics import TopicInfo

TOPIC: Final = "flights"
PARTITIONS: Final = 4
#: The jobs that the groups need: state tables, redelivery and dead letters, delayed messages, retention.
JOBS: Final = ("merge", "revive", "delay", "retain")
#: Seconds for a job to end its run: a MERGE takes a second or two, and ten times as long on a busy machine.
JOBS_STOP_S: Final = 45.0
#: Seconds that Spark rests between two looks: the replay needs a core, too.
REST_BETWEEN_LOOKS_S: Final = 1.0
#: Seconds between two checks of the processes while the service keeps serving.
LOOK_EVERY_S: Final = 0.5

T = TypeVar("T")


class Run(msgspec.Struct, kw_only=True):
    """One run; `close` ends its processes."""

    console: Console
    warehouse: str
    host: str
    port: int
    #: Number of events of the replay; None: all.
    events_max: int | None
    rate_events_s: float
    #: The folder for logs and the report.
    folder: Path
    #: Seconds to wait for a silent process.
    wait_s: float
    #: The processes in the order of their starts; the newest is stopped first.
    children: list[Child] = msgspec.field(default_factory=list)
    url: str = ""
    topic: str = ""
    groups: tuple[str, ...] = ()

    def report(self) -> Agreement:
        """Run until the report; print and store it."""
        service, spark, crew = self._start()
        airlines = read_airlines()
        events = in_thread(self._events)
        await_all(
            [in_thread(partial(self._serve, service)), events, in_thread(partial(self._await_spark, spark))],
            self.children,
        )
        with Admin(self.url) as admin:
            self.topic = fresh_topic(admin)
            self._say(f"topic     {self.topic}: new, {PARTITIONS} partitions")
            streams = self._aside(lambda: ask(spark, Ask(what="follow", topic=self.topic), str))
            self._say(f"streams   typed events and delays by carrier and hour go to {streams}")
            self._consume(admin, crew)
            look = partial(self._look, spark, airlines, lambda: crew.progress(admin))
            ledger = self._replay(events.result(), look)
            agreement = self._compare(admin, ledger, spark, crew)
        self._show(agreement)
        return agreement

    def serve_on(self) -> None:
        """Keep serving until Ctrl-C; raise if the service or the jobs end by themselves. The reader is stopped."""
        self._stop_newest()
        with Admin(self.url) as admin:
            topic = admin.get_topic(self.topic)
        self.console.print(next_steps(self.url, topic, self.groups, self.warehouse), soft_wrap=True)
        while True:
            self.check()
            time.sleep(LOOK_EVERY_S)

    def check(self) -> None:
        """Raise if a process has died: its death explains the errors that follow from it."""
        for child in self.children:
            child.check()

    def close(self) -> None:
        """Stop the running processes: workers, reader, jobs, and then the service."""
        while self.children:
            self._stop_newest()

    def _stop_newest(self) -> None:
        child = self.children.pop()
        status = child.stop()
        if status != 0:
            self._say(f"the {child.name} ended with status {status} when it was stopped: see {child.log}")

    def _aside(self, work: Callable[[], T]) -> T:
        """Do `work` in a thread, and return its result; raise as soon as a process dies."""
        future = in_thread(work)
        await_all([future], self.children)
        return future.result()

    # Start -----------------------------------------------------------------------------------------------------

    def _start(self) -> tuple[Child, Child, Crew]:
        check_port(self.host, self.port)
        self._say(f"logs      {self.folder}")
        deltamq = str(Path(sys.executable).with_name("deltamq"))
        serve = [deltamq, "serve", "--warehouse", self.warehouse]
        service = self._child("service", [*serve, "--host", self.host, "--port", str(self.port)])
        read = [sys.executable, "-m", "deltamq.jobs.flights.reading", self.warehouse, str(self.folder)]
        jobs = [deltamq, "jobs", "run", *JOBS, "--engine", "spark", "--warehouse", self.warehouse]
        jobs += ["--wait", str(self.wait_s)]  # the service makes the warehouse at the same time
        # Spark's own files go to the folder of the logs, and are removed with it.
        environment = {"SPARK_LOCAL_DIRS": str(self.folder)}
        self._child("jobs driver", jobs, talks=False, environment=environment, stop_s=JOBS_STOP_S)
        spark = self._child("Spark reader", read)
        crew = Crew(self.children, self.folder, self._say, self.wait_s)
        crew.start()
        return service, spark, crew

    def _child(self, name: str, command: list[str], **options: Any) -> Child:
        try:
            child = Child(name, command, self.folder / f"{name.replace(' ', '-').lower()}.log", **options)
        except FileNotFoundError as error:
            raise JobFailed(f"{error.filename} is missing: run make setup") from error
        self.children.append(child)
        return child

    def _serve(self, service: Child) -> None:
        words = service.read_line(self.wait_s).split()
        assert words[0] == "serving", "the service's first line is fixed"
        self.url = words[1]
        self._say(f"service   {self.url}, warehouse {self.warehouse}")

    def _await_spark(self, spark: Child) -> None:
        version = msgspec.json.decode(spark.read_line(self.wait_s), type=str)
        self._say(f"reader    Spark {version}, reads only the Delta tables, never the service")

    def _events(self) -> pa.Table:
        flights = read_flights()
        events = events_of(flights, read_airports())
        if self.events_max is not None:
            events = events.slice(0, self.events_max)
        self._say(f"input     {len(flights):,} real flights of 2013, {len(events):,} events in the order of time")
        return events

    def _consume(self, admin: Admin, crew: Crew) -> None:
        groups = fresh_groups(admin)
        self.groups = tuple(group.name for group in groups)
        self._aside(lambda: crew.begin(self.url, self.topic, groups))
        workers = sum(group.workers for group in groups)
        self._say(f"groups    {' and '.join(self.groups)}: new, {workers} workers; jobs: {', '.join(JOBS)}")

    # Replay and looks ------------------------------------------------------------------------------------------

    def _replay(self, events: pa.Table, look: Callable[[Ledger], None]) -> Ledger:
        days = events["time"].cast(pa.date32())
        with _producer(self.url) as producer, bar(self.console) as progress:
            replay = Replay(producer, self.topic, events, self.rate_events_s)
            ledger = replay.ledger
            shown = progress.add_task("", total=len(events), rate=0.0, day="")
            began = time.monotonic()

            def tell(acknowledged: int) -> None:
                rate = acknowledged / max(1.0, time.monotonic() - began)
                progress.update(shown, completed=acknowledged, rate=rate, day=days[acknowledged - 1].as_py())

            sending = in_thread(lambda: replay.run(tell))
            looking = in_thread(lambda: _look_along(lambda: look(ledger), sending))
            await_all([sending, looking], self.children)
        self._say(f"producer  {ledger.acknowledged:,} events acknowledged in {sending.result():.1f} s")
        return ledger

    def _look(self, spark: Child, airlines: dict[str, str], groups: Callable[[], str], ledger: Ledger) -> None:
        """Spark must see all events that were acknowledged before the question."""
        asked = ledger.acknowledged
        look = ask(spark, Ask(what="look", topic=self.topic), Look)
        text = look_text(look, asked=asked, now=ledger.acknowledged, airlines=airlines, groups=groups())
        self.console.print(text, highlight=False, soft_wrap=True)
        if look.messages < asked:
            raise JobFailed(
                f"Spark saw {look.messages:,} events after {asked:,} had been acknowledged: an acknowledged event "
                "must be visible to every query that begins later"
            )

    # The end ---------------------------------------------------------------------------------------------------

    def _compare(self, admin: Admin, ledger: Ledger, spark: Child, crew: Crew) -> Agreement:
        began = time.monotonic()
        self._aside(lambda: crew.await_done(admin, spark))
        self._say(f"groups    nothing left {time.monotonic() - began:.1f} s after the last event")
        handled = self._aside(crew.end)
        self._say("comparing the acknowledgements with the messages by REST and with Spark's tables ...")
        agreement = self._compare_topic(admin.get_topic(self.topic), ledger, spark)
        groups = self._aside(lambda: crew.compare(admin, spark, ledger, handled))
        return replace(agreement, groups=groups, streams=self._compare_streams(ledger, spark))

    def _compare_topic(self, topic: TopicInfo, ledger: Ledger, spark: Child) -> Agreement:
        of_spark = in_thread(lambda: ask(spark, Ask(what="account", topic=self.topic), Account))
        of_service = in_thread(lambda: served_account(self.url, topic))
        of_producer = in_thread(ledger.account)
        await_all([of_spark, of_service, of_producer], self.children)
        return compare(of_producer.result(), of_service.result(), of_spark.result())

    def _compare_streams(self, ledger: Ledger, spark: Child) -> tuple[Line, ...]:
        question = Ask(what="streams", topic=self.topic)
        of_spark = in_thread(lambda: ask(spark, question, dict[str, StreamAccount]))
        of_producer = in_thread(lambda: expected_stream(ledger.events["body"]))
        await_all([of_spark, of_producer], self.children)
        return compare_streams(of_producer.result(), **of_spark.result())

    def _show(self, agreement: Agreement) -> None:
        (self.folder / "report.json").write_bytes(msgspec.json.format(msgspec.json.encode(agreement)))
        for table in report_tables(agreement, self.topic):
            self.console.print(table)
        if agreement.out_of_order:
            self._say(f"not in the produced order: {', '.join(agreement.out_of_order)}")

    def _say(self, line: str) -> None:
        self.console.print(line, markup=False, highlight=False, soft_wrap=True)


def _look_along(look: Callable[[], None], sending: Future[float]) -> None:
    all_sent = False
    while not all_sent:
        wait([sending], timeout=REST_BETWEEN_LOOKS_S)
        all_sent = sending.done()
        look()


def check_port(host: str, port: int) -> None:
    """Raise if the service cannot listen there."""
    if port == 0:
        return
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise JobFailed(
                f"cannot listen on {host}:{port}: {error.strerror}. An earlier run may still be serving there: stop "
                "it, or use another port: make run PORT=8081 (PORT=0 takes a free one)"
            ) from error


def fresh_topic(admin: Admin) -> str:
    """Create the first missing topic of flights, flights-2, flights-3, ...; topics of earlier runs stay."""
    taken = {name.lower() for name in admin.list_topics()}
    names = (TOPIC if n == 1 else f"{TOPIC}-{n}" for n in count(1))
    name = next(name for name in names if name not in taken)
    admin.create_topic(name, partitions=PARTITIONS)
    return name


@contextmanager
def _producer(url: str) -> Iterator[Producer]:
    """Flush the producer at the end, unless the run has failed: then unsent messages are dropped."""
    producer = Producer(url)
    try:
        yield producer
    except BaseException:
        producer.close(timeout_s=0)
        raise
    producer.close()
