"""The members of groups: FindCoordinator, JoinGroup, SyncGroup, Heartbeat, LeaveGroup, and what administrators see.

The process that has the meta role knows the members of all groups, in memory. When it dies or loses the role, another
one knows none: members are told so, and join again. What groups have committed is stored elsewhere and stays.
"""

from __future__ import annotations

import asyncio
import uuid
from dataclasses import dataclass, field
from typing import Final

from api.audit import Audit
from api.host import Groups, Hosting
from api.kafka.access import Asker
from api.kafka.calls.acts import recorded
from api.kafka.calls.places import address_of
from api.kafka.messages import (
    DeletedGroup,
    DeleteGroupsRequest,
    DeleteGroupsResponse,
    DescribedGroup,
    DescribedMember,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    ErrorCode,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    Frame,
    HeartbeatRequest,
    HeartbeatResponse,
    JoinedMember,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    LeftMember,
    ListedGroup,
    ListGroupsRequest,
    ListGroupsResponse,
    SyncGroupRequest,
    SyncGroupResponse,
    error_code_of,
    group_code_of,
    subscription_of,
)
from mq.errors import Conflict, DeltaMQError, Forbidden, Unavailable
from mq.members import ClassicGroup, Joining, MemberError, Phase
from mq.meta import META_ROLE
from mq.names import check_group

__all__ = ["Members"]

_GROUP: Final = 0
_CLIENT_ID_MAX: Final = 64
#: The version of JoinGroup from which on new members are given an id first.
_GIVES_IDS: Final = 4
#: What groups without members are shown as.
_CONSUMER: Final = "consumer"

Waiters = dict[str, asyncio.Future[None]]


@dataclass(slots=True)
class _Hosted:
    """A group, and the requests that wait for it."""

    group: ClassicGroup = field(default_factory=ClassicGroup)
    joins: Waiters = field(default_factory=dict)
    syncs: Waiters = field(default_factory=dict)
    timer: asyncio.TimerHandle | None = None


