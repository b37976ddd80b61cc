"""What a relay does with the rows of a request, decided from its outcome (SPEC SEND-7).

    outcome                                            step
    -------------------------------------------------- --------------------------------------------------------------
    stored, now or by an earlier attempt               STORED      its rows are deleted
    the service is away, busy, does not know           REPEAT      the very same request, after a growing wait
    the relay's token is wrong                         REPEAT      no message is to blame
    the topic or the named partition does not exist    SET_ASIDE   all its rows, which share both
    refused, several messages                          DIVIDE      nothing was stored: fewer messages, until one is left
    refused, one message                               SET_ASIDE
    may be stored, and can no longer be recognised     SET_ASIDE   only a person can decide whether to send it again

If an earlier attempt may have been applied, a refusal means this only if that attempt would have met it, too
(`after_unknown`). Fewer messages are another request, with another name: what is stored would be stored once more.
"""

from __future__ import annotations

import enum
from typing import Final

from deltamq.mq.client.http.retries import REQUEST_SIZE, TIMED_OUT
from deltamq.mq.client.outbox.ledger import OUTCOME_UNKNOWN
from deltamq.mq.errors import DeltaMQError, Forbidden, NotFound, Refused, Unauthenticated, Unknown
from deltamq.mq.limits import PRODUCER_WINDOW_MS

#: How long after its first attempt a request is repeated: an hour less than the service remembers it, for clocks that
#: do not agree.
REPEATABLE_MS: Final = PRODUCER_WINDOW_MS - 3600 * 1000

_NOWHERE: Final = frozenset({"topic_not_found", "partition_not_found", "physical_partition"})
_FORGOTTEN: Final = "producer_sequence_out_of_order"


class NextStep(enum.Enum):
    """What to do with the rows of a request."""

    STORED = "stored"
    REPEAT = "repeat"
    DIVIDE = "divide"
    SET_ASIDE = "set aside"


def step_after(error: DeltaMQError | None, rows: int) -> NextStep:
    """Return what to do with `rows` rows after `error`, or after success."""
    if error is None:
        return NextStep.STORED
    if error.code in _NOWHERE or error.code in (_FORGOTTEN, OUTCOME_UNKNOWN):
        return NextStep.SET_ASIDE
    if isinstance(error, Refused) and not isinstance(error, (Unauthenticated, Forbidden)):
        return NextStep.SET_ASIDE if rows == 1 else NextStep.DIVIDE
    return NextStep.REPEAT


def after_unknown(error: DeltaMQError) -> DeltaMQError:
    """Return what `error` proves about a request of which an earlier attempt may be stored.

    What the service refuses by rules that do not change was refused every time. A limit may have been lowered since:
    then the outcome stays unknown. A refusal by a proxy, which does not know the request, says nothing.
    """
    if error.code in REQUEST_SIZE:
        return Unknown(
            f"an earlier attempt may be stored, and now: {error.detail}; look for the message_id in the topic before "
            "it is sent again",
            code=OUTCOME_UNKNOWN,
        )
    is_of_the_moment = isinstance(error, NotFound) or error.status == TIMED_OUT
    if is_of_the_moment and error.code not in _NOWHERE:
        return Unknown(error.detail, code=error.code)
    return error


def too_late(first_attempt_ms: int, now_ms: int) -> Unknown | None:
    """Return the error of a request that may be stored, but that the service would no longer recognise; else None."""
    if now_ms - first_attempt_ms < REPEATABLE_MS:
        return None
    return Unknown(
        f"sent more than {REPEATABLE_MS // 3_600_000} hours ago without an answer: it may be stored; look for its "
        "message_id in the topic before it is sent again",
        code=OUTCOME_UNKNOWN,
    )
