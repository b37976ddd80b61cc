"""Groups over REST: create, change, show with progress and clients, delete.

The clients of an exclusive group are in the metadata log, and shown with their allocation; of a shared group, each
process knows the clients that it heard of.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import Annotated, Final, NamedTuple
from urllib.parse import quote

import msgspec
from fastapi import APIRouter, Depends, Request, Response
from fastapi import Path as PathParameter
from msgspec import UNSET, Meta, UnsetType
from msgspec.structs import replace

from deltamq.api.auth.caller import Caller
from deltamq.api.host.hosted_meta import HostedMeta
from deltamq.api.host.hosting import Hosting
from deltamq.api.host.owners import Owners
from deltamq.api.host.peers import Call, is_forwarded
from deltamq.api.order.online_clients import OnlineClients
from deltamq.api.queue.lanes import Lanes
from deltamq.api.queue.seen_clients import SeenClients
from deltamq.api.routes.lane_views import LaneViews, Others, ask_others
from deltamq.api.service.dependencies import Asking, Running
from deltamq.api.wire.fields import After, Limit, check_reason, json_answer, moment, page
from deltamq.api.wire.json_body import JsonBody
from deltamq.api.wire.openapi_parts import GROUP_PATTERN, answers, answers_or_makes, problems
from deltamq.mq.errors import NotFound
from deltamq.mq.limits import (
    INVISIBLE_MS_MAX,
    INVISIBLE_MS_MIN,
    MAX_ATTEMPTS_MAX,
    REASON_LENGTH_MAX,
    RETRY_WAIT_MS_MAX,
    RETRY_WAITS_MAX,
)
from deltamq.mq.meta.allocation import Strategy
from deltamq.mq.meta.group import Group, Pause
from deltamq.mq.meta.group_settings import ConsumeStrategy, GroupRequest, Ordering
from deltamq.mq.meta.online import Member, Subscription
from deltamq.mq.names import check_group, split_member
from deltamq.mq.queue.retry import policy_to_json
from deltamq.mq.wire.groups import (
    ClientSubscription,
    GroupAllocation,
    GroupClient,
    GroupInfo,
    GroupList,
    GroupMember,
    GroupPause,
    GroupTopic,
    StartText,
)

router = APIRouter(prefix="/v1/groups", tags=["groups"])

#: A group, or a client of a broadcast group: GROUP@CLIENT.
ReaderName = Annotated[str, PathParameter(examples=["billing", "prices@worker-1"])]
GroupName = Annotated[str, PathParameter(json_schema_extra={"pattern": GROUP_PATTERN}, examples=["billing"])]
_Wait = Annotated[int, Meta(ge=0, le=RETRY_WAIT_MS_MAX)]


class GrowingWaits(msgspec.Struct, forbid_unknown_fields=True):
    """Waits from `initial_ms` on, each `multiplier` times the last, up to `max_ms`; `jitter` is their random share."""

    initial_ms: _Wait = 5_000
    multiplier: Annotated[float, Meta(ge=1, le=100)] = 2.0
    max_ms: _Wait = 7_200_000
    jitter: Annotated[float, Meta(ge=0, le=1)] = 0.0


class RuleOfWaits(msgspec.Struct, forbid_unknown_fields=True):
    """One fixed wait, or waits that grow."""

    fixed_ms: _Wait | UnsetType = UNSET
    exponential: GrowingWaits | UnsetType = UNSET


#: A list of waits or one rule, for `policy_from_json`.
RetryPolicyJson = Annotated[
    Annotated[list[_Wait], Meta(min_length=1, max_length=RETRY_WAITS_MAX)] | RuleOfWaits,
    Meta(extra_json_schema={"minProperties": 1, "maxProperties": 1}),
]


class GroupPutRequest(msgspec.Struct, forbid_unknown_fields=True):
    """The settings of a group; one that is left out stays as it is, or gets its default in a new group."""

    consume_strategy: Annotated[ConsumeStrategy | None, Meta(description="By default shared.")] = None
    allocation_strategy: Annotated[
        Strategy | None, Meta(description="How an exclusive group allocates its partitions. By default sticky.")
    ] = None
    order: Annotated[Ordering | None, Meta(description='true: partitions in order; "key": each key in order.')] = None
    consume_from: Annotated[
        StartText | None,
        Meta(
            description="Where the group begins in a partition: `first`, `last`, or a time. In a partition added after"
            " the group began in the topic, it begins at the first message."
        ),
    ] = None
    max_attempts: Annotated[int, Meta(ge=1, le=MAX_ATTEMPTS_MAX)] | None = None
    retry_policy: RetryPolicyJson | None = None
    # The bounds are a setting of the service; these are its defaults.
    invisible_ms: Annotated[
        Annotated[int, Meta(extra_json_schema={"minimum": INVISIBLE_MS_MIN, "maximum": INVISIBLE_MS_MAX})] | None,
        Meta(description="For pops without one."),
    ] = None


class GroupPauseRequest(msgspec.Struct, forbid_unknown_fields=True):
    """Why a group is paused."""

    reason: Annotated[
        Annotated[str, Meta(max_length=REASON_LENGTH_MAX)] | None, Meta(description="Why, for those who look.")
    ] = None


_PAUSE: Final = JsonBody(GroupPauseRequest, {"reason": "the bank's interface is down"}, required=False)
_PUT: Final = JsonBody(GroupPutRequest, {"max_attempts": 5, "retry_policy": {"fixed_ms": 1_000}}, required=False)


class _Reported(NamedTuple):
    """What other processes report of a group: its lanes, its clients, and the lanes of each member."""

    lanes: Others
    clients: list[GroupClient]
    members: dict[str, Others]


class GroupViews:
    """Makes the views of groups, of what this process knows and of what others answer."""

    def __init__(
        self,
        meta: HostedMeta,
        lanes: Lanes,
        hosting: Hosting,
        owners: Owners,
        views: LaneViews,
        *,
        online: OnlineClients,
        seen: SeenClients,
    ) -> None:
        self._meta = meta
        self._lanes = lanes
        self._hosting = hosting
        self._owners = owners
        self._views = views
        self._online = online
        self._seen = seen

    async def of(self, group: Group, call: Call) -> GroupInfo:
        """Return the view of a group; other processes are sent `call` for their part, unless one of them asks."""
        reported = None if is_forwarded(call.headers) else await self._others(call)
        heard = [] if reported is None else reported.clients
        if group.settings.consume_strategy == "exclusive":
            clients = client_views(self._meta, self._online, group.name)
        else:
            clients = seen_views(self._seen, group.name, heard)
        allocation = allocation_views(self._meta, group.name)
        wanted = {*allocation, *(topic for client in clients for topic in client.topics)}
        topics, members = list[GroupTopic](), list[GroupMember]()
        if group.is_broadcast:
            members = await self._members(group.name, reported)
        else:
            topics = await self._progress(group.name, wanted, None if reported is None else reported.lanes)
        settings = group.settings
        return GroupInfo(
            group=group.name,
            epoch=group.epoch,
            consume_strategy=settings.consume_strategy,
            allocation_strategy=settings.allocation_strategy,
            order=settings.order,
            consume_from=settings.consume_from.to_json(),
            max_attempts=settings.max_attempts,
            retry_policy=policy_to_json(settings.retry_policy),
            invisible_ms=settings.invisible_ms,
            created_time=moment(group.created_ms),
            paused=_pause_view(group.paused),
            clients=tuple(clients),
            allocation=allocation,
            topics=tuple(topics),
            members=tuple(members),
        )

    async def _members(self, group: str, reported: _Reported | None) -> list[GroupMember]:
        """Return the clients of a broadcast group that have progress, sorted."""
        members = []
        elsewhere = {} if reported is None else reported.members
        for member in sorted(self._lanes.members_of(group) | elsewhere.keys()):
            others = None if reported is None else elsewhere.get(member, Others())
            progress = await self._progress(member, set(), others)
            parts = split_member(member)
            if progress and parts is not None:
                lag = sum(topic.lag for topic in progress)
                members.append(GroupMember(group=member, client_id=parts[1], lag=lag, topics=tuple(progress)))
        return members

    async def _progress(self, group: str, wanted: Collection[str], others: Others | None) -> list[GroupTopic]:
        """Return the progress in the topics `wanted`, and in those that the group has touched, by name."""
        topics = []
        touched, reported = self._lanes.topics_of(group), others.topics if others is not None else set()
        for topic in sorted(self._meta.now.topics.topics.values(), key=lambda topic: topic.name):
            if topic.id not in touched and topic.name not in wanted and topic.name not in reported:
                continue
            try:
                consumed = topic.name not in wanted
                lanes = await self._views.of(group, topic, consumed=consumed, others=others)
            except NotFound:  # the topic was deleted meanwhile
                continue
            if lanes:
                lag = sum(lane.lag or 0 for lane in lanes)
                topics.append(GroupTopic(topic=topic.name, lag=lag, partitions=tuple(lanes)))
        return topics

    async def _others(self, call: Call) -> _Reported:
        """Return what other processes know of the group; processes that cannot be reached are left out."""
        reported = _Reported(Others(), [], {})
        if not self._hosting.alone:
            brokers = self._meta.now.brokers.brokers
            for answer in await ask_others(self._owners, brokers, call, GroupInfo, all_of_them=False):
                for topic in answer.topics:
                    reported.lanes.add(topic.topic, topic.partitions)
                for member in answer.members:
                    for topic in member.topics:
                        reported.members.setdefault(member.group, Others()).add(topic.topic, topic.partitions)
                reported.clients.extend(answer.clients)
        return reported


async def _views_of(service: Running) -> GroupViews:
    return GroupViews(
        service.meta,
        service.lanes,
        service.hosting,
        service.owners,
        LaneViews(service.lanes, service.hosting, service.topics, service.moved),
        online=service.online,
        seen=service.seen,
    )


Views = Annotated[GroupViews, Depends(_views_of)]


@router.get(
    "",
    summary="Names of all groups, or a page of them",
    responses=answers(GroupList, 400, 422, 500),
)
async def list_groups(service: Running, caller: Asking, limit: Limit = None, after: After = None) -> Response:
    names, following = page(filter(caller.filter("group", "describe"), service.groups.state.groups), limit, after)
    return json_answer(GroupList(groups=names, next=following))


@router.get("/{group}", summary="One group with its progress", responses=answers(GroupInfo, 400, 404, 500, 503))
async def show_group(group: ReaderName, service: Running, caller: Asking, views: Views, request: Request) -> Response:
    # the lanes of brokers that this process no longer serves would be left out, as if the group had nothing to do
    service.hosting.check_lease()
    shown = await views.of(await service.groups.reader(group), Call.of(request.scope))
    return json_answer(_describable(shown, caller.filter("topic", "describe")))


@router.put(
    "/{group}",
    summary="Create or change a group",
    responses=answers_or_makes(GroupInfo, 400, 409, 413, 415, 422, 500, 507),
    openapi_extra=_PUT.described,
)
async def put_group(group: GroupName, service: Running, caller: Asking, views: Views, request: Request) -> Response:
    check_group(group)
    wanted = GroupRequest.from_json(msgspec.to_builtins(await _PUT.read(request)), service.invisible)
    known_group, created = await service.groups.put(group, wanted)
    asked = Call.of(request.scope)
    call = Call.on_behalf("GET", asked.target.decode("ascii"), asked.headers)
    shown = _describable(await views.of(known_group, call), caller.filter("topic", "describe"))
    return json_answer(shown, 201 if created else 200)


@router.post(
    "/{group}/pause",
    summary="Deliver nothing to a group until it is resumed",
    responses=answers(GroupInfo, 400, 404, 409, 413, 415, 422, 500, 507),
    openapi_extra=_PAUSE.described,
)
async def pause_group(group: GroupName, service: Running, caller: Asking, views: Views, request: Request) -> Response:
    pause = Pause(check_reason((await _PAUSE.read(request)).reason or ""), service.now_ms(), caller.name)
    known_group = await service.groups.pause(check_group(group), pause)
    return json_answer(await _told(known_group, service.owners, service.meta, caller, views, request))


@router.post(
    "/{group}/resume",
    summary="Deliver messages to a paused group again",
    responses=answers(GroupInfo, 400, 404, 409, 500, 507),
)
async def resume_group(group: GroupName, service: Running, caller: Asking, views: Views, request: Request) -> Response:
    known_group = await service.groups.pause(check_group(group), None)
    return json_answer(await _told(known_group, service.owners, service.meta, caller, views, request))


async def _told(
    group: Group, owners: Owners, meta: HostedMeta, caller: Caller, views: GroupViews, request: Request
) -> GroupInfo:
    """Let the processes that deliver a group's messages know of its change, and return its view."""
    call = Call.on_behalf("GET", f"{router.prefix}/{quote(group.name)}", request.scope["headers"])
    await owners.tell(meta.now.brokers.brokers, call)
    return _describable(await views.of(group, call), caller.filter("topic", "describe"))