class Members:
    """The members of all groups; used on the event loop."""

    def __init__(self, groups: Groups, hosting: Hosting, audit: Audit | None) -> None:
        self._groups = groups
        self._hosting = hosting
        self._audit = audit
        self._loop = asyncio.get_running_loop()
        self._hosted: dict[str, _Hosted] = {}
        #: The epoch of the meta role since which the members are known.
        self._epoch = -1

    # Whose members.

    def coordinator(self, request: FindCoordinatorRequest, asker: Asker) -> FindCoordinatorResponse:
        """Return the process that knows the members of groups; there is none for transactions."""
        if request.key_type != _GROUP:
            return FindCoordinatorResponse(
                error_code=ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
                error_message="transactions are not supported: set no transactional.id",
            )
        try:
            asker.check(FindCoordinatorRequest, group=request.key)
        except Forbidden as error:
            return FindCoordinatorResponse(error_code=error_code_of(error), error_message=error.detail)
        owner = self._hosting.owner(META_ROLE)
        if owner is None or not owner.kafka:
            return FindCoordinatorResponse(error_code=ErrorCode.COORDINATOR_NOT_AVAILABLE)
        node = address_of(owner.kafka)
        return FindCoordinatorResponse(error_code=ErrorCode.NONE, node_id=node.id, host=node.host, port=node.port)

    def _now_ms(self) -> int:
        return int(self._loop.time() * 1000)

    def _check_here(self) -> None:
        """Return if this process knows the members; raise `Unavailable` (`not_coordinator`) if another does."""
        try:
            epoch = self._hosting.epoch(META_ROLE)
        except Unavailable as error:
            self.end()
            raise Unavailable("another process knows the members of groups", code="not_coordinator") from error
        if epoch != self._epoch:
            self.end()
            self._epoch = epoch

    def end(self) -> None:
        """Forget all members; those that wait are told to look for the coordinator."""
        error = Unavailable("another process knows the members of groups", code="not_coordinator")
        for hosted in self._hosted.values():
            if hosted.timer is not None:
                hosted.timer.cancel()
            for waiter in (*hosted.joins.values(), *hosted.syncs.values()):
                if not waiter.done():
                    waiter.set_exception(error)
        self._hosted.clear()

    def _of(self, name: str) -> _Hosted:
        """Return a group that has members; raise `MemberError` (`unknown_member`) if it has none."""
        self._check_here()
        hosted = self._hosted.get(name)
        if hosted is None:
            raise MemberError(f"group {name} has no members here", code="unknown_member")
        return hosted

    def _settle(self, name: str, hosted: _Hosted) -> None:
        """Answer what is decided, and come back when time decides something."""
        for waiters, decided in (
            (hosted.joins, hosted.group.take_joined()),
            (hosted.syncs, hosted.group.take_synced()),
        ):
            for member in decided:
                waiter = waiters.pop(member, None)
                if waiter is not None and not waiter.done():
                    waiter.set_result(None)
        if hosted.timer is not None:
            hosted.timer.cancel()
            hosted.timer = None
        due_ms = hosted.group.next_ms()
        if due_ms is not None:
            hosted.timer = self._loop.call_at(due_ms / 1000, self._tick, name, hosted)
        elif hosted.group.phase is Phase.EMPTY and self._hosted.get(name) is hosted:
            del self._hosted[name]

    def _tick(self, name: str, hosted: _Hosted) -> None:
        hosted.timer = None
        hosted.group.tick(self._now_ms())
        self._settle(name, hosted)

    async def _decided(self, waiters: Waiters, name: str, hosted: _Hosted, member: str) -> None:
        """Wait for a member's answer; a later request of the same member takes its place."""
        earlier = waiters.get(member)
        if earlier is not None and not earlier.done():
            earlier.set_result(None)
        waiter = waiters[member] = self._loop.create_future()
        self._settle(name, hosted)
        await waiter

    # What members ask.

    async def join(self, request: JoinGroupRequest, frame: Frame, host: str, asker: Asker) -> JoinGroupResponse:
        """Let a member join, and wait until it is decided who is in the group.

        A new one is only given its id, if its version of the call knows of that (KIP-394).
        """
        new_id = f"{(frame.client_id or '')[:_CLIENT_ID_MAX]}-{uuid.uuid4()}"
        try:
            asker.check(JoinGroupRequest, group=request.group_id)
            return await self._joined(request, frame, host, new_id)
        except DeltaMQError as error:
            code = group_code_of(error)
            member = new_id if code is ErrorCode.MEMBER_ID_REQUIRED else request.member_id
            return JoinGroupResponse(error_code=code, member_id=member)

    async def _joined(self, request: JoinGroupRequest, frame: Frame, host: str, new_id: str) -> JoinGroupResponse:
        name = check_group(request.group_id)
        settings = (await self._groups.for_use(name)).settings
        if settings.consume_strategy != "shared":
            detail = (
                f"group {name} is {settings.consume_strategy}: Kafka consumers can be members of shared groups only"
            )
            raise Conflict(detail, code="group_not_shared")
        self._check_here()
        hosted = self._hosted.setdefault(name, _Hosted())
        rebalance_ms = request.rebalance_timeout_ms if request.rebalance_timeout_ms > 0 else request.session_timeout_ms
        said = Joining(
            (frame.client_id or "")[:_CLIENT_ID_MAX],
            host,
            request.protocol_type,
            tuple((one.name, bytes(one.metadata)) for one in request.protocols),
            request.session_timeout_ms,
            rebalance_ms,
            request.group_instance_id,
        )
        try:
            needs_id = frame.version >= _GIVES_IDS
            member = hosted.group.join(self._now_ms(), request.member_id, new_id, said, needs_id=needs_id)
            await self._join_decided(name, hosted, member)
        finally:
            self._settle(name, hosted)
        found = hosted.group.joined(member)
        return JoinGroupResponse(
            error_code=ErrorCode.NONE,
            generation_id=found.generation,
            protocol_name=found.protocol,
            leader=found.leader,
            member_id=member,
            members=[
                JoinedMember(member_id=one, group_instance_id=instance, metadata=data)
                for one, instance, data in found.members
            ],
        )

    async def _join_decided(self, name: str, hosted: _Hosted, member: str) -> None:
        """Wait for the answer to a join; a member whose connection ends meanwhile will join as another one.

        A static member comes back, or is gone after its session.
        """
        try:
            await self._decided(hosted.joins, name, hosted, member)
        except asyncio.CancelledError:
            found = hosted.group.members.get(member)
            if found is not None and found.joins and found.said.instance_id is None:
                hosted.group.leave(self._now_ms(), member)
            raise

    async def sync(self, request: SyncGroupRequest, asker: Asker) -> SyncGroupResponse:
        """Take the leader's plan, or wait for it, and return the member's part."""
        try:
            asker.check(SyncGroupRequest, group=request.group_id)
            hosted = self._of(request.group_id)
            plan = {one.member_id: bytes(one.assignment) for one in request.assignments}
            now_ms, instance = self._now_ms(), request.group_instance_id
            hosted.group.sync(now_ms, request.member_id, request.generation_id, plan, instance)
            await self._decided(hosted.syncs, request.group_id, hosted, request.member_id)
            found = hosted.group.synced(request.member_id)
        except DeltaMQError as error:
            return SyncGroupResponse(error_code=group_code_of(error))
        return SyncGroupResponse(error_code=ErrorCode.NONE, assignment=found.assignment)

    def heartbeat(self, request: HeartbeatRequest, asker: Asker) -> HeartbeatResponse:
        """Note that a member lives, and tell it if it must join again."""
        try:
            asker.check(HeartbeatRequest, group=request.group_id)
            hosted = self._of(request.group_id)
            now_ms, instance = self._now_ms(), request.group_instance_id
            hosted.group.heartbeat(now_ms, request.member_id, request.generation_id, instance)
            self._settle(request.group_id, hosted)
        except DeltaMQError as error:
            return HeartbeatResponse(error_code=group_code_of(error))
        return HeartbeatResponse(error_code=ErrorCode.NONE)

    def leave(self, request: LeaveGroupRequest, asker: Asker) -> LeaveGroupResponse:
        """Remove members."""
        try:
            asker.check(LeaveGroupRequest, group=request.group_id)
        except Forbidden as error:
            return LeaveGroupResponse(error_code=error_code_of(error))
        if not request.members:
            return LeaveGroupResponse(error_code=self._left(request.group_id, request.member_id, None))
        left = [
            LeftMember(
                one.member_id,
                one.group_instance_id,
                self._left(request.group_id, one.member_id, one.group_instance_id),
            )
            for one in request.members
        ]
        return LeaveGroupResponse(error_code=ErrorCode.NONE, members=left)

    def _left(self, name: str, member: str, instance: str | None) -> ErrorCode:
        try:
            hosted = self._of(name)
            hosted.group.leave(self._now_ms(), member, instance)
            self._settle(name, hosted)
        except DeltaMQError as error:
            return group_code_of(error)
        return ErrorCode.NONE

    def check_commit(self, name: str, member: str, generation: int, instance: str | None) -> None:
        """Return if a commit in a group counts; raises what `ClassicGroup.check_commit` does."""
        self._check_here()
        hosted = self._hosted.get(name)
        (ClassicGroup() if hosted is None else hosted.group).check_commit(self._now_ms(), member, generation, instance)

    def subscribed(self, name: str) -> set[str] | None:
        """Return the topics that members of a group read; None if the members do not say it as consumers do.

        Raises
        ------
        Unavailable
            `not_coordinator`: another process knows the members.
        """
        self._check_here()
        hosted = self._hosted.get(name)
        if hosted is None:
            return set()
        group = hosted.group
        if group.protocol_type != _CONSUMER:
            return None
        found = [subscription_of(data) for one in group.members.values() for _, data in one.said.protocols]
        return None if None in found else {topic for topics in found for topic in topics or ()}

    # What administrators see.

    def listed(self, asker: Asker) -> ListGroupsResponse:
        """Return all groups that the caller may see, also those that Kafka's consumers never used."""
        try:
            asker.check(ListGroupsRequest)
        except Forbidden as error:
            return ListGroupsResponse(error_code=error_code_of(error), groups=[])
        is_shown = asker.shown("group")
        groups = [ListedGroup(name, _CONSUMER) for name in self._groups.state.groups if is_shown(name)]
        return ListGroupsResponse(error_code=ErrorCode.NONE, groups=groups)

    def described(self, request: DescribeGroupsRequest, asker: Asker) -> DescribeGroupsResponse:
        """Return the members of groups."""
        return DescribeGroupsResponse(groups=[self._described(name, asker) for name in request.groups])

    def _described(self, name: str, asker: Asker) -> DescribedGroup:
        try:
            asker.check(DescribeGroupsRequest, group=name)
            self._check_here()
        except DeltaMQError as error:
            return DescribedGroup(error_code=error_code_of(error), group_id=name)
        hosted = self._hosted.get(name)
        if hosted is None:
            exists = self._groups.find(name) is not None
            state = Phase.EMPTY.value if exists else "Dead"
            kind = _CONSUMER if exists else ""
            return DescribedGroup(error_code=ErrorCode.NONE, group_id=name, state=state, protocol_type=kind)
        group = hosted.group
        return DescribedGroup(
            error_code=ErrorCode.NONE,
            group_id=name,
            state=group.phase.value,
            protocol_type=group.protocol_type,
            protocol=group.protocol,
            members=[
                DescribedMember(
                    member_id=one.id,
                    group_instance_id=one.said.instance_id,
                    client_id=one.said.client_id,
                    client_host=one.said.client_host,
                    metadata=one.data_of(group.protocol),
                    assignment=one.assignment,
                )
                for one in group.members.values()
            ],
        )

    async def delete(self, request: DeleteGroupsRequest, asker: Asker) -> DeleteGroupsResponse:
        """Delete groups that have no members, with all that they have committed."""
        done = [DeletedGroup(name, await self._deleted(name, asker)) for name in request.names]
        return DeleteGroupsResponse(results=done)

    async def _deleted(self, name: str, asker: Asker) -> ErrorCode:
        try:
            asker.check(DeleteGroupsRequest, group=name)
            self._check_here()
            if name in self._hosted:
                return ErrorCode.NON_EMPTY_GROUP
            async with recorded(self._audit, asker, "group", check_group(name), {}):
                await self._groups.delete(name)
        except DeltaMQError as error:
            code = error_code_of(error)
            return ErrorCode.GROUP_ID_NOT_FOUND if code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION else code
        return ErrorCode.NONE
