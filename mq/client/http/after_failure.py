"""The only place that decides what becomes of a request after a failed attempt: retry, failure, unknown outcome.

may an attempt have been applied?      this answer                               next step
-------------------------------------  ----------------------------------------  -----------------------------
no                                     404 topic or partition                    REROUTE   nothing was stored
no                                     refused, several calls in the batch       SPLIT     one of them is to blame
no                                     refused or conflict                       FAIL
no                                     trouble, nothing left to try              FAIL      certainly not stored
any                                    trouble, may try again                    RETRY     same bytes, same sequence
yes                                    refused for what its messages say         FAIL      it was refused every time
yes                                    anything else                             UNKNOWN   never called a failure
"""

from __future__ import annotations

import enum
from typing import Final

from deltamq.mq.client.http.bearer_token import TOKEN_UNAVAILABLE
from deltamq.mq.client.http.endpoint import CONNECT_FAILED, NOT_TRUSTED
from deltamq.mq.client.http.retries import is_worth_retrying
from deltamq.mq.errors import (
    NOT_WRITABLE,
    Conflict,
    DeltaMQError,
    Forbidden,
    NotFound,
    Overloaded,
    Refused,
    StorageFull,
    TooLarge,
    Unauthenticated,
)

_WRONG_ROUTE: Final = frozenset({"partition_not_found", "topic_not_found"})
#: Refusals that depend on the service's state, not on the request: an earlier attempt may have met another state.
_OF_THE_MOMENT: Final = (NotFound, Unauthenticated, Forbidden)
#: Refusals of a whole request by its size, by the service and by proxies, which give no code. The limit is a setting,
#: and comes first: a request over it is refused although it is stored.
REQUEST_SIZE: Final = frozenset({"request_too_large", TooLarge.code})
#: The status of a proxy that did not get the whole request in time.
TIMED_OUT: Final = 408


class AfterFailure(enum.Enum):
    """What to do with a batch after a failed attempt."""

    RETRY = "retry"  #: send the same bytes again
    REROUTE = "reroute"  #: get the route again and send to where it says
    SPLIT = "split"  #: send the calls of the batch one by one
    FAIL = "fail"  #: tell the caller that it was not stored
    UNKNOWN = "unknown"  #: tell the caller that the outcome is not known


def certainly_not_applied(error: DeltaMQError) -> bool:
    """Return whether this attempt certainly stored nothing. After a 5xx or a broken connection it may have (API)."""
    if isinstance(error, (Refused, Conflict, Overloaded, StorageFull)):
        return True
    return error.code in (CONNECT_FAILED, NOT_TRUSTED, NOT_WRITABLE, TOKEN_UNAVAILABLE)


def judge(error: DeltaMQError, *, uncertain: bool, calls: int, may_go_on: bool) -> AfterFailure:
    """Decide on a batch of `calls` calls after `error`.

    `uncertain` says that this or an earlier attempt may have been applied; `may_go_on` that tries and time are left.
    """
    if is_worth_retrying(error):
        if may_go_on:
            return AfterFailure.RETRY
        return AfterFailure.UNKNOWN if uncertain else AfterFailure.FAIL
    if uncertain:
        return AfterFailure.FAIL if _was_refused_every_time(error) else AfterFailure.UNKNOWN
    if isinstance(error, NotFound) and error.code in _WRONG_ROUTE:
        return AfterFailure.REROUTE
    return AfterFailure.SPLIT if calls > 1 else AfterFailure.FAIL


def _was_refused_every_time(error: DeltaMQError) -> bool:
    """Return whether an earlier attempt was refused, too, because that depends on the request alone."""
    if not isinstance(error, Refused) or isinstance(error, _OF_THE_MOMENT):
        return False
    return error.code not in REQUEST_SIZE and error.status != TIMED_OUT
