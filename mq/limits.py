"""Limits with units and reasons: the log, the queue, exclusive groups, access, the audit; schemas have their own.

A limit that users may change is only the default here; the setting's bounds are its `_MIN` and `_MAX`. Relations
between limits are asserted at the end of each part: a change that breaks one fails at import.

Each process counts a duration on its own monotonic clock; clocks of two processes are never compared. A process that
may act counts from before its request and stops early by a margin. A process that waits for another to stop counts from
after it saw the other's last sign of life. So the first one stops in time even if the rates of the clocks differ by the
margin's share of the duration (3 % at least).
"""

from __future__ import annotations

from typing import Final

KIB: Final = 1024
MIB: Final = 1024 * KIB

# Names (SPEC MODEL-5, RocketMQ's rule).
NAME_LENGTH_MAX: Final = 127
#: As in Kafka.
TOPIC_LENGTH_MAX: Final = 249
#: Kafka's clients call groups what they like.
GROUP_LENGTH_MAX: Final = 255
# File systems allow 255 bytes; a partition's folder is two of these, an `@` and a generation.
FOLDER_LENGTH_MAX: Final = 120
# A client's or producer's id is stored with each of its messages, so it must be short.
PRODUCER_ID_LENGTH_MAX: Final = 127
# A topic's message type is a word that lists show.
MESSAGE_TYPE_LENGTH_MAX: Final = 64

# A bearer token (one that names many groups has a few KiB), and what a client reads of an identity provider's answer.
TOKEN_BYTES_MAX: Final = 16 * KIB
TOKEN_ANSWER_BYTES_MAX: Final = 64 * KIB

# Brokers that one request may name: more than a cluster has.
BROKERS_NAMED_MAX: Final = 1_024

# One message (SPEC SEND-6). Kafka's clients may send larger bodies to a topic that says so (SPEC KAFKA-26).
MESSAGE_BYTES_MAX: Final = 4 * MIB
LARGE_MESSAGE_BYTES_MAX: Final = 16 * MIB
KEY_BYTES_MAX: Final = 256 * KIB
# A key in a URL.
ASKED_KEY_BYTES_MAX: Final = 4 * KIB
TAG_BYTES_MAX: Final = 127
# Keys that one request erases.
ERASED_KEYS_MAX: Final = 1_000
MESSAGE_ID_BYTES_MAX: Final = 255
# Frameworks put the text of an error with its stack into a header of a dead letter.
HEADERS_MAX: Final = 512
HEADER_BYTES_MAX: Final = 32 * KIB

# One produce request. JSON costs a Python object for each message, Arrow does not, so each has its own limit.
REQUEST_BYTES_MAX: Final = 64 * MIB
REQUEST_MESSAGES_MAX: Final = 100_000
ARROW_MESSAGES_MAX: Final = 1_000_000
# Each record batch of a request costs Python time, however few rows it has.
ARROW_BATCHES_MAX: Final = 4_096
JSON_DEPTH_MAX: Final = 32
# One request's path, header names and header values together, and the number of its headers: each costs an object.
HEADER_SECTION_BYTES_MAX: Final = 64 * KIB
HEADER_LINES_MAX: Final = 128
# A client that takes an answer more slowly than this, or stops taking it, holds memory that others need: it is cut off.
ANSWER_BYTES_S_MIN: Final = 16 * KIB
# Largest body of a call that changes settings; real ones are far smaller.
ADMIN_BYTES_MAX: Final = 1 * MIB
# Stays of all queues of a global topic together: clusters send each other all of them in one body (SPEC STATIC-19).
GLOBAL_STAYS_MAX: Final = 6_000

# One commit of the service. Requests beyond this wait for the next commit, which bounds the time of each commit.
COMMIT_BYTES_MAX: Final = 64 * MIB
COMMIT_MESSAGES_MAX: Final = 1_000_000
# How long a message may wait for others that share its commit (SPEC SEND-14).
COMMIT_WINDOW_MS_MAX: Final = 60_000

