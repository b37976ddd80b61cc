"""Every limit of leases, authorizations, pull locks and ordered consumption, with its unit and its reason.

Each process counts a duration on its own monotonic clock; clocks of two processes are never compared. A process that
may act counts from before its request and stops early by a margin. A process that waits for another to stop counts from
after it saw the other's last sign of life. So the first one stops in time even if the rates of the clocks differ by the
margin's share of the duration (3 % at least). Relations between limits are asserted at the end.
"""

from __future__ import annotations

from typing import Final

_SECOND: Final = 1_000

# Leases of service processes (SPEC META-1).
LEASE_MS_DEFAULT: Final = 10 * _SECOND
# Interval of renewals: three of them fit into a lease.
LEASE_RENEW_MS: Final = 3 * _SECOND
# An owner stops this long before others may take over, to cover clock drift and its longest commit (SPEC RELY-6).
LEASE_MARGIN_MS: Final = 1 * _SECOND

# Authorizations of exclusive clients (SPEC ORDER-3): longer than a lease, so that clients go on while the meta role
# moves.
AUTHORIZATION_MS_DEFAULT: Final = 30 * _SECOND
AUTHORIZATION_MARGIN_MS: Final = 1 * _SECOND
HEARTBEAT_MS: Final = 5 * _SECOND
# Clients of one exclusive group: more than any topic can have partitions.
CLIENTS_MAX: Final = 10_000
# Topics that one client may ask for.
SUBSCRIPTIONS_MAX: Final = 1_000

# Pull locks (SPEC ORDER-4). The rule asks for a renewal every 20 s at least. Clients renew twice as often, so a client
# whose broker is taken over can renew at the new one before it must regard the lock as lost.
PULL_LOCK_MS: Final = 60 * _SECOND
PULL_LOCK_RENEW_MS: Final = 10 * _SECOND
# A client regards its lock as lost this long after it sent the last request that was answered.
PULL_LOCK_LOST_MS: Final = 25 * _SECOND
# A broker that was taken over grants a contested lock only after this time: by then the previous holder has claimed or
# lost it.
PULL_LOCK_SETTLE_MS: Final = 26 * _SECOND

# A suspended run (SPEC ORDER-7).
SUSPEND_MS_DEFAULT: Final = 1 * _SECOND
SUSPEND_MS_MIN: Final = 10
SUSPEND_MS_MAX: Final = 30 * _SECOND
# Keys in parallel (SPEC ORDER-11): how many messages, from the lowest unfinished one on, may be done or heard; most of
# them are heard again after a crash. A default fetch is as long.
AHEAD_MESSAGES_DEFAULT: Final = 1_000
AHEAD_MESSAGES_MAX: Final = 100_000
# Longest turn of one partition before others get one (SPEC ORDER-9).
RUN_MS_MAX: Final = 60 * _SECOND

# `consistent_hash`: points of each client on the ring. More points make shares more even and changes slower.
RING_POINTS: Final = 64
# No client holds more than this share of the mean, rounded up. A plain ring leaves it to chance: RocketMQ's gives four
# clients 4, 0, 5 and 1 of ten partitions.
RING_LOAD_PERCENT_MAX: Final = 125

assert 3 * LEASE_RENEW_MS < LEASE_MS_DEFAULT
assert LEASE_RENEW_MS + 2 * LEASE_MARGIN_MS < LEASE_MS_DEFAULT
assert LEASE_MS_DEFAULT + 2 * HEARTBEAT_MS < AUTHORIZATION_MS_DEFAULT, "authorizations outlast a move of the meta role"
assert LEASE_MS_DEFAULT + PULL_LOCK_RENEW_MS < PULL_LOCK_LOST_MS < PULL_LOCK_SETTLE_MS < PULL_LOCK_MS
assert PULL_LOCK_SETTLE_MS < AUTHORIZATION_MS_DEFAULT, "a partition has an owner again within lease and authorization"
assert SUSPEND_MS_MIN <= SUSPEND_MS_DEFAULT <= SUSPEND_MS_MAX < RUN_MS_MAX
