"""What goes wrong in a run: each fault has a beginning, an end when it is healed, and a line in the history."""

from __future__ import annotations

import contextlib
import os
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from functools import partial
from itertools import cycle
from pathlib import Path
from typing import Final, Protocol

import psutil

from tests.e2e.service_process import ServiceProcess
from tests.faults.job_process import JobProcess
from tests.history.checker.record import Recorder
from tests.history.clients.door import Answer, Door, NeverSent, NoAnswer
from tests.history.clients.orderlies import OrderlyClients
from tests.history.runs.clock import set_clock
from tests.store_proxy import Fault as StoreFault
from tests.store_proxy import StoreProxy

__all__ = [
    "Expand",
    "Fault",
    "Jobs",
    "JumpClock",
    "KillClient",
    "KillInTrouble",
    "KillJobs",
    "KillService",
    "KillTasks",
    "LeaveClient",
    "Nemesis",
    "PauseClient",
    "PauseService",
    "Remap",
    "StopService",
    "TroubleStore",
]


#: How often it is looked whether there is something to kill.
_LOOK_S: Final = 0.05
#: A driver is back, and has tasks, long before.
_TASK_S: Final = 180.0
#: At most so many times the strikes that are meant; how much longer each round of them rests than the one before.
_STRIKES_MORE: Final = 4
_RESTS_MORE: Final = 4


class Fault(Protocol):
    """Something that can be done to the system, and undone."""

    kind: str

    def strike(self, drawn: random.Random, stopping: threading.Event) -> AbstractContextManager[str]:
        """Hurt one target, whose name is given; leaving the context heals it."""


class Jobs:
    """The revive and delay jobs on their schedules."""

    def __init__(
        self, warehouse: Path | str, names: Sequence[str], program: Sequence[str], every_s: float = 0.1
    ) -> None:
        engine = os.environ.get("DELTAMQ_JOBS_ENGINE", "local")
        self._make = partial(JobProcess, warehouse, *names, every_s=every_s, program=program, engine=engine)
        self._process = self._make()

    def kill(self) -> None:
        self._process.kill()

    def start(self) -> None:
        self._process = self._make()

    def stop(self) -> None:
        self._process.stop()

    def executors(self) -> list[psutil.Process]:
        """The Python processes that carry out Spark's tasks now."""
        with contextlib.suppress(psutil.Error):
            driver = psutil.Process(self._process.pid)
            return [one for one in driver.children(recursive=True) if _is_executor(one)]
        return []


def _is_executor(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.Error):
        return "pyspark.daemon" in process.cmdline()
    return False


class KillService:
    """kill -9 of a service, and a new one in its place."""

    kind: Final = "kill"

    def __init__(self, services: Sequence[ServiceProcess], *, down_s: tuple[float, float] = (0.0, 0.2)) -> None:
        self._services = services
        self._down_s = down_s

    @contextmanager
    def strike(self, drawn: random.Random, stopping: threading.Event) -> Iterator[str]:
        at = drawn.randrange(len(self._services))
        service = self._services[at]
        service.kill()
        yield f"service-{at}"
        stopping.wait(drawn.uniform(*self._down_s))
        service.start()


class StopService:
    """SIGTERM: the service finishes what it has, and another takes its place."""

    kind: Final = "stop"

    def __init__(self, services: Sequence[ServiceProcess]) -> None:
        self._services = services

    @contextmanager
    def strike(self, drawn: random.Random, stopping: threading.Event) -> Iterator[str]:
        at = drawn.randrange(len(self._services))
        assert self._services[at].stop() == 0
        yield f"service-{at}"
        self._services[at].start()


class PauseService:
    """SIGSTOP for a while: the process does nothing, and does not notice."""

    kind: Final = "pause"

    def __init__(self, services: Sequence[ServiceProcess], *, pause_s: tuple[float, float]) -> None:
        self._services = services
        self._pause_s = pause_s

    @contextmanager
    def strike(self, drawn: random.Random, stopping: threading.Event) -> Iterator[str]:
        at = drawn.randrange(len(self._services))
        self._services[at].pause()
        try:
            yield f"service-{at}"
            stopping.wait(drawn.uniform(*self._pause_s))
        finally:
            self._services[at].resume()


class KillJobs:
    """kill -9 of the jobs' driver, and a new one in its place."""

    kind: Final = "job_kill"

    def __init__(self, jobs: Jobs) -> None:
        self._jobs = jobs

    @contextmanager
    def strike(self, drawn: random.Random, stopping: threading.Event) -> Iterator[str]:
        self._jobs.kill()
        yield "jobs"
        self._jobs.start()