# SPEC RETRY-4: a delayed message waits at most 40 days.
DELAY_MS_MAX: Final = 40 * 24 * 3600 * 1000
# A time outside these bounds means that the client used the wrong unit (seconds for milliseconds, or the reverse).
TIME_US_MIN: Final = 0
TIME_US_MAX: Final = 4_102_444_800_000_000  # 2100-01-01

# Routes (SPEC ROUTE-4).
LOGICAL_PARTITIONS: Final = 1024
PARTITIONS_MAX: Final = 1024

# One fetch.
FETCH_MESSAGES_MAX: Final = 1_000_000
FETCH_BYTES_MAX: Final = 64 * MIB
FETCH_MESSAGES_DEFAULT: Final = 1_000
FETCH_BYTES_DEFAULT: Final = 1 * MIB
# A long poll occupies a connection, so its length is bounded.
WAIT_MS_MAX: Final = 20_000
TAG_FILTER_TAGS_MAX: Final = 64

# One SQL filter (SPEC CONS-9). It stands in the URL of a fetch, and its parser calls itself for each parenthesis, NOT
# and minus sign. Each term (a value outside of IN's list, or a pattern) costs a pass over all messages looked at.
FILTER_CHARS_MAX: Final = 4_096
FILTER_DEPTH_MAX: Final = 32
FILTER_TERMS_MAX: Final = 128

# Offsets are Delta `long` columns. In JSON no number is greater than JavaScript holds, but for `producer_seq`: nothing
# else gets there.
OFFSET_MAX: Final = 2**63 - 1
JSON_INTEGER_MAX: Final = 2**53 - 1
PRODUCER_SEQ_MAX: Final = 2**62

# Duplicate window of idempotent producers (SPEC SEND-5).
PRODUCER_WINDOW_MS: Final = 24 * 3600 * 1000
PRODUCERS_MAX: Final = 100_000
PRODUCER_REQUESTS_KEPT: Final = 16

# Retention (SPEC RETRY-6).
RETENTION_MS_DEFAULT: Final = 3 * 24 * 3600 * 1000
RETENTION_MS_MIN: Final = 1_000
RETENTION_MS_MAX: Final = 10 * 365 * 24 * 3600 * 1000

_LARGEST: Final = LARGE_MESSAGE_BYTES_MAX + KEY_BYTES_MAX + HEADERS_MAX * HEADER_BYTES_MAX
assert _LARGEST < REQUEST_BYTES_MAX, "a request must be able to hold the largest message"
assert _LARGEST < FETCH_BYTES_MAX, "one fetch must be able to return the largest message"
assert _LARGEST < COMMIT_BYTES_MAX, "one commit must be able to hold the largest message"
assert REQUEST_MESSAGES_MAX <= ARROW_MESSAGES_MAX
assert TOKEN_BYTES_MAX * 2 < HEADER_SECTION_BYTES_MAX, "a token must fit into the headers, beside others"
assert PARTITIONS_MAX <= LOGICAL_PARTITIONS, "a partition without a logical partition would never be written"


# --- Groups, POP, retries and delays ----------------------------------------------------------------------------------
_SECOND: Final = 1_000
_MINUTE: Final = 60 * _SECOND
_HOUR: Final = 60 * _MINUTE

# Invisible times (SPEC POP-3). The bounds apply to users' requests; a service may be configured with other bounds.
INVISIBLE_MS_DEFAULT: Final = 60 * _SECOND
INVISIBLE_MS_MIN: Final = 10 * _SECOND
INVISIBLE_MS_MAX: Final = 12 * _HOUR
# The longest invisible time that a handle and a record can hold: 32 bits of milliseconds are 49 days.
INVISIBLE_MS_CEILING: Final = DELAY_MS_MAX

# One pop (SPEC POP-1). A checkpoint's bit map is 32 bits wide, as RocketMQ's is.
POP_MESSAGES_MAX: Final = 1_024
CHECKPOINT_MESSAGES_MAX: Final = 32
# Handles in one call: enough for several pops of the largest size.
HANDLES_MAX: Final = 4_096
# A handle holds two names and, for a filtered pop, 32 offsets and attempts.
HANDLE_CHARS_MAX: Final = 2_048

# The id of a pop that may be repeated (SPEC POP-20): a UUID with room for a prefix. Memory has it for each message in
# flight.
ATTEMPT_ID_LENGTH_MAX: Final = 64

