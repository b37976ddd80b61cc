"""The recorder: operations are written before their bytes leave, and when their outcome is known (README.md).

    {"n": 17, "t": 123456, "p": 3, "type": "invoke", "f": "send", "topic": "orders", "ids": ["3-17"], ...}
    {"n": 17, "t": 123999, "p": 3, "type": "ok", "f": "send", "placed": [["orders@broker-a", 41]]}

One file for each operating system process, flushed line by line: what a SIGKILL cuts off is an operation without an
end. The clock is the machine's monotonic one, which all processes share.
"""

from __future__ import annotations

import itertools
import json
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from msgspec.structs import fields

from tests.history.checker.ops import FOREVER, KINDS, TUPLES, GroupRules, History, Op, Outcome, TopicRules

__all__ = ["OpenOp", "Recorder", "now_ns", "read_history"]

now_ns = time.monotonic_ns


class OpenOp:
    """An operation that has begun: tell its outcome once. One that nobody told is unknown."""

    def __init__(self, recorder: Recorder, number: int, process: int, kind: str) -> None:
        self._recorder = recorder
        self._number = number
        self._kind = kind
        self.process = process
        self.told = False

    def ok(self, **told: object) -> None:
        """It took effect."""
        self._tell(Outcome.OK, told)

    def fail(self, **told: object) -> None:
        """It certainly had no effect."""
        self._tell(Outcome.FAIL, told)

    def info(self, **told: object) -> None:
        """Nobody knows."""
        self._tell(Outcome.INFO, told)

    def _tell(self, outcome: Outcome, told: dict[str, object]) -> None:
        assert not self.told, "an operation has one outcome"
        self.told = True
        self._recorder.write(self._number, self.process, outcome, self._kind, told)

    def __enter__(self) -> OpenOp:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if not self.told:
            self.info(error=f"{kind.__name__}: {error}"[:200] if kind else "no outcome")


class Recorder:
    """Writes one file; used by all threads of its process."""

    def __init__(self, path: Path, *, first_process: int = 0) -> None:
        self.path = path
        self._file = path.open("a", encoding="utf-8", buffering=1)
        self._lock = threading.Lock()
        self._numbers = itertools.count()
        self._processes = itertools.count(first_process)

    def process(self) -> int:
        """A client process that never was: each life of a client has its own, also after an unknown outcome."""
        return next(self._processes)

    def begin(self, process: int, kind: str, /, **asked: object) -> OpenOp:
        """Write that an operation begins now; its bytes leave after that."""
        assert kind in KINDS, kind
        number = next(self._numbers)
        self.write(number, process, "invoke", kind, asked)
        return OpenOp(self, number, process, kind)

    def moment(self, process: int, kind: str, /, **data: object) -> None:
        """Something that took no time, or whose beginning does not matter."""
        self.begin(process, kind, **data).ok()

    def told(self, process: int, kind: str, outcome: Outcome, /, *, since: int, **data: object) -> None:
        """Write an operation of a program that tells of it when it is over; it began at `since` at the earliest."""
        assert kind in KINDS, kind
        number = next(self._numbers)
        self.write(number, process, "invoke", kind, data, moment=since)
        self.write(number, process, outcome, kind, {})

    def rules(self, rules: GroupRules | TopicRules) -> None:
        """Write down what a group or topic promises in this run."""
        kind = "group" if isinstance(rules, GroupRules) else "topic"
        data = {one.name: getattr(rules, one.name) for one in fields(rules)}
        self.write(next(self._numbers), -1, "rules", kind, data)

    def write(
        self, number: int, process: int, outcome: str, kind: str, data: dict[str, object], *, moment: int | None = None
    ) -> None:
        """One line. Unless a moment is given it is taken under the lock, so that lines are in their order."""
        with self._lock:
            line = {
                "n": number,
                "t": now_ns() if moment is None else moment,
                "p": process,
                "type": outcome,
                "f": kind,
                **data,
            }
            self._file.write(json.dumps(line, separators=(",", ":")) + "\n")

    def close(self) -> None:
        self._file.close()


def read_history(paths: Sequence[Path]) -> History:
    """The history in these files."""
    history = History()
    for path in paths:
        for op in _ops_of(path):
            history.add(op)
    return history.sort()


def _ops_of(path: Path) -> Iterator[Op | GroupRules | TopicRules]:
    begun: dict[int, dict[str, Any]] = {}
    for line in _lines(path):
        number, outcome = line.pop("n"), line.pop("type")
        if outcome == "rules":
            yield _rules(line)
        elif outcome == "invoke":
            begun[number] = line
        else:
            first = begun.pop(number)
            ended, process = line.pop("t"), line.pop("p")
            yield _op({**first, **line, "p": process}, Outcome(outcome), ended)
    for first in begun.values():
        yield _op(first, Outcome.INFO, FOREVER)


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    """The lines of a file; a kill may have cut the last one."""
    text = path.read_text(encoding="utf-8")
    for line in text.splitlines(keepends=True):
        if line.endswith("\n"):
            yield json.loads(line)


def _rules(line: dict[str, Any]) -> GroupRules | TopicRules:
    kind: type[GroupRules] | type[TopicRules] = GroupRules if line.pop("f") == "group" else TopicRules
    known = {one.name for one in fields(kind)}
    given: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in line.items() if name in known
    }
    return kind(**given)


def _op(line: dict[str, Any], outcome: Outcome, ended: int) -> Op:
    kind = KINDS[line["f"]]
    known = {one.name for one in fields(kind)}
    given: dict[str, Any] = {name: _value(name, value) for name, value in line.items() if name in known}
    return kind(**{**given, "process": line["p"], "begun": line["t"], "ended": ended, "outcome": outcome})


def _value(name: str, value: Any) -> Any:
    if not isinstance(value, list):
        return value
    made = TUPLES.get(name)
    if made is not None:
        return tuple(made(*one) for one in value)
    return tuple(tuple(one) if isinstance(one, list) else one for one in value)
