"""Tables on S3, GCS, Azure or any other store that obstore supports, by conditional put.

A put that returned is durable, so `durable` changes nothing here. After an error of a conditional put its outcome is
unknown: `Unknown` is raised, and the commit loop reads the key back.

Commits are awaited (`tables.store.calls`): on an event loop hundreds are under way at once, without a thread for each.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Coroutine, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import obstore
import pyarrow as pa
from obstore.exceptions import AlreadyExistsError, BaseError, NotFoundError
from obstore.store import ObjectStore as Remote
from obstore.store import from_url

from deltamq.mq.errors import Unavailable, Unknown
from deltamq.tables.failpoints import failpoint
from deltamq.tables.store.calls import awaited
from deltamq.tables.store.store import FileMissing, ListedFile, NewFile, sparse_buffer
from deltamq.tables.store.waits import waiting

if TYPE_CHECKING:
    from obstore import ListResult, ObjectMeta

T = TypeVar("T")


class _RemoteCall(Generic[T]):
    """A call of the store, by its client's blocking and asynchronous form."""

    __slots__ = ("_aside", "_here")

    def __init__(self, here: Callable[[], T], aside: Callable[[], Coroutine[Any, Any, T]]) -> None:
        self._here = here
        self._aside = aside

    def here(self) -> T:
        with waiting():
            return self._here()

    def aside(self) -> Coroutine[Any, Any, T]:
        return self._aside()


class ObjectStore:
    """A store of files below a prefix of a bucket."""

    #: `exists` takes a round trip here, so writers put at once instead.
    cheap_look = False
    publishes_aside = True

    def __init__(self, url: str, remote: Remote | None = None) -> None:
        self._url = url.rstrip("/")
        self._remote: Remote = remote if remote is not None else from_url(url)

    def uri(self, key: str) -> str:
        return f"{self._url}/{key}" if key else self._url

    def put(self, key: str, data: pa.Buffer | bytes, *, durable: bool) -> None:
        with _putting(key):
            obstore.put(self._remote, key, bytes(data))

    def put_if_absent(self, key: str, data: bytes, *, durable: bool) -> bool:
        with _creating(key) as created:
            # Multipart uploads have no precondition: a commit is always one put.
            obstore.put(self._remote, key, data, mode="create", use_multipart=False)
        return created.is_new

    async def put_ahead(self, key: str, data: pa.Buffer | bytes) -> bool:
        async def aside() -> None:
            with _putting(key):
                await obstore.put_async(self._remote, key, bytes(data))

        await awaited(_RemoteCall(lambda: self.put(key, data, durable=True), aside))
        return True

    async def put_commit(self, key: str, data: bytes, file: NewFile | None, *, durable: bool) -> bool:
        if file is not None:
            await self.put_ahead(*file)

        async def aside() -> bool:
            with _creating(key) as created:
                await obstore.put_async(self._remote, key, data, mode="create", use_multipart=False)
            return created.is_new

        return await awaited(_RemoteCall(lambda: self.put_if_absent(key, data, durable=durable), aside))

    def replace(self, key: str, data: pa.Buffer | bytes) -> None:
        self.put(key, data, durable=True)

    def read(self, key: str) -> pa.Buffer:
        try:
            return pa.py_buffer(obstore.get(self._remote, key).bytes())
        except (NotFoundError, FileNotFoundError) as error:
            raise FileMissing(key) from error
        except BaseError as error:
            raise Unavailable(f"cannot read {key}: {error}", code="storage_error") from error

    def read_parts(self, key: str, size: int, ranges: Sequence[tuple[int, int]]) -> pa.Buffer:
        starts, ends = [start for start, _ in ranges], [min(stop, size) for _, stop in ranges]
        try:
            parts = obstore.get_ranges(self._remote, key, starts=starts, ends=ends)
        except (NotFoundError, FileNotFoundError) as error:
            raise FileMissing(key) from error
        except BaseError as error:
            raise Unavailable(f"cannot read {key}: {error}", code="storage_error") from error
        return sparse_buffer(size, ranges, [bytes(part) for part in parts])

    def exists(self, key: str) -> bool:
        try:
            obstore.head(self._remote, key)
        except (NotFoundError, FileNotFoundError):
            return False
        except BaseError as error:
            raise Unavailable(f"cannot look at {key}: {error}", code="storage_error") from error
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
            return obstore.list_with_delimiter(self._remote, folder.rstrip("/") + "/" if folder else None)
        except BaseError as error:
            raise Unavailable(f"cannot list {folder}: {error}", code="storage_error") from error

    def delete(self, key: str) -> None:
        try:
            obstore.delete(self._remote, key)
        except (NotFoundError, FileNotFoundError):
            return
        except BaseError as error:
            raise Unavailable(f"cannot delete {key}: {error}", code="storage_error") from error

    def prepare(self) -> None:
        """Do nothing: there is nothing to prepare."""

    def close(self) -> None:
        """Do nothing: connections close with the process."""

    def delete_tree(self, folder: str) -> None:
        try:
            for batch in obstore.list(self._remote, folder.rstrip("/") + "/"):
                obstore.delete(self._remote, [item["path"] for item in batch])
        except BaseError as error:
            raise Unavailable(f"cannot delete {folder}: {error}", code="storage_error") from error


@contextlib.contextmanager
def _putting(key: str) -> Iterator[None]:
    """Put a file; its errors are ours."""
    try:
        yield
    except BaseError as error:
        raise Unavailable(f"cannot write {key}: {error}", code="storage_error") from error
    failpoint("commit.after_data_fsync")
    failpoint("commit.after_data_write")


class _Created:
    is_new = True


@contextlib.contextmanager
def _creating(key: str) -> Iterator[_Created]:
    """Create a file; note whether it was there, and raise `Unknown` for other errors."""
    failpoint("commit.before_log_tmp")
    created = _Created()
    try:
        yield created
    except AlreadyExistsError:
        created.is_new = False
    except BaseError as error:
        raise Unknown(f"no answer to the put of {key}: {error}") from error
    if created.is_new:
        failpoint("commit.after_link")