# The revive log (SPEC POP-6): the number of queues, used in turn, and the queue number that ordered pops have instead.
REVIVE_QUEUES: Final = 8
ORDERED_REVIVE_QUEUE: Final = 999
# Time by which the record of a checkpoint is due before the records of its acknowledgements, so that it is there when
# they are matched.
CHECKPOINT_LEAD_MS: Final = 1 * _SECOND
# Time after the revive time in which an ack that was accepted just before it may still be appended. The revive job
# looks at a checkpoint only after that time; the service answers that an ack has expired if storing it took longer.
ACK_SETTLE_MS: Final = 300
# The most by which the job's clock may be ahead of the service's without making a confirmed acknowledgement void.
CLOCKS_APART_MS: Final = 10 * _SECOND

# The in-memory match (SPEC POP-13): how long a checkpoint stays, how long before it is due it must leave, the remaining
# time below which it is stored at once, and the most checkpoints of a broker and of a partition.
STAY_BUFFER_MS: Final = 10 * _SECOND
STAY_BUFFER_TIMEOUT_MS: Final = 3 * _SECOND
STRAIGHT_TO_LOG_MS: Final = STAY_BUFFER_TIMEOUT_MS + 1_500
BUFFER_CHECKPOINTS_MAX: Final = 200_000
PARTITION_CHECKPOINTS_MAX: Final = 20_000
# Width of the buckets in which memory keeps due times: the most by which a checkpoint is handled late.
BUCKET_MS: Final = 100

# Retries (SPEC RETRY-2). A wait is an invisible time, so it has the same upper bound.
MAX_ATTEMPTS_DEFAULT: Final = 17
MAX_ATTEMPTS_MAX: Final = 10_000
RETRY_WAITS_MAX: Final = 64
RETRY_WAIT_MS_MAX: Final = INVISIBLE_MS_MAX
# A reason is shown in tables and sent in headers.
REASON_LENGTH_MAX: Final = 255

# How often a pop or fetch that waits looks whether its group is still paused (SPEC CONS-12), in seconds.
PAUSED_LOOK_S: Final = 0.5

# Time after which a pop that still reads loses its lane to a waiting pop (SPEC POP-2): far more than a read takes, and
# less than clients wait. It doubles each time, so that a slow read gets through and a hanging one holds few threads.
LANE_BUSY_MS: Final = 15 * _SECOND

# Ordered pops: the most offsets of one partition that are known and not done. At this limit, nothing new is popped.
ORDERED_OUTSTANDING_MAX: Final = 10_000

# The metadata text of a committed offset (SPEC KAFKA-13): Kafka's `offset.metadata.max.bytes`.
COMMIT_METADATA_BYTES_MAX: Final = 4_096

# Messages that one pass of the delay or revive job appends to one partition before it marks them done. All that a kill
# leaves unmarked must still be in the duplicate window of that partition.
JOB_BATCH_MESSAGES_MAX: Final = 50_000

assert INVISIBLE_MS_MIN <= INVISIBLE_MS_DEFAULT <= INVISIBLE_MS_MAX <= INVISIBLE_MS_CEILING < 2**32
assert STAY_BUFFER_TIMEOUT_MS > CHECKPOINT_LEAD_MS + ACK_SETTLE_MS, "a checkpoint must be stored before it is due"
assert STAY_BUFFER_TIMEOUT_MS < STRAIGHT_TO_LOG_MS, "a checkpoint that enters memory must be able to stay for a while"
assert BUCKET_MS < STRAIGHT_TO_LOG_MS - STAY_BUFFER_TIMEOUT_MS
assert PARTITION_CHECKPOINTS_MAX <= BUFFER_CHECKPOINTS_MAX
assert POP_MESSAGES_MAX <= HANDLES_MAX, "a pop can be acknowledged in one call"
assert POP_MESSAGES_MAX % CHECKPOINT_MESSAGES_MAX == 0
assert JOB_BATCH_MESSAGES_MAX <= PRODUCERS_MAX, "each message may have its own producer"
assert PRODUCER_REQUESTS_KEPT > 1


