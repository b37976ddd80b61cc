"""An S3 server behind a proxy that adds latency, counts the calls and makes faults: `tests/s3/proxy`.

The proxy is built once with Go and kept in `.tools/`, as the server is. What clients open is the proxy's address.
"""

from __future__ import annotations

import contextlib
import json
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import msgspec
from msgspec.structs import asdict

from tests.s3_server import S3Server, built, s3_server, started

__all__ = ["WRITES", "Counts", "Fault", "StoreProxy", "store_proxy"]

_CONTROL_TIMEOUT_S: Final = 10
#: Both kinds of PUT; the proxy's other operations are GET, HEAD, LIST and DELETE.
WRITES: Final = ("PUT", "CONDITIONAL_PUT")


class Fault(msgspec.Struct, frozen=True, kw_only=True):
    """What happens to a share of the calls; delays add up, the first fault that has an answer decides it.

    Without `reset` and `status` the answer is the store's own, late by the delays.
    """

    probability: float = 1.0
    #: None means all.
    operations: tuple[str, ...] = ()
    #: Of the key, without the bucket.
    prefix: str = ""
    #: Whether the store acts on a call that is answered otherwise.
    acts: bool = False
    #: The connection is reset instead of an answer.
    reset: bool = False
    status: int = 0
    code: str = ""
    retry_after: str = ""
    #: Seconds before the call: the same for each, and the mean of an exponential delay.
    delay_s: float = 0
    tail_s: float = 0
    #: Lists lack the keys that were first written fewer seconds ago, counted since this fault was set.
    stale_s: float = 0


class Counts(msgspec.Struct, frozen=True, kw_only=True):
    """What went through the proxy since the last reset."""

    #: By operation.
    calls: Mapping[str, int]
    bytes_in: Mapping[str, int]
    bytes_out: Mapping[str, int]
    #: By operation and status; "0" are connections that were reset by the proxy or left by the client.
    statuses: Mapping[str, Mapping[str, int]]
    in_flight_most: int
    seconds: float
    #: Of each fault, in the order in which they were set.
    hits: tuple[int, ...] = ()

    @property
    def puts(self) -> int:
        """Calls that write an object."""
        return sum(self.calls.get(name, 0) for name in WRITES)


class StoreProxy(S3Server):
    """A running proxy with its server; what an `S3Server` offers leads through the proxy."""

    def __init__(self, endpoint: str, pid: int, server: S3Server) -> None:
        super().__init__(endpoint, pid)
        #: Without latency and faults.
        self.server = server

    def set_latency(self, *, put_ms: float = 0, get_ms: float = 0) -> None:
        """Add this much to each call in the mean; 0.7 of it fixed, the rest exponential. `get_ms` is of all others."""
        means = dict.fromkeys(("GET", "HEAD", "LIST", "DELETE"), get_ms) | dict.fromkeys(WRITES, put_ms)
        self._call("PUT", "/latency", means)

    def set_faults(self, *faults: Fault, seed: int = 1) -> None:
        """Replace the faults; none ends them. The same seed draws the same numbers, in the order of the calls."""
        self._call("PUT", "/faults", {"seed": seed, "faults": [asdict(fault) for fault in faults]})

    def reset(self) -> None:
        """Begin to count at nothing."""
        self._call("POST", "/reset")

    def counts(self) -> Counts:
        """Return what was counted since the last reset."""
        answer = self._call("GET", "/counts")
        operations = answer["operations"]
        return Counts(
            calls={name: of["calls"] for name, of in operations.items()},
            bytes_in={name: of["bytes_in"] for name, of in operations.items()},
            bytes_out={name: of["bytes_out"] for name, of in operations.items()},
            statuses={name: of["statuses"] for name, of in operations.items()},
            in_flight_most=answer["in_flight_most"],
            seconds=answer["seconds"],
            hits=tuple(answer["hits"]),
        )

    def _call(self, method: str, path: str, body: object = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"{self.endpoint}/-{path}", data=data, method=method)
        with urllib.request.urlopen(request, timeout=_CONTROL_TIMEOUT_S) as answer:
            content = answer.read()
        return json.loads(content) if content else None


@contextlib.contextmanager
def store_proxy(folder: Path) -> Iterator[StoreProxy]:
    """Run a server that stores in `folder`, and a proxy in front of it without latency and faults.

    Raises
    ------
    ServerUnavailable
        Go is not installed, or server or proxy cannot be built or started here.
    """
    binary = built("store-proxy", "proxy")
    with s3_server(folder) as server:
        command = (str(binary), urlsplit(server.endpoint).netloc, "127.0.0.1:{port}")
        with started(command, folder / "proxy.log", {}) as (process, port):
            yield StoreProxy(f"http://127.0.0.1:{port}", process.pid, server)
