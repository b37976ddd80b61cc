"""The members of groups: FindCoordinator, JoinGroup, SyncGroup, Heartbeat and LeaveGroup.

The process that has the meta role knows the members of all groups, in memory. When it dies or loses the role, the next
one knows none: members get an error, and join again. What groups have committed is stored elsewhere and stays.
"""

from __future__ import annotations

import asyncio
import uuid
from typing import Final

import msgspec

from deltamq.api.host.hosted_group import Groups
from deltamq.api.host.hosting import Hosting
from deltamq.api.kafka.access.needs import Asker
from deltamq.api.kafka.calls.layout import node_of
from deltamq.api.kafka.messages.apis import Frame
from deltamq.api.kafka.messages.errors import ErrorCode, error_code_of, group_code_of
from deltamq.api.kafka.messages.group_messages import (
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    FoundCoordinator,
    HeartbeatRequest,
    HeartbeatResponse,
    JoinedMember,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    LeavingMember,
    LeftMember,
    SyncGroupRequest,
    SyncGroupResponse,
    subscription_of,
)
from deltamq.mq.errors import Conflict, DeltaMQError, Forbidden, Refused, Unavailable
from deltamq.mq.members import ClassicGroup, Joined, Joining, MemberError, Phase
from deltamq.mq.meta.brokers import META_ROLE
from deltamq.mq.meta.group import Group
from deltamq.mq.names import check_group

_GROUP: Final = 0
_TRANSACTION: Final = 1
_CLIENT_ID_MAX: Final = 64
#: The versions from which on FindCoordinator asks for several groups, and LeaveGroup names several members.
_FINDS_SEVERAL: Final = 4
_SEVERAL_LEAVE: Final = 3
#: The versions of JoinGroup from which on new members are given an id first, there may be no protocol, and a leader
#: that comes back may have nothing to plan.
_GIVES_IDS: Final = 4
_PROTOCOL_IS_NULLABLE: Final = 7
_MAY_SKIP: Final = 9
#: The version of SyncGroup from which on members say by which protocol they plan.
_SAYS_PROTOCOL: Final = 5
_CONSUMER: Final = "consumer"

Waiters = dict[str, asyncio.Future[None]]


class _Hosted(msgspec.Struct):
    """A group, and the requests that wait for it."""

    group: ClassicGroup
    joins: Waiters = msgspec.field(default_factory=dict)
    syncs: Waiters = msgspec.field(default_factory=dict)
    timer: asyncio.TimerHandle | None = None


