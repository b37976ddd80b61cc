"""What a service is given beside its settings: its clocks, its store, and bounds that are no settings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from mq.limits import FETCH_BYTES_MAX
from mq.order_limits import CLIENTS_MAX
from mq.queue_limits import LANE_BUSY_MS
from tables.clock import SYSTEM_CLOCK, Clock
from tables.store import Store

__all__ = ["REAL", "Ports"]

#: A client that has begun a request sends its headers within this time, or is cut off.
_HEADER_SECTION_S: Final = 20.0
#: So many topics and groups of a counter have series of their own.
_SERIES_MAX: Final = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class Ports:
    """Where the world ends and the service begins. Tests give others."""

    #: What messages and records are stamped with, and what the times of the queue are told by.
    clock: Clock = SYSTEM_CLOCK
    #: What leases, authorizations and pull locks are told by: real time, also where another clock stamps messages.
    lease_clock: Clock = SYSTEM_CLOCK
    #: Where the tables are; None for what the warehouse's URI names.
    store: Store | None = None
    #: Clients of one exclusive group.
    clients_max: int = CLIENTS_MAX
    #: Bytes of one pop's answer; one message at least.
    pop_bytes_max: int = FETCH_BYTES_MAX
    #: How long a pop that others wait behind may be at work in a lane.
    lane_busy_ms: int = LANE_BUSY_MS
    series_max: int = _SERIES_MAX
    header_section_s: float = _HEADER_SECTION_S


#: Those of a process that serves.
REAL: Final = Ports()
