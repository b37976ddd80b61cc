"""What a fork leaves of clients (SPEC SEND-8).

The child of a fork has copies of clients, without their threads and event loops. Connections would be shared with the
parent, locks may be held by threads of the parent, and a copied producer would go on with numbers that the parent uses,
too. So clients with threads that only send requests are renewed in the child (`in_child`); consumers, and everything on
an event loop, refuse to work there (`Birthplace`). `multiprocessing` with `fork`, gunicorn's --preload and Celery make
such children; a new program inherits none of this.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable
from typing import Any, Final

from deltamq.mq.errors import Refused

#: How many forks lie between the first process of this program and this one.
_forks = 0
_renewals: Final[list[Callable[[], Callable[[], None] | None]]] = []


class ForkedClient(Refused):
    """The object was made before this process was forked, and is its parent's."""

    code = "forked_client"


def in_child(renew: Callable[[], None]) -> None:
    """Call `renew` in each child of this process, right after the fork.

    A bound method is called as long as its object lives. No thread but the caller's runs then.
    """
    if hasattr(renew, "__self__"):
        _renewals.append(weakref.WeakMethod(renew))
        if len(_renewals) % 1_024 == 0:
            _renewals[:] = [renewal for renewal in _renewals if renewal() is not None]
    else:
        _renewals.append(lambda: renew)


def _forked() -> None:
    global _forks
    _forks += 1
    for renewal in list(_renewals):
        renew = renewal()
        if renew is not None:
            renew()


# Windows has no fork.
_at_fork: Final[Any] = getattr(os, "register_at_fork", None)
if _at_fork is not None:
    _at_fork(after_in_child=_forked)


class Birthplace:
    """The process in which an object was made: it works only there."""

    __slots__ = ("_forks", "_kind", "_pid")

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self._forks = _forks
        self._pid = os.getpid()

    @property
    def is_here(self) -> bool:
        """Whether this is that process."""
        return self._forks == _forks

    def check(self) -> None:
        """Raise `ForkedClient` in a child of that process."""
        if self._forks != _forks:
            raise ForkedClient(
                f"this {self._kind} was made in process {self._pid}, before the fork that made process {os.getpid()}: "
                "it belongs to the parent; make one here",
                field="process",
            )