class Members:
    """The members of all groups; used on the event loop."""

    def __init__(self, groups: Groups, hosting: Hosting, *, session_ms_min: int) -> None:
        """`session_ms_min` is the shortest session that a member may have."""
        self._session_ms_min = session_ms_min
        self._groups = groups
        self._hosting = hosting
        self._loop = asyncio.get_running_loop()
        self._hosted: dict[str, _Hosted] = {}
        #: The epoch of the meta role since which the members are known.
        self._epoch = -1

    # The coordinator.

    def coordinator(self, request: FindCoordinatorRequest, version: int, asker: Asker) -> FindCoordinatorResponse:
        """Return the process that knows the members of groups; there is none for transactions and share groups."""
        if version >= _FINDS_SEVERAL:
            coordinators = [self._coordinator(key, request.key_type, asker) for key in request.keys]
            return FindCoordinatorResponse(coordinators=coordinators)
        coordinator = self._coordinator(request.key, request.key_type, asker)
        return FindCoordinatorResponse(
            error_code=coordinator.error_code,
            error_message=coordinator.error_message,
            node_id=coordinator.node_id,
            host=coordinator.host,
            port=coordinator.port,
        )

    def _coordinator(self, key: str, kind: int, asker: Asker) -> FoundCoordinator:
        try:
            _check_kind(kind)
            asker.check(FindCoordinatorRequest, group=key)
        except DeltaMQError as error:
            return FoundCoordinator(key=key, error_code=error_code_of(error), error_message=error.detail)
        node = node_of(self._hosting.owner(META_ROLE))
        if node is None:
            return FoundCoordinator(key=key, error_code=ErrorCode.COORDINATOR_NOT_AVAILABLE)
        return FoundCoordinator(key=key, node_id=node.id, host=node.host, port=node.port, error_code=ErrorCode.NONE)

    def _now_ms(self) -> int:
        return int(self._loop.time() * 1000)

    def _check_here(self) -> None:
        """Raise `Unavailable` (`not_coordinator`) if another process knows the members."""
        try:
            epoch = self._hosting.epoch(META_ROLE)
        except Unavailable as error:
            self.end()
            raise Unavailable("another process knows the members of groups", code="not_coordinator") from error
        if epoch != self._epoch:
            self.end()
            self._epoch = epoch

    def end(self) -> None:
        """Forget all members; those that wait get the error `not_coordinator`."""
        error = Unavailable("another process knows the members of groups", code="not_coordinator")
        for hosted in self._hosted.values():
            if hosted.timer is not None:
                hosted.timer.cancel()
            for waiter in (*hosted.joins.values(), *hosted.syncs.values()):
                if not waiter.done():
                    waiter.set_exception(error)
        self._hosted.clear()

    def group(self, name: str) -> ClassicGroup | None:
        """Return a group that has members, None if it has none; raise `Unavailable` if another process knows them."""
        self._check_here()
        hosted = self._hosted.get(name)
        return hosted.group if hosted is not None and hosted.group.members else None

    def _entered(self, name: str) -> _Hosted:
        """Return a group, with or without members."""
        self._check_here()
        return self._hosted.setdefault(name, _Hosted(ClassicGroup(self._session_ms_min)))

    def _of(self, name: str) -> _Hosted:
        """Return a group that has members; raise `MemberError` (`unknown_member`) if it has none."""
        self._check_here()
        hosted = self._hosted.get(name)
        if hosted is None:
            raise MemberError(f"group {name} has no members here", code="unknown_member")
        return hosted

    def _settle(self, name: str, hosted: _Hosted) -> None:
        """Answer the requests that are decided, and set the timer for the next time that decides something."""
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
        """Let a member join, and wait until the members of the group are decided.

        A new member is only given its id, if its version of the call provides for that (KIP-394).
        """
        new_id = f"{(frame.client_id or '')[:_CLIENT_ID_MAX]}-{uuid.uuid4()}"
        try:
            asker.check(JoinGroupRequest, group=request.group_id)
            joined = await self._joined(request, frame, host, new_id)
        except DeltaMQError as error:
            code = group_code_of(error)
            member = new_id if code is ErrorCode.MEMBER_ID_REQUIRED else request.member_id
            none = None if frame.version >= _PROTOCOL_IS_NULLABLE else ""
            return JoinGroupResponse(error_code=code, member_id=member, protocol_name=none)
        return _answer(joined)

    async def _joined(self, request: JoinGroupRequest, frame: Frame, host: str, new_id: str) -> Joined:
        name, member = check_group(request.group_id), request.member_id
        said, needs_id = _said(request, frame, host), frame.version >= _GIVES_IDS
        _check_shared(self._groups.find(name))
        hosted = self._entered(name)
        try:  # a member that is refused leaves no group behind
            hosted.group.admit(self._now_ms(), member, new_id, said, needs_id=needs_id)
        finally:
            self._settle(name, hosted)
        _check_shared(await self._groups.for_use(name))
        hosted = self._entered(name)
        try:
            joined = hosted.group.join(self._now_ms(), member, new_id, said, needs_id=needs_id)
            await self._join_decided(name, hosted, joined)
        finally:
            self._settle(name, hosted)
        return hosted.group.joined(joined)

    async def _join_decided(self, name: str, hosted: _Hosted, member: str) -> None:
        """Wait for the answer to a join; a member whose connection ends meanwhile will join as another one.

        A static member comes back, or is gone after its session.
        """
        try:
            await self._decided(hosted.joins, name, hosted, member)
        except asyncio.CancelledError:
            waiting = hosted.group.members.get(member)
            if waiting is not None and waiting.joins and waiting.said.instance_id is None:
                hosted.group.leave(self._now_ms(), member)
            raise

    async def sync(self, request: SyncGroupRequest, version: int, asker: Asker) -> SyncGroupResponse:
        """Take the leader's plan, or wait for it, and return the member's part."""
        try:
            asker.check(SyncGroupRequest, group=request.group_id)
            by = request.protocol_type, request.protocol_name
            if version >= _SAYS_PROTOCOL and None in by:
                raise MemberError("type and name of the protocol are missing", code="inconsistent_protocol")
            hosted = self._of(request.group_id)
            plan = {planned.member_id: bytes(planned.assignment) for planned in request.assignments}
            now_ms, instance = self._now_ms(), request.group_instance_id
            hosted.group.sync(now_ms, request.member_id, request.generation_id, plan, instance, by=by)
            await self._decided(hosted.syncs, request.group_id, hosted, request.member_id)
            part = hosted.group.synced(request.member_id)
        except DeltaMQError as error:
            return SyncGroupResponse(error_code=group_code_of(error))
        return SyncGroupResponse(
            error_code=ErrorCode.NONE,
            protocol_type=part.protocol_type,
            protocol_name=part.protocol,
            assignment=part.assignment,
        )

    def heartbeat(self, request: HeartbeatRequest, asker: Asker) -> HeartbeatResponse:
        """Note that a member lives; the answer says if it must join again."""
        try:
            asker.check(HeartbeatRequest, group=request.group_id)
            hosted = self._of(request.group_id)
            now_ms, instance = self._now_ms(), request.group_instance_id
            hosted.group.heartbeat(now_ms, request.member_id, request.generation_id, instance)
            self._settle(request.group_id, hosted)
        except DeltaMQError as error:
            return HeartbeatResponse(error_code=group_code_of(error))
        return HeartbeatResponse(error_code=ErrorCode.NONE)

    def leave(self, request: LeaveGroupRequest, version: int, asker: Asker) -> LeaveGroupResponse:
        """Remove members; each has its own outcome."""
        try:
            asker.check(LeaveGroupRequest, group=request.group_id)
            self._check_here()
        except DeltaMQError as error:
            return LeaveGroupResponse(error_code=group_code_of(error))
        if version < _SEVERAL_LEAVE:
            return LeaveGroupResponse(error_code=self._left(request.group_id, LeavingMember(request.member_id, None)))
        left = [
            LeftMember(member.member_id, member.group_instance_id, self._left(request.group_id, member))
            for member in request.members
        ]
        return LeaveGroupResponse(error_code=ErrorCode.NONE, members=left)

    def _left(self, name: str, leaving: LeavingMember) -> ErrorCode:
        try:
            hosted = self._of(name)
            hosted.group.leave(self._now_ms(), leaving.member_id, leaving.group_instance_id)
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
        group = self.group(name)
        if group is None:
            return set()
        if group.protocol_type != _CONSUMER:
            return None
        subscriptions = [
            subscription_of(data) for member in group.members.values() for _, data in member.said.protocols
        ]
        return None if None in subscriptions else {topic for topics in subscriptions for topic in topics or ()}


