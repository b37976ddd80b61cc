"""Every limit of leases, authorizations, pull locks and ordered consumption, with its unit and its reason.

Each duration is counted by the process that uses it, on its own monotonic clock; none compares clocks of two processes.
Who may act counts from before it asked and stops early by a margin; who waits for another to stop counts from after
it saw that one's last sign of life. So a duration may not be counted shorter by one than by another: clocks may run
at rates that differ by the margin's share of it (3 % at least). Relations are asserted at the end.
"""

from __future__ import annotations

from typing import Final

_SECOND: Final = 1_000

# Leases of service processes (SPEC META-1).
LEASE_MS_DEFAULT: Final = 10 * _SECOND
# Three renewals may fail before the lease is over.
LEASE_RENEW_MS: Final = 3 * _SECOND
# An owner stops so long before the others may take over: clocks that drift, and its longest commit (RELIABILITY R6).
LEASE_MARGIN_MS: Final = 1 * _SECOND

# Exclusive clients (SPEC ORDER-3). Longer than a lease, so that clients go on while the meta role moves.
AUTHORIZATION_MS_DEFAULT: Final = 30 * _SECOND
AUTHORIZATION_MARGIN_MS: Final = 1 * _SECOND
HEARTBEAT_MS: Final = 5 * _SECOND
# Clients of one exclusive group: more than any topic has partitions.
CLIENTS_MAX: Final = 10_000
# Topics that one client may ask for.
SUBSCRIPTIONS_MAX: Final = 1_000

# Pull locks (SPEC ORDER-4). The rule asks for a renewal every 20 s at least. Twice as often, a client whose broker is
# taken over in the middle renews at the new one before it must call the lock lost.
PULL_LOCK_MS: Final = 60 * _SECOND
PULL_LOCK_RENEW_MS: Final = 10 * _SECOND
# A client that did not get an answer for so long, counted from its last request that got one, has lost the lock.
PULL_LOCK_LOST_MS: Final = 25 * _SECOND
# A broker that was taken over gives a contested partition so late: by then who held its lock has claimed or lost it.
PULL_LOCK_SETTLE_MS: Final = 26 * _SECOND

# A suspended run (SPEC ORDER-7).
SUSPEND_MS_DEFAULT: Final = 1 * _SECOND
SUSPEND_MS_MIN: Final = 10
SUSPEND_MS_MAX: Final = 30 * _SECOND
# After so long in one partition others get a turn (SPEC ORDER-9).
RUN_MS_MAX: Final = 60 * _SECOND

# `consistent_hash`: points of each client on the ring. More even it out and cost time at each change.
RING_POINTS: Final = 64
# Nobody holds more than this share of the mean, rounded up: what a plain ring leaves to chance (R89: 4/0/5/1).
RING_LOAD_PERCENT_MAX: Final = 125

assert 3 * LEASE_RENEW_MS < LEASE_MS_DEFAULT
assert LEASE_RENEW_MS + 2 * LEASE_MARGIN_MS < LEASE_MS_DEFAULT
assert LEASE_MS_DEFAULT + 2 * HEARTBEAT_MS < AUTHORIZATION_MS_DEFAULT, "clients outlive a move of the meta role"
assert LEASE_MS_DEFAULT + PULL_LOCK_RENEW_MS < PULL_LOCK_LOST_MS < PULL_LOCK_SETTLE_MS < PULL_LOCK_MS
assert PULL_LOCK_SETTLE_MS < AUTHORIZATION_MS_DEFAULT, "a partition has an owner again within lease and authorization"
assert SUSPEND_MS_MIN <= SUSPEND_MS_DEFAULT <= SUSPEND_MS_MAX < RUN_MS_MAX
