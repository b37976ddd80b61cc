"""Whether a thread runs the user's code: what would wait there for the same thread is refused."""

from __future__ import annotations

import threading

__all__ = ["Inside"]


class Inside(threading.local):
    """`active` in the threads that are within a `with` block of it."""

    active = False

    def __enter__(self) -> None:
        self.active = True

    def __exit__(self, *_: object) -> None:
        self.active = False
