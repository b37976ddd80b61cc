"""The workers of this run: started early, put to work when the topic exists; a worker that dies is replaced."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import msgspec
import pyarrow as pa
from msgspec.structs import replace

from deltamq.jobs.flights.child import Child, JobFailed
from deltamq.jobs.flights.group_account import GroupAccount, handled_account
from deltamq.jobs.flights.groups import GROUPS, FlightGroup
from deltamq.jobs.flights.worker import Closed, Dying, Started, Task, Word, read_deliveries

W = TypeVar("W", Started, Dying, Closed)


@dataclass(slots=True)
class _Worker:
    name: str
    group: int
    child: Child
    task: Task | None = None


@dataclass(slots=True)
class Crew:
    """All workers.

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
    #: Messages that dead workers held, by the group's number: offsets by partition.
    held: dict[int, dict[str, list[int]]] = field(default_factory=dict)
    _workers: list[_Worker] = field(default_factory=list)
    _groups: Sequence[FlightGroup] = ()

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
        self._groups = groups
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
        left = [0] * len(self._groups)
        deliveries: list[list[pa.Table]] = [[] for _ in self._groups]
        for worker in self._workers:
            closed = _await(worker.child, Closed, self.wait_s)
            assert worker.task is not None
            left[worker.group] += closed.left
            deliveries[worker.group].append(read_deliveries(Path(worker.task.file)))
            self.children.remove(worker.child)
            worker.child.stop()
        return [
            handled_account(group.name, rows, left=unfinished)
            for group, rows, unfinished in zip(self._groups, deliveries, left, strict=True)
        ]

    def _replace(self, worker: _Worker) -> None:
        """The last line of a dead worker names the messages that it held."""
        dying = _await(worker.child, Dying, self.wait_s)
        count = sum(map(len, dying.held.values()))
        self.held[worker.group] = dying.held
        assert worker.task is not None
        self.say(f"{worker.task.group:<9} a worker killed itself with {count:,} messages in flight; another one starts")
        child = self._process(f"{worker.name} again", dies=False)
        self.children[self.children.index(worker.child)] = child
        worker.child.stop()
        worker.child, worker.task = child, replace(worker.task, dies=False)
        child.write_line(msgspec.json.encode(worker.task).decode())
        _await(child, Started, self.wait_s)

    def _process(self, name: str, *, dies: bool) -> Child:
        log = self.folder / f"{name.replace(' ', '-')}.log"
        command = [sys.executable, "-m", "deltamq.jobs.flights.worker"]
        return Child(name, command, log, may_end_with=-signal.SIGKILL if dies else None)


def _await(child: Child, kind: type[W], timeout_s: float) -> W:
    word = msgspec.json.decode(child.read_line(timeout_s), type=Word)
    if not isinstance(word, kind):
        raise JobFailed(f"the {child.name} said {word} instead of {kind.__name__}: see {child.log}")
    return word
