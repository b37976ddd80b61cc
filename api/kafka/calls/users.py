"""Calls about users, which are the principals of the service, and their passwords (SPEC KAFKA-22, KAFKA-27).

A client salts a password itself, so that the service never sees it. A user's changes are made together or not at all;
what is wrong with one of them is the answer for the user.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import TypeAlias

from deltamq.api.audit.audit import Audit
from deltamq.api.host.hosted_meta import HostedMeta
from deltamq.api.host.owners import Owners
from deltamq.api.kafka.access.needs import Asker, recorded
from deltamq.api.kafka.messages.errors import ErrorCode, error_code_of
from deltamq.api.kafka.messages.user_messages import (
    SCRAM_MECHANISMS,
    AlteredUser,
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    CredentialDeletion,
    CredentialUpsertion,
    DescribedUser,
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
    UserCredential,
)
from deltamq.api.principals.auth_changes import AuthChanges
from deltamq.mq.auth.changes import decide_put_password, decide_remove_password
from deltamq.mq.auth.keys import Password, password_of
from deltamq.mq.auth.principals import check_caller
from deltamq.mq.auth.state import AuthEvent, AuthState
from deltamq.mq.errors import DeltaMQError, Unprocessable
from deltamq.mq.meta.features import PASSWORDS

_Change: TypeAlias = CredentialDeletion | CredentialUpsertion


class Users:
    """The calls about users; used on the event loop."""

    def __init__(self, meta: HostedMeta, owners: Owners, audit: Audit | None, now_ms: Callable[[], int]) -> None:
        self._meta = meta
        self._owners = owners
        self._audit = audit
        self._now_ms = now_ms

    def credentials(
        self, request: DescribeUserScramCredentialsRequest, asker: Asker
    ) -> DescribeUserScramCredentialsResponse:
        """Return for which mechanisms users have passwords; without names, of all that have one."""
        try:
            asker.check(DescribeUserScramCredentialsRequest)
        except DeltaMQError as error:
            code, detail = error_code_of(error), error.detail
            return DescribeUserScramCredentialsResponse(error_code=code, error_message=detail, results=[])
        counts = Counter(user.name for user in request.users or ()) or dict.fromkeys(self._meta.now.auth.passwords, 1)
        results = [self._described(name, count) for name, count in counts.items()]
        return DescribeUserScramCredentialsResponse(results=results)

    def _described(self, name: str, count: int) -> DescribedUser:
        if count > 1:
            return DescribedUser(name, ErrorCode.DUPLICATE_RESOURCE, "each user may be in the request once", [])
        found = self._meta.now.auth.passwords.get(name, {})
        if not found:
            return DescribedUser(name, ErrorCode.RESOURCE_NOT_FOUND, f"principal {name} has no password", [])
        credentials = [
            UserCredential(number, found[mechanism].iterations)
            for number, mechanism in SCRAM_MECHANISMS.items()
            if mechanism in found
        ]
        return DescribedUser(name, ErrorCode.NONE, None, credentials)

    async def alter_credentials(
        self, request: AlterUserScramCredentialsRequest, asker: Asker
    ) -> AlterUserScramCredentialsResponse:
        """Set and remove passwords, user by user; a user that does not exist is made with its first one."""
        by_name: dict[str, list[_Change]] = {}
        every: Sequence[_Change] = [*request.deletions, *request.upsertions]
        for change in every:
            by_name.setdefault(change.name, []).append(change)
        results = [await self._altered(name, changes, asker) for name, changes in by_name.items()]
        return AlterUserScramCredentialsResponse(results=results)

    async def _altered(self, name: str, changes: Sequence[_Change], asker: Asker) -> AlteredUser:
        try:
            asker.check(AlterUserScramCredentialsRequest)
            check_caller(name)
            removed = [_mechanism(change) for change in changes if isinstance(change, CredentialDeletion)]
            put = [self._password(change) for change in changes if isinstance(change, CredentialUpsertion)]
            if len({*removed, *(password.mechanism for password in put)}) < len(changes):
                raise Unprocessable("each mechanism of a user may be in the request once", code="user_twice")

            def decide(state: AuthState) -> Sequence[AuthEvent]:
                gone = [event for mechanism in removed for event in decide_remove_password(state, name, mechanism)]
                # the first one makes the principal, and the second finds it
                made = state
                for password in put:
                    events = decide_put_password(made, password)
                    made = made.apply_all(events)
                    gone += events
                return gone

            asks = {"remove": removed, "put": {password.mechanism: password.iterations for password in put}}
            async with recorded(self._audit, asker, "principal", name, asks):
                changes_of = AuthChanges(self._meta, self._owners, asker.caller, asker.to_others)
                await changes_of.store(decide, uses=PASSWORDS)
        except DeltaMQError as error:
            return AlteredUser(name, error_code_of(error), error.detail)
        return AlteredUser(name, ErrorCode.NONE, None)

    def _password(self, asked: CredentialUpsertion) -> Password:
        return password_of(
            asked.name,
            _mechanism(asked),
            salt=bytes(asked.salt),
            iterations=asked.iterations,
            salted=bytes(asked.salted_password),
            now_ms=self._now_ms(),
        )


def _mechanism(change: _Change) -> str:
    mechanism = SCRAM_MECHANISMS.get(change.mechanism)
    if mechanism is None:
        raise Unprocessable(f"there is no mechanism {change.mechanism} of SCRAM", code="mechanism_unknown")
    return mechanism
