"""ListGroups, DescribeGroups and DeleteGroups: what administrators see of groups, and how they end."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from deltamq.api.audit.audit import Audit
from deltamq.api.host.hosted_group import Groups
from deltamq.api.host.hosting import Hosting
from deltamq.api.kafka.access.needs import Asker, operations, recorded
from deltamq.api.kafka.calls.members import Members
from deltamq.api.kafka.messages.errors import ErrorCode, error_code_of, group_code_of
from deltamq.api.kafka.messages.group_messages import (
    DeletedGroup,
    DeleteGroupsRequest,
    DeleteGroupsResponse,
    DescribedGroup,
    DescribedMember,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    ListedGroup,
    ListGroupsRequest,
    ListGroupsResponse,
)
from deltamq.mq.errors import DeltaMQError, Unavailable
from deltamq.mq.members import ClassicGroup, Phase
from deltamq.mq.meta.brokers import META_ROLE
from deltamq.mq.names import check_group

#: What groups without members are shown as.
_CONSUMER: Final = "consumer"
#: The one type of group that there is here: members plan among themselves.
_CLASSIC: Final = "classic"
_DEAD: Final = "Dead"
#: The version of DescribeGroups from which on a group that does not exist is an error.
_MISSES_GROUPS: Final = 6


class GroupLists:
    """The calls about groups as a whole; used on the event loop."""

    def __init__(self, members: Members, groups: Groups, hosting: Hosting, audit: Audit | None) -> None:
        self._members = members
        self._groups = groups
        self._hosting = hosting
        self._audit = audit

    def listed(self, request: ListGroupsRequest, asker: Asker) -> ListGroupsResponse:
        """Return all groups that the caller may see, also those that Kafka's consumers never used.

        Clients ask every process and join the answers, so only the process that knows the members lists the groups;
        every process does if that one has no Kafka port.
        """
        try:
            asker.check(ListGroupsRequest)
            if self._is_listed_elsewhere():
                return ListGroupsResponse(error_code=ErrorCode.NONE, groups=[])
        except DeltaMQError as error:
            return ListGroupsResponse(error_code=group_code_of(error), groups=[])
        is_shown = asker.shown("group")
        states, types = _folded(request.states), _folded(request.types)
        groups = [self._listed(name) for name in self._groups.state.groups if is_shown(name)]
        wanted = [
            group
            for group in groups
            if (not states or group.state.casefold() in states) and (not types or group.type.casefold() in types)
        ]
        return ListGroupsResponse(error_code=ErrorCode.NONE, groups=wanted)

    def _is_listed_elsewhere(self) -> bool:
        try:
            self._hosting.epoch(META_ROLE)
        except Unavailable:
            owner = self._hosting.owner(META_ROLE)
            return owner is not None and bool(owner.kafka)
        return False

    def _listed(self, name: str) -> ListedGroup:
        try:
            group = self._members.group(name)
        except Unavailable:
            group = None
        if group is None:
            return ListedGroup(name, _CONSUMER, Phase.EMPTY.value, _CLASSIC)
        return ListedGroup(name, group.protocol_type, group.phase.value, _CLASSIC)

    def described(self, request: DescribeGroupsRequest, version: int, asker: Asker) -> DescribeGroupsResponse:
        """Return the members of groups."""
        groups = [self._described(name, version, asker) for name in request.groups]
        if request.include_operations:
            for group in groups:
                if group.error_code == ErrorCode.NONE:
                    group.operations = operations(asker, "group", group.group_id)
        return DescribeGroupsResponse(groups=groups)

    def _described(self, name: str, version: int, asker: Asker) -> DescribedGroup:
        try:
            asker.check(DescribeGroupsRequest, group=name)
            group = self._members.group(name)
        except DeltaMQError as error:
            return DescribedGroup(error_code=group_code_of(error), error_message=error.detail, group_id=name)
        if group is not None:
            return _shown(name, group)
        if self._groups.find(name) is not None:
            return DescribedGroup(
                error_code=ErrorCode.NONE, group_id=name, state=Phase.EMPTY.value, protocol_type=_CONSUMER
            )
        if version < _MISSES_GROUPS:
            return DescribedGroup(error_code=ErrorCode.NONE, group_id=name, state=_DEAD)
        code, detail = ErrorCode.GROUP_ID_NOT_FOUND, f"there is no group {name}"
        return DescribedGroup(error_code=code, error_message=detail, group_id=name, state=_DEAD)

    async def delete(self, request: DeleteGroupsRequest, asker: Asker) -> DeleteGroupsResponse:
        """Delete groups that have no members, with all that they have committed."""
        done = [DeletedGroup(name, await self._deleted(name, asker)) for name in request.names]
        return DeleteGroupsResponse(results=done)

    async def _deleted(self, name: str, asker: Asker) -> ErrorCode:
        try:
            asker.check(DeleteGroupsRequest, group=name)
            if self._members.group(name) is not None:
                return ErrorCode.NON_EMPTY_GROUP
            async with recorded(self._audit, asker, "group", check_group(name), {}):
                await self._groups.delete(name)
        except DeltaMQError as error:
            return error_code_of(error)
        return ErrorCode.NONE


def _folded(texts: Collection[str]) -> set[str]:
    return {text.casefold() for text in texts}


def _shown(name: str, group: ClassicGroup) -> DescribedGroup:
    return DescribedGroup(
        error_code=ErrorCode.NONE,
        group_id=name,
        state=group.phase.value,
        protocol_type=group.protocol_type,
        protocol=group.protocol,
        members=[
            DescribedMember(
                member_id=member.id,
                group_instance_id=member.said.instance_id,
                client_id=member.said.client_id,
                client_host=member.said.client_host,
                metadata=member.data_of(group.protocol),
                assignment=member.assignment,
            )
            for member in group.members.values()
        ],
    )
