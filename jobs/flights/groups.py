"""The two groups that consume the flights: their workers, the service's side of their account, and their end.

| group     | its handler                                         | so                                               |
|-----------|-----------------------------------------------------|--------------------------------------------------|
| `tower`   | succeeds with everything                            | every message is acknowledged at once            |
| `repairs` | fails for some tails (a checksum), always      | their messages are dead after the third delivery |

One worker of `repairs` kills itself while it holds a batch, whose messages are delivered again. Workers start early,
and get work when the topic exists; one that dies is replaced.
"""

from __future__ import annotations

import signal
import sys
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from itertools import count
from pathlib import Path
from typing import Final, Literal, TypeVar

import msgspec
import pyarrow as pa
from msgspec.structs import replace

from deltamq.jobs.flights.agreement import Line, compare_groups
from deltamq.jobs.flights.child import Child, JobFailed
from deltamq.jobs.flights.group_account import (
    MAX_ATTEMPTS,
    GroupAccount,
    GroupsLeft,
    expected_account,
    handled_account,
)
from deltamq.jobs.flights.reading import Ask, ask
from deltamq.jobs.flights.replay import Ledger
from deltamq.jobs.flights.worker import Closed, Dying, Started, Task, Word, read_deliveries
from deltamq.mq.client.admin.admin import Admin
from deltamq.mq.client.admin.dead_letter_admin import DeadLetter
from deltamq.mq.wire.groups import GroupInfo, GroupPartition

#: Short, so that a message is a dead letter a few seconds after its first failure.
RETRY_WAIT_MS: Final = 1_000
INVISIBLE_MS: Final = 60_000
DEAD_PAGE: Final = 1_000
#: Seconds to wait after the last event. On an idle machine a few are enough; on a busy one, Spark takes minutes.
LIMIT_S: Final = 600.0
LOOK_EVERY_S: Final = 1.0


class FlightGroup(msgspec.Struct, frozen=True, kw_only=True):
    """A group of this run."""

    name: str
    workers: int
    #: Whether its handler fails for some tails.
    fails: bool = False
    #: Whether its first worker kills itself, once.
    dies: bool = False


#: The groups with the names of their first run.
GROUPS: Final = (FlightGroup(name="tower", workers=1), FlightGroup(name="repairs", workers=2, fails=True, dies=True))


def fresh_groups(admin: Admin) -> tuple[FlightGroup, ...]:
    """Create the first missing pair of tower and repairs, tower-2 and repairs-2, ..."""
    taken = {name.lower() for name in admin.list_groups()}
    endings = ("" if n == 1 else f"-{n}" for n in count(1))
    ending = next(ending for ending in endings if not any(f"{group.name}{ending}" in taken for group in GROUPS))
    made = tuple(replace(group, name=f"{group.name}{ending}") for group in GROUPS)
    for group in made:
        admin.create_group(
            group.name,
            consume_strategy="shared",
            order=False,
            consume_from="first",
            max_attempts=MAX_ATTEMPTS,
            retry_policy={"fixed_ms": RETRY_WAIT_MS},
            invisible_ms=INVISIBLE_MS,
        )
    return made


def left_of(info: GroupInfo, topic: str) -> int | None:
    """Return the number of messages that wait for the group or are in flight; None before it has begun.

    A message whose lease has expired, but which the job `revive` has not processed yet, is in neither number; the
    tables have it.
    """
    partitions = _partitions(info, topic)
    if not partitions:
        return None
    return sum(_known(partition.lag, partition) + partition.in_flight for partition in partitions)


def served_group(admin: Admin, group: str, topic: str) -> GroupAccount:
    """Return a group's account by REST: its progress in the topic, and every dead letter."""
    info = admin.get_group(group)
    partitions = _partitions(info, topic)
    consumed = sum(partition.committed_offset or 0 for partition in partitions if not partition.retry)
    dead = list(_dead_letters(admin, group))
    distinct = len({_origin(letter) for letter in dead})
    left = left_of(info, topic)
    return GroupAccount(
        group=group,
        consumed=consumed,
        acknowledged=consumed - distinct,
        dead=len(dead),
        dead_distinct=distinct,
        dead_crc=sum(zlib.crc32(letter.payload) for letter in dead),
        retried=sum(_known(partition.end_offset, partition) for partition in partitions if partition.retry),
        left=0 if left is None else left,
    )


def _partitions(info: GroupInfo, topic: str) -> tuple[GroupPartition, ...]:
    return next((state.partitions for state in info.topics if state.topic == topic), ())


def _known(number: int | None, partition: GroupPartition) -> int:
    if number is None:
        raise JobFailed(f"the service cannot read {partition.partition}: see its log")
    return number


def _dead_letters(admin: Admin, group: str) -> Iterator[DeadLetter]:
    offset: int | None = 0
    while offset is not None:
        page = admin.dead_letters(group, limit=DEAD_PAGE, offset=offset)
        yield from page.messages
        offset = page.next_offset


def _origin(letter: DeadLetter) -> tuple[str | None, int | None]:
    return (letter.origin.partition, letter.origin.offset) if letter.origin is not None else (None, None)


# The workers.


W = TypeVar("W", Started, Dying, Closed)


class _Worker(msgspec.Struct):
    name: str
    #: The number of its group.
    group: int
    child: Child
    task: Task | None = None


