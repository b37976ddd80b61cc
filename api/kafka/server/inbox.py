"""Bytes that have arrived and are not read yet.

A frame that came in one piece is taken without a copy, any other by one.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from mq.limits import KIB

__all__ = ["Inbox"]

#: Pieces smaller than this are put together: a client that sends byte by byte must not cost many times what it sends.
_SMALL_BYTES: Final = 8 * KIB


class Inbox:
    """The bytes of one connection, in the order of their arrival."""

    __slots__ = ("_at", "_pieces", "_size")

    def __init__(self) -> None:
        #: As they came; nobody changes them, so parts of them may be lent.
        self._pieces: deque[bytes] = deque()
        #: What is before it in the first piece was taken.
        self._at = 0
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def put(self, data: bytes) -> None:
        """Add bytes that have arrived."""
        self._size += len(data)
        pieces = self._pieces
        if pieces and len(data) < _SMALL_BYTES and len(pieces[-1]) < _SMALL_BYTES:
            data = pieces.pop() + data
        pieces.append(data)

    def first(self, count: int) -> bytes:
        """Return the first bytes, or what there is of them, and leave them there."""
        at = self._at
        if not self._pieces or len(self._pieces[0]) - at >= count:
            return self._pieces[0][at : at + count] if self._pieces else b""
        found = b""
        for piece in self._pieces:
            found += piece[at : at + count - len(found)]
            at = 0
            if len(found) == count:
                break
        return found

    def take(self, count: int) -> memoryview:
        """Return the first bytes, which must be there, and remove them; nobody changes them any more."""
        assert count <= self._size, "they have arrived"
        if not count:
            return memoryview(b"")
        self._size -= count
        found, left = list[memoryview](), count
        while True:
            piece, at = self._pieces[0], self._at
            end = min(at + left, len(piece))
            found.append(memoryview(piece)[at:end])
            left -= end - at
            if end == len(piece):
                self._pieces.popleft()
                self._at = 0
            else:
                self._at = end
            if not left:
                return found[0] if len(found) == 1 else memoryview(b"".join(found))

    def clear(self) -> None:
        """Forget what was not taken."""
        self._pieces.clear()
        self._at = self._size = 0
