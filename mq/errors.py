"""Every error that DeltaMQ raises on purpose, in one tree.

    DeltaMQError
    ├── Refused                  the caller's fault; nothing was stored                   400
    │   ├── Unprocessable        well-formed, but against a rule                          422
    │   ├── NotFound             no such topic, partition, group, offset                  404
    │   ├── TooLarge             over a size limit                                        413
    │   ├── UnsupportedMedia     a media type that the call does not accept               415
    │   ├── Unauthenticated      no valid token                                           401
    │   └── Forbidden            outside the token's topics and groups                    403
    ├── Conflict                 the present state forbids it                             409
    │   ├── Fenced               an owner with a newer epoch or commit took over          409
    │   └── OffsetMismatch       `expected_offset` is not the end offset                  412
    ├── Overloaded               a queue is full; try again after `retry_after_s`         429
    ├── Unavailable              starting, stopping, or a dependency is out               503
    │   └── StorageFull          the disk is full; nothing was stored                     507
    ├── Unknown                  the outcome is not known: never treat it as a failure    503
    └── Corrupt                  stored data contradicts itself: the partition stops      500

Each class fixes its HTTP `status` and a stable default `code`. `field` names the part of the request that is wrong;
`extra` carries machine-readable facts (limits, current offsets) into the problem document. `outcome` says what became
of the change that the call asked for:

    not_stored   Refused, Conflict, Overloaded, StorageFull, and an Unavailable whose code says so
    unknown      every other error, and each after an attempt of the same call that may have been applied
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal, Self

Extra = str | int | float | bool | None | list[str] | list[int] | list[dict[str, str | int | None]]

#: What became of a message that was sent, or of another change that a call asked for: an acknowledgement, an offset, a
#: topic. A call that raises an error has stored nothing for certain, or it is not known; `PartlySent` says of each
#: message of a batch which of the three it is.
Outcome = Literal["stored", "not_stored", "unknown"]


class DeltaMQError(Exception):
    """Unexpected DeltaMQ error."""

    status: int = 500
    code: str = "internal"
    _outcome: Outcome = "unknown"
    _may_be_stored = False

    def __init__(
        self,
        detail: str | None = None,
        *,
        code: str | None = None,
        field: str | None = None,
        extra: Mapping[str, Extra] | None = None,
    ) -> None:
        self.detail: str = detail or (self.__doc__ or "").strip()
        self.code = code or type(self).code
        self.field = field
        self.extra: dict[str, Extra] = dict(extra or {})
        super().__init__(self.detail)

    @property
    def outcome(self) -> Outcome:
        """What became of the change that the call asked for; a call that only reads changes nothing."""
        return "unknown" if self._may_be_stored else self._outcome

    def not_known(self) -> Self:
        """Return this error with an unknown `outcome`: something else than what it ended may have been stored."""
        self._may_be_stored = True
        return self


class Refused(DeltaMQError):
    """The request is wrong; nothing was stored."""

    status = 400
    code = "invalid_request"
    _outcome = "not_stored"


class Unprocessable(Refused):
    """The request is well-formed but breaks a rule; nothing was stored."""

    status = 422
    code = "invalid_value"


class NotFound(Refused):
    """The resource does not exist."""

    status = 404
    code = "not_found"


class TooLarge(Refused):
    """The request or a message is over its size limit."""

    status = 413
    code = "too_large"


class UnsupportedMedia(Refused):
    """This call does not accept the media type."""

    status = 415
    code = "unsupported_media_type"


class Unauthenticated(Refused):
    """The request has no valid token."""

    status = 401
    code = "unauthenticated"


class Forbidden(Refused):
    """The token gives no access to this topic or group."""

    status = 403
    code = "forbidden"


class Conflict(DeltaMQError):
    """The current state does not allow this."""

    status = 409
    code = "conflict"
    _outcome = "not_stored"


class Fenced(Conflict):
    """Another owner has taken over."""

    code = "fenced"


class OffsetMismatch(Conflict):
    """The end offset is not the expected one."""

    status = 412
    code = "offset_mismatch"


class Overloaded(DeltaMQError):
    """A queue is full; try again later."""

    status = 429
    code = "overloaded"
    _outcome = "not_stored"

    def __init__(self, detail: str | None = None, *, retry_after_s: int = 1, code: str | None = None) -> None:
        super().__init__(detail, code=code, extra={"retry_after_s": retry_after_s})
        self.retry_after_s = retry_after_s


# The codes of `Unavailable` for partitions that may not be read or written to (SPEC ROUTE-9).
NOT_READABLE: Final = "not_readable"
#: Nothing of the request is stored.
NOT_WRITABLE: Final = "not_writable"
#: The code of `Unavailable` where this process may only read the storage; nothing is stored (SPEC RELY-17).
READ_ONLY: Final = "storage_read_only"
#: The code of `Unavailable` where a table has a feature that this release does not know; nothing is stored (META-9).
TABLE_NEWER: Final = "table_newer"

#: Codes of requests that the client did not send, or not to this service.
_NOT_SENT: Final = frozenset(
    {
        "certificate_not_trusted",
        "connect_failed",
        "not_sent",
        "pop_cancelled",
        "producer_closed",
        "token_unavailable",
    }
)


class Unavailable(DeltaMQError):
    """The service cannot answer now; try again."""

    status = 503
    code = "unavailable"
    retry_after_s = 1

    @property
    def outcome(self) -> Outcome:
        """Not known, unless the code says that the request was not sent, or not let in."""
        is_certain = self.code in (NOT_WRITABLE, READ_ONLY, TABLE_NEWER) or self.code in _NOT_SENT
        return "not_stored" if is_certain and not self._may_be_stored else super().outcome


class StorageFull(Unavailable):
    """The disk is full; nothing was stored."""

    status = 507
    code = "storage_full"
    retry_after_s = 5
    _outcome = "not_stored"


class Unknown(DeltaMQError):
    """The outcome is not known; repeat the request with the same producer sequence."""

    status = 503
    code = "outcome_unknown"
    retry_after_s = 1


class Corrupt(DeltaMQError):
    """Stored data contradicts itself; the partition has stopped."""

    code = "corrupt"