class Crew(msgspec.Struct):
    """All groups and their workers.

    Parameters
    ----------
    children
        The processes of the run, which are watched and stopped together; this class adds and replaces workers.
    folder
        The folder for logs and deliveries.
    say
        Prints a line.
    wait_s
        Seconds to wait for an answer of a worker.
    """

    children: list[Child]
    folder: Path
    say: Callable[[str], None]
    wait_s: float
    topic: str = ""
    groups: Sequence[FlightGroup] = ()
    #: Messages that dead workers held, by the group's number: offsets by partition.
    held: dict[int, dict[str, list[int]]] = msgspec.field(default_factory=dict)
    _workers: list[_Worker] = msgspec.field(default_factory=list)

    def start(self) -> None:
        """Start the processes; they wait for their tasks."""
        for number, group in enumerate(GROUPS):
            for n in range(1, group.workers + 1):
                name = f"worker {group.name} {n}"
                child = self._process(name, dies=group.dies and n == 1)
                self.children.append(child)
                self._workers.append(_Worker(name, number, child))

    def begin(self, url: str, topic: str, groups: Sequence[FlightGroup]) -> None:
        """Make all workers consume `topic`; `groups` are this run's names for `GROUPS`."""
        self.topic, self.groups = topic, groups
        for worker in self._workers:
            group = groups[worker.group]
            worker.task = Task(
                url=url,
                group=group.name,
                topic=topic,
                fails=group.fails,
                dies=worker.child.may_end_with is not None,
                file=str(self.folder / f"{worker.name.replace(' ', '-')}.arrow"),
            )
            worker.child.write_line(msgspec.json.encode(worker.task).decode())
        for worker in self._workers:
            _await(worker.child, Started, self.wait_s)

    def look(self) -> None:
        """Replace the worker that has killed itself as planned; for one thread at a time."""
        for worker in self._workers:
            if worker.child.may_end_with is not None and worker.child.status is not None:
                self._replace(worker)

    def end(self) -> list[GroupAccount]:
        """Let all workers end normally; return the accounts of each group's handlers."""
        self.look()
        for worker in self._workers:
            worker.child.may_end_with = 0
            worker.child.write_line("stop")
        left = [0] * len(self.groups)
        deliveries: list[list[pa.Table]] = [[] for _ in self.groups]
        for worker in self._workers:
            closed = _await(worker.child, Closed, self.wait_s)
            assert worker.task is not None
            left[worker.group] += closed.left
            deliveries[worker.group].append(read_deliveries(Path(worker.task.file)))
            self.children.remove(worker.child)
            worker.child.stop()
        return [
            handled_account(group.name, rows, left=unfinished)
            for group, rows, unfinished in zip(self.groups, deliveries, left, strict=True)
        ]

    def _replace(self, worker: _Worker) -> None:
        """The last line of a dead worker names the messages that it held."""
        dying = _await(worker.child, Dying, self.wait_s)
        held = sum(map(len, dying.held.values()))
        self.held[worker.group] = dying.held
        assert worker.task is not None
        self.say(f"{worker.task.group:<9} a worker killed itself with {held:,} messages in flight; another one starts")
        child = self._process(f"{worker.name} again", dies=False)
        self.children[self.children.index(worker.child)] = child
        worker.child.stop()
        worker.child, worker.task = child, msgspec.structs.replace(worker.task, dies=False)
        child.write_line(msgspec.json.encode(worker.task).decode())
        _await(child, Started, self.wait_s)

    # The end of the groups.

    def progress(self, admin: Admin) -> str:
        """Look after the workers, and return the progress of the groups, as reported by the service."""
        self.look()
        return self._by_service(admin)[0]

    def await_done(self, admin: Admin, spark: Child) -> None:
        """Wait until no group has messages left, by the service and by the tables, or until the time limit."""
        deadline = time.monotonic() + LIMIT_S
        shown = ""
        while True:
            self.look()
            text, left = self._by_service(admin)
            if left == 0:
                tables = ask(spark, self._question("left"), GroupsLeft)
                if tables.nothing:
                    return
                text = f"by the state tables, {tables}"
            if text != shown:
                self.say(f"groups    {text}")
                shown = text
            if time.monotonic() > deadline:
                self.say(f"groups    given up after {LIMIT_S:.0f} s: {text}")
                return
            time.sleep(LOOK_EVERY_S)

    def compare(self, admin: Admin, spark: Child, ledger: Ledger, handled: Sequence[GroupAccount]) -> tuple[Line, ...]:
        """Collect each side's account of the groups and compare them; `handled` is the workers' side."""
        expected = [
            expected_account(group.name, ledger, fails=group.fails, held=self.held.get(number, {}))
            for number, group in enumerate(self.groups)
        ]
        served = [served_group(admin, group.name, self.topic) for group in self.groups]
        read = ask(spark, self._question("groups"), list[GroupAccount])
        return compare_groups(expected, handled, served, read)

    def _by_service(self, admin: Admin) -> tuple[str, int | None]:
        """The messages that are left, as text, and as a number (None: a group has not begun)."""
        words, total = [], 0
        for group in self.groups:
            left = left_of(admin.get_group(group.name), self.topic)
            if left is None:
                return "not begun", None
            dead = admin.dead_letters(group.name, limit=1).total if group.fails else 0
            words.append(f"{group.name} {left:,} left" + (f", {dead:,} dead letters" if dead else ""))
            total += left
        return "; ".join(words), total

    def _question(self, what: Literal["left", "groups"]) -> Ask:
        return Ask(what=what, topic=self.topic, groups=[group.name for group in self.groups])

    def _process(self, name: str, *, dies: bool) -> Child:
        log = self.folder / f"{name.replace(' ', '-')}.log"
        command = [sys.executable, "-m", "deltamq.jobs.flights.worker"]
        return Child(name, command, log, may_end_with=-signal.SIGKILL if dies else None)


def _await(child: Child, kind: type[W], timeout_s: float) -> W:
    word = msgspec.json.decode(child.read_line(timeout_s), type=Word)
    if not isinstance(word, kind):
        raise JobFailed(f"the {child.name} said {word} instead of {kind.__name__}: see {child.log}")
    return word
