"""Servers of three object stores, for tests: S3 (`tests/s3_server.py`), Azure by Azurite, GCS by fake-gcs-server.

Each is fetched and built once, from pinned sources, into `.tools/`. A machine without Node.js or Go lacks these tests
only. Building the two here takes a minute or two, so tests that use them are `long`.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import hmac
import json
import shutil
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from email.utils import formatdate
from pathlib import Path
from typing import Final, Protocol

import msgspec
import pytest
from obstore.store import from_url

from deltamq.tables.store.object import ObjectStore
from deltamq.tables.store.store import FileMissing
from tests.s3_server import TOOLS, ServerUnavailable, built, s3_server, started, tools_lock
from tests.suites.cache import Cache, CannotRun

__all__ = ["SERVERS", "ObjectServer", "azure_server", "fetched", "gcs_server", "running"]

_HERE: Final = Path(__file__).parent
_BUCKET: Final = "warehouse"
#: The account that every Azurite has, and its key, which is no secret: Azurite's documentation prints both.
_ACCOUNT: Final = "devstoreaccount1"
_KEY: Final = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
#: What a service account has; requests to a server without OAuth are signed by nobody.
_NOBODY: Final = {"client_email": "", "private_key": "", "private_key_id": ""}


class ObjectServer(Protocol):
    """A running server with one bucket."""

    def uri(self, prefix: str) -> str:
        """Return the address of a warehouse."""

    def environment(self) -> dict[str, str]:
        """Return the environment with which processes of DeltaMQ open addresses here."""

    def store(self, prefix: str) -> ObjectStore:
        """Return a store below `prefix`, as one process of DeltaMQ opens it."""

    def reader_options(self) -> dict[str, str]:
        """Return the options with which another Delta reader opens addresses here."""


class _Server(msgspec.Struct, frozen=True):
    """A server whose options obstore and other readers know by the same names."""

    scheme: str
    options: Mapping[str, str]

    def uri(self, prefix: str) -> str:
        return f"{self.scheme}://{_BUCKET}/{prefix}"

    def environment(self) -> dict[str, str]:
        return {name.upper(): value for name, value in self.options.items()} | {
            f"{name.partition('_')[0].upper()}_ALLOW_HTTP": "true" for name in self.options
        }

    def store(self, prefix: str) -> ObjectStore:
        remote = from_url(self.uri(prefix), config=dict(self.options), client_options={"allow_http": True})  # type: ignore[call-overload]  # names of one store's options
        return ObjectStore(self.uri(prefix), remote)

    def reader_options(self) -> dict[str, str]:
        return {**self.options, "allow_http": "true"}


@contextlib.contextmanager
def azure_server(folder: Path) -> Iterator[ObjectServer]:
    """Run Azurite, which stores in memory.

    Raises
    ------
    ServerUnavailable
        Node.js is not installed, or Azurite cannot be fetched or started here.
    """
    node, folder = shutil.which("node"), _made(folder)
    if node is None:
        raise ServerUnavailable("Node.js is not installed, so Azurite cannot run")
    try:
        with tools_lock():
            packages = Cache(TOOLS).npm_locked(_HERE / "azurite")
    except CannotRun as error:
        raise ServerUnavailable(str(error)) from error
    program = packages / "node_modules" / "azurite" / "dist" / "src" / "blob" / "main.js"
    quiet = ["--inMemoryPersistence", "--skipApiVersionCheck", "--disableTelemetry", "--silent"]
    with started((node, str(program), "--blobPort", "{port}", *quiet), folder / "server.log", {}) as (_, port):
        address = f"http://127.0.0.1:{port}"
        _make_container(f"{address}/{_ACCOUNT}/{_BUCKET}")
        options = {
            "azure_storage_account_name": _ACCOUNT,
            "azure_storage_account_key": _KEY,
            "azure_storage_endpoint": f"{address}/{_ACCOUNT}",
        }
        yield _Server("az", options)


def _make_container(url: str) -> None:
    """Make a container by one request, signed as Azure's shared keys are."""
    headers = {"x-ms-date": formatdate(usegmt=True), "x-ms-version": "2021-12-02"}
    signed = "".join(f"{name}:{value}\n" for name, value in headers.items())
    text = "PUT" + "\n" * 12 + signed + f"/{_ACCOUNT}/{_ACCOUNT}/{_BUCKET}\nrestype:container"
    signature = base64.b64encode(hmac.digest(base64.b64decode(_KEY), text.encode(), hashlib.sha256)).decode()
    headers |= {"Authorization": f"SharedKey {_ACCOUNT}:{signature}", "Content-Length": "0"}
    request = urllib.request.Request(f"{url}?restype=container", method="PUT", headers=headers)
    with urllib.request.urlopen(request, timeout=30) as answer:
        assert answer.status == 201


@contextlib.contextmanager
def gcs_server(folder: Path, *, overwrites: bool = False) -> Iterator[ObjectServer]:
    """Run fake-gcs-server, which stores in memory; one that `overwrites` ignores the condition of a put.

    Raises
    ------
    ServerUnavailable
        Go is not installed, or the server cannot be built or started here.
    """
    binary, mode = built("gcs", ".", _HERE / "gcs"), "overwrites" if overwrites else "conditional"
    log = _made(folder) / "server.log"
    with started((str(binary), "127.0.0.1:{port}", _BUCKET, mode), log, {}) as (_, port):
        account = log.with_name("account.json")
        account.write_text(json.dumps({"gcs_base_url": f"http://127.0.0.1:{port}", "disable_oauth": True, **_NOBODY}))
        yield _Server("gs", {"google_service_account": str(account)})


def _made(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return folder


#: The servers by the name of their store.
SERVERS: Final[Mapping[str, Callable[[Path], AbstractContextManager[ObjectServer]]]] = {
    "s3": s3_server,
    "azure": azure_server,
    "gcs": gcs_server,
}


@contextlib.contextmanager
def running(server: Callable[[Path], AbstractContextManager[ObjectServer]], folder: Path) -> Iterator[ObjectServer]:
    """Run a server; if it cannot be had, skip the test with the reason."""
    try:
        with server(folder) as started_server:
            yield started_server
    except ServerUnavailable as error:
        pytest.skip(str(error))


def fetched(store: ObjectStore, table: str, folder: Path) -> Path:
    """Return a copy of a table's files on this machine's disk, for readers of files; jobs may remove some meanwhile."""
    while True:
        shutil.rmtree(folder / table, ignore_errors=True)
        with contextlib.suppress(FileMissing):
            for part in (table, f"{table}/_delta_log"):
                (folder / part).mkdir(parents=True, exist_ok=True)
                for name in store.names(part):
                    (folder / part / name).write_bytes(store.read(f"{part}/{name}").to_pybytes())
            return folder / table
