"""Every limit of the system, with its unit and its reason.

A limit that users may change is only the default here; the setting's bounds are its `_MIN` and `_MAX`.
Relations between limits are asserted at the end: a change that breaks one fails at import.
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

# A bearer token: those of identity providers with many groups have a few KiB. The service takes 64 KiB of headers.
TOKEN_BYTES_MAX: Final = 16 * KIB
# Largest answer of an identity provider that a client reads.
TOKEN_ANSWER_BYTES_MAX: Final = 64 * KIB

# Brokers that one request may name: more than a cluster has.
BROKERS_NAMED_MAX: Final = 1_024

# One message (SPEC SEND-6).
MESSAGE_BYTES_MAX: Final = 4 * MIB
KEY_BYTES_MAX: Final = 4 * KIB
TAG_BYTES_MAX: Final = 127
MESSAGE_ID_BYTES_MAX: Final = 255
HEADERS_MAX: Final = 64
HEADER_BYTES_MAX: Final = 1 * KIB

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

# Offsets are Delta `long` columns.
OFFSET_MAX: Final = 2**63 - 1
PRODUCER_SEQ_MAX: Final = 2**62

# Duplicate window of idempotent producers (SPEC SEND-5).
PRODUCER_WINDOW_MS: Final = 24 * 3600 * 1000
PRODUCERS_MAX: Final = 100_000
PRODUCER_REQUESTS_KEPT: Final = 16

# Retention (SPEC RETRY-6).
RETENTION_MS_DEFAULT: Final = 3 * 24 * 3600 * 1000
RETENTION_MS_MIN: Final = 1_000
RETENTION_MS_MAX: Final = 10 * 365 * 24 * 3600 * 1000

assert MESSAGE_BYTES_MAX < REQUEST_BYTES_MAX, "a request must be able to hold the largest message"
assert FETCH_BYTES_MAX > MESSAGE_BYTES_MAX, "one fetch must be able to return the largest message"
assert REQUEST_MESSAGES_MAX <= ARROW_MESSAGES_MAX
assert TOKEN_BYTES_MAX * 2 < HEADER_SECTION_BYTES_MAX, "a token must fit into the headers, beside others"
assert PARTITIONS_MAX <= LOGICAL_PARTITIONS, "a partition without a logical partition would never be written"
