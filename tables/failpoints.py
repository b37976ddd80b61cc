"""Named places in the code where a test can stop, kill or fail a process (tests/faults/README.md).

`failpoint("commit.after_link")` does nothing unless DELTAMQ_FAILPOINTS names it:

    DELTAMQ_FAILPOINTS="commit.after_link=kill@3,ack.before_respond=raise"

`kill` sends SIGKILL to the process, `stop` sends SIGSTOP, `raise` raises `FailpointHit`. With `@n` only the n-th hit
acts, without it every hit. An unknown action is an error at import, so that a typing mistake cannot make a fault test
test nothing.

Spark replaces a killed worker by one with the same environment. So DELTAMQ_FAILPOINTS_ONCE may name a folder, in which
the first process whose failpoint acts creates a file of the failpoint's name: it acts in no other process then.
"""

from __future__ import annotations

import os
import signal
import threading

import msgspec


class FailpointHit(OSError):
    """A failpoint made this operation fail."""


class _Armed(msgspec.Struct):
    action: str
    nth: int | None
    hits: int = 0


_ACTIONS = ("kill", "stop", "raise")
_lock = threading.Lock()


def _parse(text: str) -> dict[str, _Armed]:
    armed = {}
    for item in filter(None, (part.strip() for part in text.split(","))):
        name, _, action = item.partition("=")
        action, _, nth = action.partition("@")
        if action not in _ACTIONS or (nth and not nth.isdigit()):
            raise ValueError(f"DELTAMQ_FAILPOINTS: {item!r} is not NAME=kill|stop|raise[@n]")
        armed[name] = _Armed(action, int(nth) if nth else None)
    return armed


_armed = _parse(os.environ.get("DELTAMQ_FAILPOINTS", ""))


def arm(text: str) -> None:
    """Arm these failpoints and disarm all others: for a process that has work to do before its fault."""
    wanted = _parse(text)
    with _lock:
        _armed.clear()
        _armed.update(wanted)


def armed(name: str) -> bool:
    """Return whether `name` is armed: for work that is only needed to make a failpoint observable."""
    return name in _armed


def any_armed() -> bool:
    """Return whether any failpoint is armed: a native call would skip the failpoints inside it."""
    return bool(_armed)


def failpoint(name: str) -> None:
    """Act if `name` is armed; otherwise this costs a dictionary look-up.

    Raises
    ------
    FailpointHit
        If `name` is armed with `raise`.
    """
    if not _armed:
        return
    point = _armed.get(name)
    if point is not None:
        _hit(name, point)


def _is_first(name: str) -> bool:
    folder = os.environ.get("DELTAMQ_FAILPOINTS_ONCE")
    if not folder:
        return True
    try:
        os.close(os.open(os.path.join(folder, name), os.O_CREAT | os.O_EXCL | os.O_WRONLY))
    except FileExistsError:
        return False
    return True


def _hit(name: str, point: _Armed) -> None:
    with _lock:
        point.hits += 1
        if point.nth is not None and point.hits != point.nth:
            return
    if not _is_first(name):
        return
    if point.action == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif point.action == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    else:
        raise FailpointHit(f"failpoint {name}")