def _describable(shown: GroupInfo, may: Callable[[str], bool] | None) -> GroupInfo:
    if may is None:
        return shown
    return replace(
        shown,
        allocation={topic: allocation for topic, allocation in shown.allocation.items() if may(topic)},
        topics=tuple(topic for topic in shown.topics if may(topic.topic)),
        clients=tuple(
            replace(client, topics={topic: how for topic, how in client.topics.items() if may(topic)})
            for client in shown.clients
        ),
        members=tuple(
            replace(member, topics=tuple(topic for topic in member.topics if may(topic.topic)))
            for member in shown.members
        ),
    )


@router.delete(
    "/{group}",
    summary="Delete a group with its progress, retries and dead letters; or a broadcast client's progress",
    status_code=204,
    responses=problems(400, 404, 500, 507),
)
async def delete_group(group: ReaderName, service: Running) -> None:
    await service.groups.delete(group)
    service.seen.forget(group)
    service.statistics.forget(group)


def client_views(meta: HostedMeta, online: OnlineClients, group: str) -> list[GroupClient]:
    """Return the clients of an exclusive group, sorted."""
    clients = meta.now.online.group(group).clients
    return [
        GroupClient(
            client_id=client.id,
            online=not client.leaving,
            topics={topic: _subscribed(want) for topic, want in client.topics.items()},
            since_time=moment(client.since_ms),
            authorized_ms=online.authorized_ms(Member(group, client.id, client.joined)),
        )
        for _, client in sorted(clients.items())
    ]


