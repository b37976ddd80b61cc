"""Principals, keys and access rules over REST, and the audit of what administrators did (SPEC SEC-1 to 3, 42)."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from datetime import datetime, timedelta
from typing import Literal

import msgspec

from deltamq.mq.client.http.calls import PagedCalls, read_answer, time_text
from deltamq.mq.client.http.endpoint import path_of
from deltamq.mq.client.shells.both import both
from deltamq.mq.client.shells.rows import both_rows
from deltamq.mq.errors import NotFound
from deltamq.mq.wire.auth import (
    AclInfo,
    AclList,
    ActInfo,
    ActList,
    Allowed,
    Explained,
    KeyInfo,
    KeyList,
    NewKey,
    PrincipalInfo,
    PrincipalList,
    QuotaInfo,
    QuotaList,
    RefusalInfo,
    RefusalList,
    SignInInfo,
)


class AuthAdmin(PagedCalls):
    """The part of `Admin` for principals, keys, access rules and quotas; each call needs `admin` on the cluster."""

    @both
    async def put_principal(self, principal: str, *, note: str = "") -> PrincipalInfo:
        """Make a principal, or change its note."""
        body = msgspec.json.encode({"note": note})
        return read_answer(await self._call("PUT", path_of("auth", "principals", principal), body=body), PrincipalInfo)

    @both
    async def list_principals(self, *, disabled: bool | None = None) -> list[str]:
        """Return the names of all principals, sorted; `disabled` selects disabled (True) or enabled ones (False)."""

        def chosen(page: PrincipalList) -> list[str]:
            disabled_names = set(page.disabled)
            return [name for name in page.principals if disabled in (None, name in disabled_names)]

        return [name async for name in self._rows(["auth", "principals"], PrincipalList, chosen)]

    @both
    async def get_principal(self, principal: str) -> PrincipalInfo:
        """Return a principal with its keys, passwords and rules; raises `NotFound`."""
        return read_answer(await self._call("GET", path_of("auth", "principals", principal)), PrincipalInfo)

    @both
    async def delete_principal(self, principal: str) -> None:
        """Remove a principal with its keys and rules; raises `NotFound`."""
        await self._end(path_of("auth", "principals", principal), NotFound)

    @both
    async def disable_principal(self, principal: str) -> PrincipalInfo:
        """Refuse all that a principal asks for, until it is enabled; its keys and rules stay.

        Raises `NotFound`, and `Conflict` (`last_administrator`) for the only one that may administer the cluster.
        """
        return await self._switch(principal, "disable")

    @both
    async def enable_principal(self, principal: str) -> PrincipalInfo:
        """Let a principal do again what its rules grant; raises `NotFound`."""
        return await self._switch(principal, "enable")

    async def _switch(self, principal: str, how: Literal["disable", "enable"]) -> PrincipalInfo:
        return read_answer(await self._call("POST", path_of("auth", "principals", principal, how)), PrincipalInfo)

    @both
    async def create_key(
        self, principal: str, *, until: datetime | None = None, overlap: timedelta | None = None
    ) -> NewKey:
        """Make a key; with `overlap` the principal's live key ends so long after that (a rotation).

        The call is not retried: after a lost answer, find the key with `list_keys` and revoke it.
        """
        wanted: dict[str, str | int] = {"principal": principal}
        if until is not None:
            wanted["until"] = time_text(until)
        if overlap is not None:
            wanted["overlap_ms"] = overlap // timedelta(milliseconds=1)
        answer = await self.hosts.call(
            "POST",
            path_of("auth", "keys"),
            headers={"Content-Type": "application/json"},
            body=msgspec.json.encode(wanted),
            timeout_s=self.patience.timeout_s,
        )
        return read_answer(answer, NewKey)

    @both
    async def list_keys(self, principal: str | None = None) -> list[KeyInfo]:
        """Return all keys, or the keys of one principal."""
        asked = {"principal": principal}
        return [key async for key in self._rows(["auth", "keys"], KeyList, lambda page: page.keys, asked)]

    @both
    async def revoke_key(self, key_id: str) -> None:
        """Revoke a key; raises `NotFound`."""
        await self._end(path_of("auth", "keys", key_id), NotFound)

    @both
    async def remove_password(self, principal: str, mechanism: str) -> None:
        """Remove a principal's password for a mechanism (`SCRAM-SHA-512`), which a client of Kafka has set.

        Raises `NotFound`.
        """
        await self._end(path_of("auth", "principals", principal, "passwords", mechanism), NotFound)

    @both
    async def add_acl(
        self,
        principal: str,
        resource: Literal["topic", "group", "cluster"],
        verbs: Sequence[str],
        *,
        pattern: str = "",
        effect: Literal["allow", "deny"] = "allow",
    ) -> AclInfo:
        """Add an access rule; one that is there already stays.

        `pattern` is a whole name, or the beginning of names and a `*`; the cluster needs none.
        """
        wanted = {
            "principal": principal,
            "resource": resource,
            "pattern": pattern,
            "verbs": list(verbs),
            "effect": effect,
        }
        return read_answer(await self._call("POST", path_of("auth", "acls"), body=msgspec.json.encode(wanted)), AclInfo)

    @both
    async def list_acls(self, principal: str | None = None) -> list[AclInfo]:
        """Return all access rules, or the rules of one principal."""
        asked = {"principal": principal}
        return [rule async for rule in self._rows(["auth", "acls"], AclList, lambda page: page.acls, asked)]

    @both
    async def allowed(self, *, topic: str | None = None, group: str | None = None) -> Allowed:
        """Return what the caller itself may do on the cluster, and on this topic and group, or else on all of them.

        It needs no `admin`.
        """
        named = {"topic": topic, "group": group}
        query = {name: value for name, value in named.items() if value is not None}
        return read_answer(await self._call("GET", path_of("auth", "may"), query=query), Allowed)

    @both
    async def sign_in(self) -> SignInInfo:
        """Return how people sign in to the console at the identity provider."""
        return read_answer(await self._call("GET", path_of("auth", "sign-in")), SignInInfo)

    @both
    async def explain(
        self,
        principal: str,
        verb: str,
        resource: Literal["topic", "group", "cluster"],
        name: str = "",
        *,
        groups: Sequence[str] = (),
    ) -> Explained:
        """Return whether a principal may do something, and by which rules; `groups` are those of its token."""
        query = {"principal": principal, "verb": verb, "resource": resource, "name": name, "groups": ",".join(groups)}
        return read_answer(await self._call("GET", path_of("auth", "explain"), query=query), Explained)

    @both
    async def remove_acl(self, acl_id: str) -> None:
        """Remove an access rule; raises `NotFound`."""
        await self._end(path_of("auth", "acls", acl_id), NotFound)

    @both
    async def set_quota(
        self,
        principal: str,
        *,
        requests_per_s: int | None = None,
        bytes_in_per_s: int | None = None,
        bytes_out_per_s: int | None = None,
    ) -> QuotaInfo:
        """Set what a principal may use of each process, per second; what is left out has no bound."""
        wanted = {
            "requests_per_s": requests_per_s,
            "bytes_in_per_s": bytes_in_per_s,
            "bytes_out_per_s": bytes_out_per_s,
        }
        body = msgspec.json.encode({name: value for name, value in wanted.items() if value is not None})
        return read_answer(await self._call("PUT", path_of("auth", "quotas", principal), body=body), QuotaInfo)

    @both
    async def list_quotas(self) -> list[QuotaInfo]:
        """Return all quotas."""
        return [quota async for quota in self._rows(["auth", "quotas"], QuotaList, lambda page: page.quotas)]


class AuditAdmin(PagedCalls):
    """The part of `Admin` for the audit; each call needs `audit` on the cluster."""

    @both_rows
    async def audit(
        self, *, since: datetime | None = None, principal: str | None = None, limit: int | None = None
    ) -> AsyncGenerator[ActInfo, None]:
        """Yield acts, the oldest first, page by page; at most `limit` of them."""
        acts = self._rows(["audit"], ActList, lambda page: page.acts, _asked(since, principal), limit=limit)
        async for act in acts:
            yield act

    @both_rows
    async def audit_refusals(
        self, *, since: datetime | None = None, principal: str | None = None, limit: int | None = None
    ) -> AsyncGenerator[RefusalInfo, None]:
        """Yield what was refused, by minute, the oldest first, page by page; at most `limit` rows."""
        path, asked = ["audit", "refusals"], _asked(since, principal)
        async for refusal in self._rows(path, RefusalList, lambda page: page.refusals, asked, limit=limit):
            yield refusal


def _asked(since: datetime | None, principal: str | None) -> dict[str, str | None]:
    return {"since": None if since is None else time_text(since), "principal": principal}
