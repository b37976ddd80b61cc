"""A TLS context whose files may be replaced while the service runs: new connections use the new ones.

    connection ──► looked at the files within LOOK_S? ── yes ──► the present context
                        └── no: changed? ──► made anew; if that fails, the present one stays, and the log says why

A certificate and its key are two files, so there is a moment with the new one of the first and the old one of the
second: they do not fit, the present context stays, and the next change of the files is tried again.
"""

from __future__ import annotations

import logging
import os
import ssl
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Final, Self

log = logging.getLogger("deltamq.api")

#: Seconds for which the files are not looked at again.
LOOK_S: Final = 1.0

#: What tells one state of the files from another: place, time of the last change, and size of each.
_State = tuple[tuple[int, int, int] | None, ...]


class ReloadedContext(ssl.SSLContext):
    """Stands for the newest context that could be made of the files. Safe for several threads.

    asyncio, uvloop and httpx make connections with `wrap_bio` alone, which is what is passed on.
    """

    _make: Callable[[], ssl.SSLContext]
    _present: ssl.SSLContext | None

    def __new__(cls, make: Callable[[], ssl.SSLContext], *_: object, **__: object) -> Self:
        """Make a context that nothing is set in: `make` makes those that count."""
        return super().__new__(cls, ssl.PROTOCOL_TLS_CLIENT)

    def __init__(
        self,
        make: Callable[[], ssl.SSLContext],
        files: Sequence[str],
        *,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """Raise what `make` raises: the first files must be right.

        Without files, the context is made when it is first needed: reading the system's authorities takes as long as
        the rest of a start.
        """
        self._make = make
        self._files = tuple(files)
        self._now_s = now_s
        self._lock = threading.Lock()
        self._looked_at_s = now_s()
        self._state = _state_of(self._files)
        self._present = make() if files else None

    def present(self) -> ssl.SSLContext:
        """Return the context of the newest files that fit together."""
        with self._lock:
            if self._now_s() - self._looked_at_s >= LOOK_S:
                self._looked_at_s = self._now_s()
                self._look()
            if self._present is None:
                self._present = self._make()
            return self._present

    def _look(self) -> None:
        state = _state_of(self._files)
        if state == self._state:
            return
        self._state = state
        try:
            self._present = self._make()
        except Exception as error:
            log.error("event=tls_files_refused files=%r detail=%r the earlier ones are used", self._files, str(error))
        else:
            log.info("event=tls_files_loaded files=%r", self._files)

    def wrap_bio(self, *args: Any, **kwargs: Any) -> ssl.SSLObject:
        """Begin a connection."""
        return self.present().wrap_bio(*args, **kwargs)


def _state_of(files: Sequence[str]) -> _State:
    return tuple(_stamp_of(one) for one in files)


def _stamp_of(path: str) -> tuple[int, int, int] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size