def _subscribed(subscription: Subscription) -> ClientSubscription:
    return ClientSubscription(order=subscription.order, tags=subscription.tags, filter=subscription.filter)


def _pause_view(pause: Pause | None) -> GroupPause | None:
    if pause is None:
        return None
    return GroupPause(reason=pause.reason, since_time=moment(pause.since_ms), by=pause.by)


def seen_views(seen_here: SeenClients, group: str, others: Iterable[GroupClient]) -> list[GroupClient]:
    """Return the clients of a shared group, sorted: the ones that this process has heard of, and `others`."""
    by_id = {other.client_id: other for other in others}
    for client, seen in seen_here.of(group).items():
        reported = by_id.get(client)
        since = moment(seen.since_ms)
        by_id[client] = GroupClient(
            client_id=client,
            online=True,
            topics={
                **(reported.topics if reported is not None else {}),
                **{topic: _subscribed(want) for topic, want in seen.topics.items()},
            },
            since_time=since if reported is None else min(since, reported.since_time),
            authorized_ms=None,
        )
    return [view for _, view in sorted(by_id.items())]


def allocation_views(meta: HostedMeta, group: str) -> dict[str, GroupAllocation]:
    """Return the allocation of each topic of an exclusive group."""
    topics = meta.now.online.group(group).topics
    return {
        topic: GroupAllocation(
            epoch=allocation.epoch, clients={client: list(names) for client, names in allocation.owners.items()}
        )
        for topic, allocation in sorted(topics.items())
    }