# --- Leases, authorizations, pull locks and ordered consumption -------------------------------------------------------
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


# --- Keys, principals and access rules: all of it is in the metadata of every process, and in each snapshot -----------
PRINCIPAL_LENGTH_MAX: Final = 127
NOTE_LENGTH_MAX: Final = 256
PRINCIPALS_MAX: Final = 10_000
# Rounds of the slow hash of a password: Kafka's bound. Bytes of its salt: Kafka's clients make about 30.
PASSWORD_ITERATIONS_MAX: Final = 16_384
PASSWORD_SALT_BYTES_MAX: Final = 1_024
# A second key is there while callers change from the first to it.
KEYS_LIVE_MAX: Final = 2
# A principal's access is found in its own rules; more than this is a missing prefix pattern.
RULES_OF_PRINCIPAL_MAX: Final = 1_000
RULES_MAX: Final = 50_000

# Random bytes of a key's secret, and of its id, which only has to be unique.
SECRET_BYTES: Final = 32
KEY_ID_BYTES: Final = 8
# As many characters of text as a secret of 128 random bits has in hexadecimal digits.
CLUSTER_SECRET_LENGTH_MIN: Final = 32
# As long as the SDK's longest token, with its scheme; a longer header is refused unread.
AUTHORIZATION_BYTES_MAX: Final = 16 * 1024 + 16

# How far the clocks of the identity provider and of a process may be apart.
TOKEN_SKEW_MS: Final = 60_000
# Providers leave groups out beyond a few hundred; all of these are compared with rules.
TOKEN_GROUPS_MAX: Final = 1_000
# The keys of a provider: most have two to ten, each of at most a few KiB.
JWKS_BYTES_MAX: Final = 256 * 1024
JWKS_KEYS_MAX: Final = 100
# A shorter key can be broken, a longer one makes each check slow.
RSA_BITS_MIN: Final = 2_048
RSA_BITS_MAX: Final = 8_192
# Requests that may wait at once until the provider's keys were read; further ones are refused.
KEY_WAITERS_MAX: Final = 1_000

# A quota a second: an exabyte is no bound any more, and still a whole number in every language's JSON.
QUOTA_MAX: Final = 2**50
# Quotas of Kafka's clients, and characters of a client's id in one: each process looks them up by name.
CLIENT_QUOTAS_MAX: Final = 1_000
CLIENT_ID_LENGTH_MAX: Final = 255
# Clients whose shares of a quota a process remembers; they choose their ids.
CLIENT_METERS_MAX: Final = 10_000
# Decisions that a process remembers; each is about 300 bytes. Requests are remembered only if their path is short,
# since callers choose it; credentials only if they are valid, since a token has one to a few KiB.
DECISIONS_CACHED_MAX: Final = 50_000
REMEMBERED_BYTES_MAX: Final = 1_024
CREDENTIALS_BYTES_MAX: Final = 32 * 1024 * 1024

assert RULES_OF_PRINCIPAL_MAX <= RULES_MAX


# --- The audit --------------------------------------------------------------------------------------------------------
#: Random bytes of the id of an act, or of a row of refusals.
ACT_ID_BYTES: Final = 8
#: Bytes of JSON of what was asked, and of the state before and after an act; more is recorded as its size.
SHOWN_BYTES_MAX: Final = 64 * 1024
#: Characters of the detail of a refusal.
DETAIL_LENGTH_MAX: Final = 512
#: Resources of one act whose state is recorded; an act has one, seldom two.
RESOURCES_MAX: Final = 4
#: Rows of refusals that a process counts apart, minutes that are not stored yet included. What is beyond is counted
#: without principal and call.
REFUSALS_COUNTED_MAX: Final = 1_000
#: Minutes of refusals that are kept while they cannot be stored.
REFUSAL_MINUTES_MAX: Final = 60
#: Ends of acts that could not be stored and are tried again; acts are refused while there are as many.
ENDS_WAITING_MAX: Final = 1_000
#: Acts in one answer, by default and at most, and rows that are read beyond the last of them for their ends.
ACTS_DEFAULT: Final = 100
ACTS_MAX: Final = 1_000
ENDS_LOOKED_MAX: Final = 20_000
