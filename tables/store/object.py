"""Tables on S3, GCS, Azure or any other store that obstore supports, by conditional put.

A put that returned is durable, so `durable` changes nothing here. After an error of a conditional put its outcome is
unknown: `Unknown` is raised, and the commit loop reads the key back.

Every call is a coroutine. Commits are awaited (`tables.store.calls`): on an event loop hundreds are under way at once,
without a thread for each. Callers that block wait for a loop that all of the process share.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Coroutine, Iterator, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

import pyarrow as pa
from obstore.exceptions import AlreadyExistsError, BaseError, NotFoundError, PermissionDeniedError, UnauthenticatedError
from obstore.store import ObjectStore as Remote
from obstore.store import from_url

from deltamq.mq.backoff import Backoff
from deltamq.mq.errors import READ_ONLY, Unavailable, Unknown
from deltamq.tables.failpoints import failpoint
from deltamq.tables.store.calls import awaited
from deltamq.tables.store.hedged import BlockingLoop, Pace, hedged
from deltamq.tables.store.remote import CountedRemote
from deltamq.tables.store.store import FileMissing, ListedFile, NewFile, sparse_buffer

if TYPE_CHECKING:
    from obstore import ListResult, ObjectMeta
    from obstore.store import RetryConfig

T = TypeVar("T")

#: The client itself repeats what the store could not do, so often; then callers decide, whose clients wait longer and
#: longer. Of the store's `Retry-After` it takes no notice, and its errors do not have it.
_RETRIES: Final[RetryConfig] = {
    "max_retries": 6,
    "backoff": {"init_backoff": timedelta(milliseconds=50), "max_backoff": timedelta(seconds=2), "base": 2},
    "retry_timeout": timedelta(seconds=20),
}
#: Pauses between tries of a conditional put that met another one of the same key, and how many tries there are.
_CONFLICT_S: Final = Backoff(0.02, 0.5)
_CONFLICTS_MAX: Final = 10
_blocking = BlockingLoop()


class _RemoteCall(Generic[T]):
    """A call of the store, which blocks or is awaited."""

    __slots__ = ("_work",)

    def __init__(self, work: Coroutine[Any, Any, T]) -> None:
        self._work = work

    def here(self) -> T:
        return _blocking.run(self._work)

    def aside(self) -> Coroutine[Any, Any, T]:
        return self._work


class ObjectStore:
    """A store of files below a prefix of a bucket."""

    #: `exists` takes a round trip here, so writers put at once instead.
    cheap_look = False

    def __init__(self, url: str, remote: Remote | None = None) -> None:
        self._url = url.rstrip("/")
        self._remote = CountedRemote(remote if remote is not None else from_url(url, retry_config=_RETRIES))
        self.calls = self._remote.calls
        self._puts, self._reads = Pace(), Pace()

    def uri(self, key: str) -> str:
        return f"{self._url}/{key}" if key else self._url

    def put(self, key: str, data: pa.Buffer | bytes, *, durable: bool) -> None:
        _blocking.run(self._put(key, data))

    def put_if_absent(self, key: str, data: bytes, *, durable: bool) -> bool:
        return _blocking.run(self._create(key, data, None))

    async def put_ahead(self, key: str, data: pa.Buffer | bytes) -> bool:
        await awaited(_RemoteCall(self._put(key, data)))
        return True

    async def put_commit(self, key: str, data: bytes, file: NewFile | None, *, durable: bool) -> bool:
        if file is not None:
            await self.put_ahead(*file)
        return await awaited(_RemoteCall(self._create(key, data, self._puts)))

    async def _put(self, key: str, data: pa.Buffer | bytes) -> None:
        content = bytes(data)
        try:
            await hedged(lambda: self._remote.put(key, content), self._puts, len(content))
        except (BaseError, TimeoutError) as error:
            raise _cannot_write(key, error) from error
        failpoint("commit.after_data_fsync")
        failpoint("commit.after_data_write")

    async def _create(self, key: str, data: bytes, pace: Pace | None) -> bool:
        """Create a key; return False if it exists, be it by an earlier try within this call."""
        doubts: list[Exception] = []

        async def ask() -> None:
            try:
                await self._remote.create(key, data)
            except (AlreadyExistsError, PermissionDeniedError, UnauthenticatedError):
                raise
            except (BaseError, TimeoutError) as error:
                doubts.append(error)
                raise

        failpoint("commit.before_log_tmp")
        for conflicts in range(1, _CONFLICTS_MAX + 1):
            try:
                await (ask() if pace is None else hedged(ask, pace, len(data)))
            except AlreadyExistsError as error:
                if not _is_conflict(error):
                    return False
                await asyncio.sleep(_CONFLICT_S.after(conflicts))
            except (BaseError, TimeoutError) as error:
                if doubts:
                    raise Unknown(f"no answer to the put of {key}: {_said(doubts[0])}") from error
                raise _cannot_write(key, error) from error
            else:
                failpoint("commit.after_link")
                return True
        if doubts:
            raise Unknown(f"no answer to the put of {key}: {_said(doubts[0])}")
        raise Unavailable(f"{key}: other puts of it were under way {_CONFLICTS_MAX} times", code="contention")

    def replace(self, key: str, data: pa.Buffer | bytes) -> None:
        try:
            _blocking.run(self._remote.put(key, bytes(data)))
        except (BaseError, TimeoutError) as error:
            raise _cannot_write(key, error) from error

    def read(self, key: str) -> pa.Buffer:
        return _blocking.run(self._read(key))

    async def _read(self, key: str) -> pa.Buffer:
        with _reading(key):
            return await hedged(lambda: self._remote.get(key), self._reads)

    def read_each(self, keys: Sequence[str]) -> Sequence[pa.Buffer | None]:
        async def read(key: str) -> pa.Buffer | None:
            try:
                return await self._read(key)
            except FileMissing:
                return None

        async def read_all() -> list[pa.Buffer | None]:
            return list(await asyncio.gather(*map(read, keys)))

        return _blocking.run(read_all())

    def read_parts(self, key: str, size: int, ranges: Sequence[tuple[int, int]]) -> pa.Buffer:
        starts, ends = [start for start, _ in ranges], [min(stop, size) for _, stop in ranges]
        wanted = sum(ends) - sum(starts)
        with _reading(key):
            parts = _blocking.run(hedged(lambda: self._remote.get_ranges(key, starts, ends), self._reads, wanted))
        return sparse_buffer(size, ranges, [bytes(part) for part in parts])

    def exists(self, key: str) -> bool:
        try:
            with _reading(key):
                _blocking.run(hedged(lambda: self._remote.head(key), self._reads))
        except FileMissing:
            return False
        return True

    def stamp(self, folder: str) -> int | None:
        return None

    def sync(self, keys: list[str]) -> None:
        """Do nothing: every put is durable."""

    def entries(self, folder: str) -> list[ListedFile]:
        objects = self._list(folder)["objects"]
        entries = [
            ListedFile(item["path"].rpartition("/")[2], item["size"], int(item["last_modified"].timestamp() * 1000))
            for item in objects
        ]
        return sorted(entries, key=lambda e: e.name)

    def names(self, folder: str) -> list[str]:
        return sorted(item["path"].rpartition("/")[2] for item in self._list(folder)["objects"])

    def folders(self, folder: str) -> list[str]:
        return sorted(path.rstrip("/").rpartition("/")[2] for path in self._list(folder)["common_prefixes"])

    def _list(self, folder: str) -> ListResult[Sequence[ObjectMeta]]:
        try:
            prefix = folder.rstrip("/") + "/" if folder else None
            return _blocking.run(hedged(lambda: self._remote.list(prefix), self._reads))
        except (BaseError, TimeoutError) as error:
            raise Unavailable(f"cannot list {folder}: {_said(error)}", code="storage_error") from error

    def delete(self, key: str) -> None:
        try:
            self._remote.delete(key)
        except (NotFoundError, FileNotFoundError):
            return
        except (BaseError, TimeoutError) as error:
            raise Unavailable(f"cannot delete {key}: {_said(error)}", code="storage_error") from error

    def prepare(self) -> None:
        """Do nothing: there is nothing to prepare."""

    def close(self) -> None:
        """Do nothing: connections close with the process."""

    def delete_tree(self, folder: str) -> None:
        try:
            self._remote.delete_below(folder.rstrip("/") + "/")
        except (BaseError, TimeoutError) as error:
            raise Unavailable(f"cannot delete {folder}: {_said(error)}", code="storage_error") from error


@contextlib.contextmanager
def _reading(key: str) -> Iterator[None]:
    """Turn a read's errors into ours."""
    try:
        yield
    except (NotFoundError, FileNotFoundError) as error:
        raise FileMissing(key) from error
    except (BaseError, TimeoutError) as error:
        raise Unavailable(f"cannot read {key}: {_said(error)}", code="storage_error") from error


def _cannot_write(key: str, error: BaseError | TimeoutError) -> Unavailable:
    code = READ_ONLY if isinstance(error, PermissionDeniedError) else "storage_error"
    return Unavailable(f"cannot write {key}: {_said(error)}", code=code)


def _said(error: Exception) -> str:
    """Return what an error says, without what the client adds for its own developers."""
    return str(error).partition("\n\nDebug source")[0].strip()


def _is_conflict(error: AlreadyExistsError) -> bool:
    """Whether the store did nothing because another conditional put of the same key was under way.

    S3 answers so with a 409, as if the key existed; Azure's 409 says that it does.
    """
    return "ConditionalRequestConflict" in str(error)
