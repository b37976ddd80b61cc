"""Access over REST: which brokers and partitions may be read and written to (SPEC ROUTE-9)."""

from __future__ import annotations

from datetime import UTC, datetime

import msgspec

from deltamq.mq.client.http.calls import Calls, read_answer
from deltamq.mq.client.http.endpoint import path_of
from deltamq.mq.errors import Unprocessable
from deltamq.mq.names import check_broker, check_topic


class AccessInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What is allowed at a broker or partition; `reason` and `until` belong to what is forbidden."""

    readable: bool
    writable: bool
    reason: str | None = None
    until: datetime | None = None


class AccessAdmin(Calls):
    """The part of `Admin` for access."""

    def set_broker_access(
        self,
        broker: str,
        *,
        readable: bool = True,
        writable: bool = True,
        reason: str = "",
        until: datetime | None = None,
    ) -> AccessInfo:
        """Set what is allowed at a broker; what is left out is allowed.

        Without `writable`, its partitions get no messages: those of `best_tried` topics go elsewhere, keyed ones of
        `strict` topics and those of logical queues wait. Without `readable`, nothing is read from it. What is stored
        stays. With `until`, everything is allowed again from then on.
        """
        return self._set_access(path_of("brokers", check_broker(broker)), readable, writable, reason, until)

    def set_partition_access(
        self,
        topic: str,
        partition: str,
        *,
        readable: bool = True,
        writable: bool = True,
        reason: str = "",
        until: datetime | None = None,
    ) -> AccessInfo:
        """Do the same for a physical partition; return what it and its broker both allow."""
        path = path_of("topics", check_topic(topic), "partitions", partition)
        return self._set_access(path, readable, writable, reason, until)

    def _set_access(self, path: str, readable: bool, writable: bool, reason: str, until: datetime | None) -> AccessInfo:
        wanted = {"readable": readable, "writable": writable, "reason": reason}
        body = msgspec.json.encode(wanted if until is None else {**wanted, "until": time_text(until, "until")})
        return read_answer(self._call("PUT", path, body=body), AccessInfo)


def time_text(moment: datetime, field: str = "time") -> str:
    """Return RFC 3339 in UTC; raise `Unprocessable`, naming `field`, if the moment has no time zone."""
    if moment.tzinfo is None:
        raise Unprocessable(f"{field} needs a time zone", field=field)
    return moment.astimezone(UTC).isoformat().replace("+00:00", "Z")
