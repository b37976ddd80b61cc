"""The client of an object store as `ObjectStore` calls it, each call counted in the one place where it is made."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

import obstore
import pyarrow as pa
from obstore.exceptions import AlreadyExistsError, BaseError, NotFoundError

from deltamq.tables.store.call_counts import CallCounts

if TYPE_CHECKING:
    from obstore import Bytes, ListResult, ObjectMeta
    from obstore.store import ObjectStore as Client


#: Seconds for which the interpreter is let go of before it ends; the client's threads need microseconds of it each.
_FAREWELL_S: Final = 0.05
#: Most seconds that the end of a process waits for calls under way.
_END_S: Final = 1.0
#: A token for each call under way, of all clients.
_under_way: Final[set[object]] = set()


class CountedRemote:
    """A client and its calls so far; errors are obstore's."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self.calls: Final = CallCounts()

    async def put(self, key: str, content: bytes) -> None:
        self.calls.count_put(len(content))
        with self._asking("put"):
            await obstore.put_async(self._client, key, content)

    async def create(self, key: str, content: bytes) -> None:
        """Put a new object; multipart uploads have no precondition, so it is always one call."""
        self.calls.count("put_if_absent", len(content))
        with self._asking("put_if_absent"):
            await obstore.put_async(self._client, key, content, mode="create", use_multipart=False)

    async def get(self, key: str) -> pa.Buffer:
        self.calls.count("get")
        with self._asking("get"):
            content = await (await obstore.get_async(self._client, key)).bytes_async()
        self.calls.count("get", len(content), requests=0)
        return pa.py_buffer(content)

    async def get_ranges(self, key: str, starts: Sequence[int], ends: Sequence[int]) -> Sequence[Bytes]:
        self.calls.count_ranges(list(zip(starts, ends, strict=True)))
        with self._asking("get"):
            return await obstore.get_ranges_async(self._client, key, starts=starts, ends=ends)

    async def head(self, key: str) -> ObjectMeta:
        self.calls.count("head")
        with self._asking("head"):
            return await obstore.head_async(self._client, key)

    async def list(self, prefix: str | None) -> ListResult[Sequence[ObjectMeta]]:
        """List one level; a list that fails counts as one page."""
        entries = 0
        try:
            with self._asking("list"):
                listed = await obstore.list_with_delimiter_async(self._client, prefix)
            entries = len(listed["objects"]) + len(listed["common_prefixes"])
        finally:
            self.calls.count_list(entries)
        return listed

    def delete(self, key: str) -> None:
        self.calls.count("delete")
        with self._asking("delete"):
            obstore.delete(self._client, key)

    def delete_below(self, prefix: str) -> None:
        entries = 0
        try:
            for batch in obstore.list(self._client, prefix):
                entries += len(batch)
                self.calls.count("delete", requests=len(batch))
                obstore.delete(self._client, [item["path"] for item in batch])
        finally:
            self.calls.count_list(entries)

    @contextlib.contextmanager
    def _asking(self, operation: str) -> Iterator[None]:
        """Note that a call is under way, and count it if it fails; that a key exists, or does not, is an answer."""
        token = object()
        _under_way.add(token)
        try:
            yield
        except (AlreadyExistsError, NotFoundError, FileNotFoundError):
            raise
        except (BaseError, TimeoutError, asyncio.CancelledError):
            self.calls.count_failure(operation)
            raise
        finally:
            _under_way.discard(token)


def _let_go() -> None:
    """Wait for calls under way, and let go of the interpreter before it ends.

    The client's threads hold objects of Python a little longer than the caller that has its answer. One that wants the
    interpreter when that has begun to end aborts the process, whose work was done and whose exit code then says failed.
    """
    until_s = time.monotonic() + _END_S
    while _under_way and time.monotonic() < until_s:
        time.sleep(_FAREWELL_S / 10)
    time.sleep(_FAREWELL_S)


atexit.register(_let_go)
