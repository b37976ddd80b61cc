"""The inputs of a service besides its settings: its clocks, its store, and bounds that are not settings."""

from __future__ import annotations

from typing import Final

import msgspec

from deltamq.api.auth.credentials import KeyTimes
from deltamq.mq.limits import CLIENTS_MAX, FETCH_BYTES_MAX, LANE_BUSY_MS
from deltamq.tables.clock import SYSTEM_CLOCK, Clock
from deltamq.tables.store.store import Store

#: Time within which a client must send a request's headers, in seconds; then the connection is closed.
_HEADER_SECTION_S: Final = 20.0
#: Interval at which a client that reads an answer slowly is checked, in seconds.
_ANSWER_LOOK_S: Final = 30.0
#: Number of topics or groups that have a series of their own in each metric.
_SERIES_MAX: Final = 300


class Ports(msgspec.Struct, frozen=True, kw_only=True):
    """The service's view of the outside world. Tests replace it."""

    #: The clock for the times of messages and records, and for the queue's due times.
    clock: Clock = SYSTEM_CLOCK
    #: The clock for leases, authorizations and pull locks: real time even when a test replaces `clock`.
    lease_clock: Clock = SYSTEM_CLOCK
    #: Where the tables are; None for the store that the warehouse's URI names.
    store: Store | None = None
    #: Maximum number of clients of one exclusive group.
    clients_max: int = CLIENTS_MAX
    #: Maximum bytes of one pop's answer, which has one message at least.
    pop_bytes_max: int = FETCH_BYTES_MAX
    #: How long a pop may be at work in a lane when other pops wait for that lane, in milliseconds.
    lane_busy_ms: int = LANE_BUSY_MS
    series_max: int = _SERIES_MAX
    header_section_s: float = _HEADER_SECTION_S
    answer_look_s: float = _ANSWER_LOOK_S
    #: Times of the keys of the identity provider.
    key_times: KeyTimes = msgspec.field(default_factory=KeyTimes)


#: The ports of a serving process.
REAL: Final = Ports()
