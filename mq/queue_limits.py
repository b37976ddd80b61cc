"""Every limit of groups, POP, retries and delays, with its unit and its reason; `mq.limits` has those of the log.

For a limit that users may change, this is only the default. Relations between limits are asserted at the end.
"""

from __future__ import annotations

from typing import Final

from deltamq.mq.limits import DELAY_MS_MAX, PRODUCER_REQUESTS_KEPT, PRODUCERS_MAX

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
