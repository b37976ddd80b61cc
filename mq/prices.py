"""What calls of an object store cost, by a price list.

Clouds price a million calls of each kind, some of them a GiB that goes in or out, and a GiB that is kept for a month.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date
from typing import Final, NamedTuple
from urllib.parse import urlsplit

import msgspec

#: Kinds of calls, as metrics name them. A conditional put is priced as a put.
STORE_OPERATIONS: Final = ("put", "put_if_absent", "get", "head", "list", "delete")
_WRITES: Final = ("put", "put_if_absent")
_GIB: Final = 1 << 30
_MILLION: Final = 1_000_000
#: Clouds bill hours; a month has 730 of them.
SECONDS_A_MONTH: Final = 730 * 3600.0
_LISTS: Final = {"s3": "s3-standard", "s3a": "s3-standard", "gs": "gcs-standard"} | dict.fromkeys(
    ("az", "abfs", "abfss"), "azure-hot"
)


class Prices(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One price list, in dollars: a million calls of each kind, a GiB put and got, a GiB kept for a month."""

    #: The source, and its day: when it was read, or its own date.
    day: date
    source: str
    put: float
    get: float
    head: float
    list: float
    delete: float = 0.0
    gib_put: float = 0.0
    gib_got: float = 0.0
    gib_month: float

    def of(self, calls: Mapping[str, Calls]) -> float:
        """Return what calls cost, by operation, without what is kept."""
        return sum(self._of(operation, done) for operation, done in calls.items())

    def _of(self, operation: str, done: Calls) -> float:
        kind = "put" if operation in _WRITES else operation
        a_gib = self.gib_put if operation in _WRITES else self.gib_got if operation == "get" else 0.0
        million: float = getattr(self, kind)
        return done.requests * million / _MILLION + done.bytes * a_gib / _GIB


class Calls(NamedTuple):
    """Calls of one kind, and the bytes of the objects that they put or got."""

    requests: int = 0
    bytes: int = 0


def gib_put(calls: Mapping[str, Calls]) -> float:
    """Return the GiB that calls put into the store, commits and the service's own logs included."""
    return sum(done.bytes for operation, done in calls.items() if operation in _WRITES) / _GIB


def a_month(dollars: float, seconds: float) -> float | None:
    """Return what a month costs at the rate of so many dollars in so many seconds; None without time."""
    return dollars * SECONDS_A_MONTH / seconds if seconds > 0 else None


def price_list_of(warehouse: str) -> str | None:
    """Return the name of the price list for a warehouse's URL; None for a folder.

    It is the cloud's usual class of storage; a bucket with a name of S3 Express' has that class.
    """
    url = urlsplit(warehouse)
    return "s3-express" if url.scheme == "s3" and url.netloc.endswith("--x-s3") else _LISTS.get(url.scheme)