def _check_kind(kind: int) -> None:
    if kind == _TRANSACTION:
        detail = "transactions are not supported: set no transactional.id"
        raise Forbidden(detail, code="transactions_unsupported")
    if kind != _GROUP:
        raise Refused(f"there are coordinators of groups (0) only, not of kind {kind}", code="invalid_coordinator")


def _check_shared(group: Group | None) -> None:
    if group is not None and group.settings.consume_strategy != "shared":
        strategy = group.settings.consume_strategy
        detail = f"group {group.name} is {strategy}: Kafka consumers can be members of shared groups only"
        raise Conflict(detail, code="group_not_shared")


def _said(request: JoinGroupRequest, frame: Frame, host: str) -> Joining:
    return Joining(
        (frame.client_id or "")[:_CLIENT_ID_MAX],
        host,
        request.protocol_type,
        tuple((protocol.name, bytes(protocol.metadata)) for protocol in request.protocols),
        request.session_timeout_ms,
        request.rebalance_timeout_ms if request.rebalance_timeout_ms > 0 else request.session_timeout_ms,
        request.group_instance_id,
        frame.version >= _MAY_SKIP,
    )


def _answer(joined: Joined) -> JoinGroupResponse:
    return JoinGroupResponse(
        error_code=ErrorCode.NONE,
        generation_id=joined.generation,
        protocol_type=joined.protocol_type,
        protocol_name=joined.protocol,
        leader=joined.leader,
        skip_assignment=joined.skips,
        member_id=joined.member,
        members=[
            JoinedMember(member_id=member_id, group_instance_id=instance, metadata=data)
            for member_id, instance, data in joined.members
        ],
    )
