"""Calls about users, which are the principals of the service: shown here, and changed by `deltamq auth` (KAFKA-22).

A key is random, and made by the service; Kafka's call would let a client choose a password. Quotas belong to
principals, not to pairs of users and clients.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator

from deltamq.api.host.hosted_meta import HostedMeta
from deltamq.api.kafka.access.needs import Asker
from deltamq.api.kafka.messages.errors import ErrorCode, error_code_of
from deltamq.api.kafka.messages.user_messages import (
    SCRAM_MECHANISMS,
    AlterClientQuotasRequest,
    AlterClientQuotasResponse,
    AlteredQuota,
    AlteredUser,
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
    DescribedUser,
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
    UserCredential,
)
from deltamq.mq.errors import Conflict, DeltaMQError

_KEYS = "keys are made, and revoked, by the service: `deltamq auth key`"
_QUOTAS = "quotas belong to principals: `deltamq auth quota`"


class Users:
    """The calls about users; used on the event loop."""

    def __init__(self, meta: HostedMeta, now_ms: Callable[[], int]) -> None:
        self._meta = meta
        self._now_ms = now_ms

    def credentials(
        self, request: DescribeUserScramCredentialsRequest, asker: Asker
    ) -> DescribeUserScramCredentialsResponse:
        """Return by which SCRAM mechanisms principals can prove their keys; without names, of all that can."""
        try:
            asker.check(DescribeUserScramCredentialsRequest)
        except DeltaMQError as error:
            code, detail = error_code_of(error), error.detail
            return DescribeUserScramCredentialsResponse(error_code=code, error_message=detail, results=[])
        if request.users:
            counts = Counter(user.name for user in request.users)
            results = [self._described(name, count) for name, count in counts.items()]
        else:
            every = (self._described(name, 1) for name in sorted(self._meta.now.auth.principals))
            results = [user for user in every if user.credentials]
        return DescribeUserScramCredentialsResponse(results=results)

    def _described(self, name: str, count: int) -> DescribedUser:
        if count > 1:
            return DescribedUser(name, ErrorCode.DUPLICATE_RESOURCE, "each user may be in the request once", [])
        credentials = list(self._credentials(name))
        if not credentials:
            detail = f"there is no principal {name} with a key that SCRAM can prove"
            return DescribedUser(name, ErrorCode.RESOURCE_NOT_FOUND, detail, [])
        return DescribedUser(name, ErrorCode.NONE, None, credentials)

    def _credentials(self, name: str) -> Iterator[UserCredential]:
        auth, now_ms = self._meta.now.auth, self._now_ms()
        keys = [key for key in auth.keys_of(name) if key.is_live(now_ms)] if name in auth.principals else []
        for number, mechanism in SCRAM_MECHANISMS.items():
            kept = next((scram for key in keys if (scram := key.scram_for(mechanism)) is not None), None)
            if kept is not None:
                yield UserCredential(number, kept.iterations)

    def alter_credentials(
        self, request: AlterUserScramCredentialsRequest, asker: Asker
    ) -> AlterUserScramCredentialsResponse:
        """Refuse to take a password, and to revoke a key that the call could not name."""
        names = dict.fromkeys(
            [*(change.name for change in request.deletions), *(change.name for change in request.upsertions)]
        )
        try:
            asker.check(AlterUserScramCredentialsRequest)
            raise Conflict(_KEYS, code="not_by_kafka")
        except DeltaMQError as error:
            code, detail = error_code_of(error), error.detail
            return AlterUserScramCredentialsResponse(results=[AlteredUser(name, code, detail) for name in names])

    def quotas(self, request: DescribeClientQuotasRequest, asker: Asker) -> DescribeClientQuotasResponse:
        """Return that no quota was set by Kafka's calls."""
        try:
            asker.check(DescribeClientQuotasRequest)
        except DeltaMQError as error:
            code, detail = error_code_of(error), error.detail
            return DescribeClientQuotasResponse(error_code=code, error_message=detail, entries=None)
        return DescribeClientQuotasResponse(entries=[])

    def alter_quotas(self, request: AlterClientQuotasRequest, asker: Asker) -> AlterClientQuotasResponse:
        """Refuse to set quotas of users and clients."""
        try:
            asker.check(AlterClientQuotasRequest)
            raise Conflict(_QUOTAS, code="not_by_kafka")
        except DeltaMQError as error:
            code, detail = error_code_of(error), error.detail
            return AlterClientQuotasResponse(
                entries=[AlteredQuota(code, detail, entry.entity) for entry in request.entries]
            )