class KillTasks:
    """kill -9 of a Python process of Spark's executors, whatever its task is doing; Spark starts the task again."""

    kind: Final = "task_kill"

    def __init__(self, jobs: Jobs) -> None:
        self._jobs = jobs

    @contextmanager
    def strike(self, drawn: random.Random, stopping: threading.Event) -> Iterator[str]:
        until_s = time.monotonic() + _TASK_S
        while not (found := self._jobs.executors()) and not stopping.wait(_LOOK_S):
            assert time.monotonic() < until_s, "no task runs: are these jobs carried out by Spark?"
        if found:
            with contextlib.suppress(psutil.Error):
                drawn.choice(found).kill()
        yield "task"


class JumpClock:
    """The clocks of the processes that follow a file do something else for a while.

    The fault ends some time after that: a run of a job goes by the time at which it began.
    """

    kind: Final = "clock"
    #: Seconds in which a job's run ends.
    _RUN_S: Final = 3.0

    def __init__(self, path: Path, *, offset_s: float = 0.0, rate: float = 1.0, for_s: tuple[float, float]) -> None:
        self._path = path
        self._offset_s = offset_s
        self._rate = rate
        self._for_s = for_s

    @contextmanager
    def strike(self, drawn: random.Random, stopping: threading.Event) -> Iterator[str]:
        set_clock(self._path, offset_s=self._offset_s, rate=self._rate)
        yield f"{self._offset_s:+.0f} s, rate {self._rate}"
        stopping.wait(drawn.uniform(*self._for_s))
        set_clock(self._path)
        stopping.wait(self._RUN_S)


class KillClient:
    """kill -9 of an exclusive client, and another life in its place."""

    kind: Final = "client_kill"

    def __init__(self, clients: OrderlyClients) -> None:
        self._clients = clients

    @contextmanager
    def strike(self, drawn: random.Random, stopping: threading.Event) -> Iterator[str]:
        at = drawn.randrange(len(self._clients.clients))
        client = self._clients.clients[at]
        client.kill()
        self._clients.replace(at)
        yield client.client


class LeaveClient:
    """An exclusive client goes as it should, and another comes: that repeats nothing, so it is no excuse."""

    kind: Final = "client_leave"

    def __init__(self, clients: OrderlyClients) -> None:
        self._clients = clients

    @contextmanager
    def strike(self, drawn: random.Random, stopping: threading.Event) -> Iterator[str]:
        at = drawn.randrange(len(self._clients.clients))
        assert self._clients.clients[at].stop() == 0
        self._clients.replace(at)
        yield ""


class PauseClient:
    """SIGSTOP of an exclusive client for longer than it is authorized."""

    kind: Final = "client_pause"

    def __init__(self, clients: OrderlyClients, *, pause_s: tuple[float, float]) -> None:
        self._clients = clients
        self._pause_s = pause_s

    @contextmanager
    def strike(self, drawn: random.Random, stopping: threading.Event) -> Iterator[str]:
        client = drawn.choice(self._clients.clients)
        client.pause()
        try:
            stopping.wait(drawn.uniform(*self._pause_s))
        finally:
            client.resume()
        yield client.client


class Remap:
    """The logical queues of a static topic go to other brokers, in either mode.

    Each time some of the brokers are drawn, or all queues go to one broker after the other (`in_turn`). An answer with
    the code `refusal` is the end of a strike, too: the service noticed by itself what is broken in it.
    """

    kind: Final = "remap"

    def __init__(
        self, urls: Sequence[str], topic: str, brokers: Sequence[str], *, in_turn: bool = False, refusal: str = ""
    ) -> None:
        self._turns = cycle(brokers) if in_turn else None
        self._refusal = refusal
        self._urls = urls
        self._path = f"/v1/topics/{topic}/remap"
        self._brokers = brokers

    @contextmanager
    def strike(self, drawn: random.Random, stopping: threading.Event) -> Iterator[str]:
        """Ask until it is answered: a process that dies meanwhile leaves it to the next request (SPEC STATIC-11)."""
        if self._turns is not None:
            brokers = [next(self._turns)]
        else:
            brokers = drawn.sample(list(self._brokers), drawn.randint(1, len(self._brokers)))
        mode = drawn.choice(["strict", "available"])
        with closing(Door(self._urls)) as door:
            _ask(door, "POST", self._path, {"brokers": brokers, "mode": mode}, stopping, self._refusal)
        yield f"{mode} to {', '.join(brokers)}"


class Expand:
    """More partitions for the topic: keys move."""

    kind: Final = "expand"

    def __init__(self, urls: Sequence[str], topic: str, *, most: int) -> None:
        self._urls = urls
        self._path = f"/v1/topics/{topic}"
        self._most = most

    @contextmanager
    def strike(self, drawn: random.Random, stopping: threading.Event) -> Iterator[str]:
        with closing(Door(self._urls)) as door:
            found = _ask(door, "GET", self._path, None, stopping)
            count = 0 if found is None else len(found.body["partitions"])
            wanted = min(self._most, count + drawn.randint(1, 2))
            if found is not None:
                _ask(door, "PUT", self._path, {"partitions": wanted}, stopping)
        yield f"{count}-{wanted}"


