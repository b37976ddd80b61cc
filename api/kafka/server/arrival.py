"""The request whose bytes are awaited: how large it may be, what is reserved for it, and the bytes that have arrived.

    first bytes --announced--> size, call --wait_s--> quota of the caller, room in the service --> begun

A large request is read after that. One that fits into the read-ahead has arrived before: announcing one reserves
nothing. A frame that came in one piece is taken without a copy (`Inbox`).
"""

from __future__ import annotations

from typing import Final, NamedTuple

from deltamq.api.auth.quotas import Meter, Quotas
from deltamq.api.kafka.access.client_meters import ClientMeters
from deltamq.api.kafka.access.session import Session
from deltamq.api.wire.request import Admission, Ticket
from deltamq.mq.backoff import Backoff
from deltamq.mq.errors import Overloaded, TooLarge, Unauthenticated
from deltamq.mq.limits import ADMIN_BYTES_MAX

LENGTH_BYTES: Final = 4
#: A frame's length and its call.
START_BYTES: Final = 6
PRODUCE: Final = 0
FETCH: Final = 1
#: Which way what they carry goes, for the quotas of clients.
_WAYS: Final = {PRODUCE: "bytes in", FETCH: "bytes out"}
#: SaslHandshake, ApiVersions and SaslAuthenticate: calls allowed before authentication.
_BEFORE: Final = (17, 18, 36)
#: Most bytes of such a call.
_BEFORE_BYTES_MAX: Final = 64 * 1024
_AGAIN_S: Final = Backoff(0.005, 0.25)


class Room(NamedTuple):
    """What the service has for requests: the quotas of their callers, and the bytes that it can hold of them."""

    #: Bounds all requests of principals.
    quotas: Quotas
    #: Bounds what clients send and fetch.
    clients: ClientMeters
    #: Bounds appends, of Kafka's clients and REST's together.
    appends: Admission
    #: Bounds the answers to fetches.
    answers: Admission
    #: Bounds all other requests, some of which wait long: appends must not wait for them.
    calls: Admission


class Arrival:
    """One request until it is read."""

    __slots__ = ("_is_metered", "call", "failures", "meter", "size", "ticket")

    def __init__(self, size: int, call: int) -> None:
        #: Bytes behind the length.
        self.size = size
        self.call = call
        #: Measures what the caller uses; None without a quota.
        self.meter: Meter | None = None
        self._is_metered = False
        #: What is reserved; None until there is room.
        self.ticket: Ticket | None = None
        #: How often there was no room for it.
        self.failures = 0

    @classmethod
    def announced(cls, start: bytes, session: Session, request_bytes_max: int) -> Arrival:
        """Return the request that begins with these START_BYTES.

        Raises
        ------
        Unauthenticated
            The client has not authenticated.
        TooLarge
            Its size is out of bounds.
        """
        size = int.from_bytes(start[:LENGTH_BYTES], "big", signed=True)
        call = int.from_bytes(start[LENGTH_BYTES:], "big", signed=True)
        if not session.is_open:
            if call not in _BEFORE:
                raise Unauthenticated(f"call {call} before authentication (SASL)")
            if size > _BEFORE_BYTES_MAX:
                raise TooLarge(f"a request of {size} bytes before authentication (SASL)")
        limit = request_bytes_max if call == PRODUCE else ADMIN_BYTES_MAX
        if size < START_BYTES - LENGTH_BYTES or size > limit:
            raise TooLarge(f"a request of {size} bytes for call {call}; at most {limit} are allowed")
        return cls(size, call)

    def wait_s(self, room: Room, principal: str, client_id: str) -> float:
        """Reserve what the request needs, when the caller's quota allows one more and the service has room.

        `client_id` is that of the connection's last request: the quota is asked before this one has arrived.

        Return 0, or the seconds after which to try again: until then the client's socket fills up.
        """
        if not self._is_metered:
            meter = self._meter_of(room, principal, client_id)
            if meter is not None:
                wait_s = meter.wait_s()
                if wait_s > 0:
                    return wait_s
                meter.asked(self.size)
                self.meter = meter
            self._is_metered = True
        try:
            self.ticket = self._entered(room)
        except Overloaded:
            self.failures += 1
            return _AGAIN_S.after(self.failures)
        return 0.0

    def _meter_of(self, room: Room, principal: str, client_id: str) -> Meter | None:
        way = _WAYS.get(self.call)
        if way is not None:
            return room.clients.meter(way, principal, client_id)
        return room.quotas.meter(principal) if principal and self.call not in _BEFORE else None

    def _entered(self, room: Room) -> Ticket:
        if self.call == PRODUCE:
            return room.appends.enter(self.size)
        return room.answers.enter() if self.call == FETCH else room.calls.enter(self.size)


_NOTHING: Final = b""


class Inbox:
    """The bytes of one connection, in the order of their arrival."""

    __slots__ = ("_at", "_data", "_is_lent")

    def __init__(self) -> None:
        self._data: bytes | bytearray = _NOTHING
        #: The bytes before it were taken.
        self._at = 0
        #: Whether a caller may still hold a view of the data.
        self._is_lent = False

    def __len__(self) -> int:
        return len(self._data) - self._at

    def put(self, data: bytes) -> None:
        """Add bytes that have arrived."""
        if self._at == len(self._data):
            self._data, self._at, self._is_lent = data, 0, False
            return
        if self._is_lent or not isinstance(self._data, bytearray):
            self._data = bytearray(memoryview(self._data)[self._at :])  # a lent one cannot grow
            self._at, self._is_lent = 0, False
        self._data += data

    def first(self, count: int) -> bytes:
        """Return the first bytes, and leave them there."""
        return bytes(self._data[self._at : self._at + count])

    def take(self, count: int) -> memoryview:
        """Return the first bytes, which must be there, and remove them; they do not change any more."""
        assert count <= len(self), "they have arrived"
        at, self._at, self._is_lent = self._at, self._at + count, True
        return memoryview(self._data)[at : at + count]

    def clear(self) -> None:
        """Forget what was not taken."""
        self._data, self._at, self._is_lent = _NOTHING, 0, False