def _ask(
    door: Door, method: str, path: str, body: object, stopping: threading.Event, refusal: str = ""
) -> Answer | None:
    """Ask until it is done; a process that dies meanwhile, or has lost its roles, leaves it to the next request."""
    while not stopping.is_set():
        with contextlib.suppress(NoAnswer, NeverSent):
            answer = door.call(method, path, body)
            assert answer.ok or answer.status in (409, 503), answer
            if answer.ok or answer.body["code"] == refusal:
                return answer
        stopping.wait(_LOOK_S)
    return None


class TroubleStore:
    """The object store makes faults for a while; meanwhile the memory of the services is looked at.

    Each of the faults is struck once before any of them is struck again.
    """

    kind: Final = "store"

    def __init__(
        self,
        store: StoreProxy,
        faults: Mapping[str, Sequence[StoreFault]],
        services: Sequence[ServiceProcess],
        *,
        for_s: tuple[float, float],
    ) -> None:
        self._store = store
        self._faults = faults
        self._services = services
        self._for_s = for_s
        self._left: list[str] = []
        #: The largest resident memory of a service, and how many calls each fault has hurt.
        self.rss_mib = 0.0
        self.hurt = Counter[str]()

    @contextmanager
    def strike(self, drawn: random.Random, stopping: threading.Event) -> Iterator[str]:
        self._left = self._left or drawn.sample(list(self._faults), len(self._faults))
        name = self._left.pop()
        self._store.set_faults(*self._faults[name], seed=drawn.randrange(1 << 32))
        try:
            yield name
            end = time.monotonic() + drawn.uniform(*self._for_s)
            while time.monotonic() < end and not stopping.wait(_LOOK_S):
                with contextlib.suppress(psutil.Error):
                    used = (psutil.Process(service.pid).memory_info().rss / 2**20 for service in self._services)
                    self.rss_mib = max(self.rss_mib, *used)
            self.hurt[name] += sum(self._store.counts().hits)
        finally:
            self._store.set_faults()


class KillInTrouble:
    """kill -9 of a service whose store makes faults; they go on while a new one starts in its place.

    A start may meet a fault that it does not survive; then it is tried again, as those do who watch over services.
    """

    kind: Final = KillService.kind

    def __init__(
        self, trouble: TroubleStore, services: Sequence[ServiceProcess], *, down_s: tuple[float, float]
    ) -> None:
        self._trouble = trouble
        self._services = services
        self._down_s = down_s

    @contextmanager
    def strike(self, drawn: random.Random, stopping: threading.Event) -> Iterator[str]:
        with self._trouble.strike(drawn, stopping) as faults:
            at = drawn.randrange(len(self._services))
            self._services[at].kill()
            yield f"service-{at}, {faults}"
            stopping.wait(drawn.uniform(*self._down_s))
            while not _starts(self._services[at]):
                pass


def _starts(service: ServiceProcess) -> bool:
    try:
        service.start()
    except ChildProcessError:
        return False
    return True


class Nemesis(threading.Thread):
    """Strikes again and again: `count` times or more, a drawn fault each time, with a drawn rest in between.

    A slow machine does less between two strikes, so it goes on until the loads have done `enough`, but not for ever;
    and rests longer then: one that is struck again before it serves does nothing at all.
    """

    def __init__(
        self,
        recorder: Recorder,
        faults: Sequence[Fault],
        *,
        count: int,
        rest_s: tuple[float, float],
        seed: int,
        stop: threading.Event,
        enough: Callable[[], bool] = lambda: True,
    ) -> None:
        super().__init__(name="nemesis", daemon=True)
        self._recorder = recorder
        self._faults = faults
        self._count = count
        self._rest_s = rest_s
        self._drawn = random.Random(seed)
        self._stopping = stop
        self._enough = enough
        self.failure: BaseException | None = None

    def run(self) -> None:
        process = self._recorder.process()
        try:
            for strike in range(self._count * _STRIKES_MORE):
                if strike >= self._count and self._enough():
                    break
                longer = 1 + _RESTS_MORE * (strike // self._count)
                if self._stopping.wait(self._drawn.uniform(*self._rest_s) * longer):
                    return
                fault = self._drawn.choice(self._faults)
                with self._recorder.begin(process, "fault", kind=fault.kind, target="") as op:
                    with fault.strike(self._drawn, self._stopping) as target:
                        pass
                    op.ok(target=target)
            self._stopping.wait(self._rest_s[0])
        except BaseException as error:
            self.failure = error
