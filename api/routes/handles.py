"""`POST /v1/groups/{group}/ack`, `/invisible`, `/nack`, `/dead`: what becomes of messages that a group holds.

Each handle of a call has its own outcome; handles of other processes' brokers are forwarded there (see
`api.host.owners`), and so are handles that another cluster gave (`api.host.clusters`). The answer comes when
everything is stored that must be.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final, NamedTuple

import msgspec

from deltamq.api.auth.caller import Caller, caller_of
from deltamq.api.host.clusters import ClusterHandles, Clusters
from deltamq.api.host.hosted_group import Groups
from deltamq.api.host.owners import Owners, failed_of, together
from deltamq.api.host.peers import Call
from deltamq.api.log.metrics import Metrics
from deltamq.api.queue.handle_calls import Disposition, HandleCalls
from deltamq.api.queue.lanes import Lanes
from deltamq.api.statistics import Outcome
from deltamq.api.wire.answer import Answer
from deltamq.api.wire.json_body import BODY_BYTES_MAX, decode
from deltamq.api.wire.request import Admission, Headers, Receive, Scope, headers_of, parse_query, read_body, unquoted
from deltamq.mq.errors import Conflict, Forbidden, Refused
from deltamq.mq.limits import ORDERED_REVIVE_QUEUE
from deltamq.mq.meta.group import Group
from deltamq.mq.meta.group_settings import InvisibleBounds
from deltamq.mq.meta.topics import Topic
from deltamq.mq.queue.handle import Handle, cluster_of_handle, handle_of_cluster
from deltamq.mq.queue.retry import Dead, after_failure, check_reason, wait_ms
from deltamq.mq.wire.pop import (
    AckAnswer,
    AckRequest,
    DeadAnswer,
    DeadRequest,
    FailedHandle,
    InvisibleAnswer,
    InvisibleRequest,
    NackAnswer,
    NackRequest,
)

_ack: Final = msgspec.json.Decoder(AckRequest)
_invisible: Final = msgspec.json.Decoder(InvisibleRequest)
_nack: Final = msgspec.json.Decoder(NackRequest)
_dead: Final = msgspec.json.Decoder(DeadRequest)


class Asked(NamedTuple):
    """One request."""

    group: str
    headers: Headers
    call: Call
    caller: Caller


class HandlesEndpoint:
    """Calls with handles of all groups; used on the event loop."""

    def __init__(
        self,
        groups: Groups,
        handles: HandleCalls,
        owners: Owners,
        lanes: Lanes,
        clusters: Clusters,
        metrics: Metrics,
        *,
        admission: Admission,
        invisible: InvisibleBounds,
        within_ms: int,
    ) -> None:
        """`admission` bounds bodies, which must be there `within_ms`; `lanes` knows the topics of handles.

        `clusters` are asked about handles that they gave.
        """
        self._groups = groups
        self._handles = handles
        self._owners = owners
        self._lanes = lanes
        self._elsewhere = ClusterHandles(clusters)
        self._here = clusters.here
        self._metrics = metrics
        self._admission = admission
        self._invisible = invisible
        self._within_ms = within_ms

    async def answer(self, call: bytes, group_segment: bytes, scope: Scope, receive: Receive) -> Answer:
        """Answer one of the `CALLS`."""
        group_name = unquoted(group_segment, "group")
        parse_query(scope["query_string"], ())
        headers = headers_of(scope)
        with self._admission.enter() as reserved:
            body = await read_body(headers, receive, reserved, limit=BODY_BYTES_MAX, within_ms=self._within_ms)
            asked = Asked(group_name, headers, Call.of(scope, body), caller_of(scope))
            answer = msgspec.json.encode(await CALLS[call](self, asked))
        return Answer.of_json(answer)

    async def ack(self, asked: Asked) -> AckAnswer:
        """Acknowledge messages."""
        request = decode(_ack, asked.headers, asked.call.body)

        async def here(group: Group, handles: Sequence[str]) -> Mapping[int, str]:
            failed = await self._handles.finish(self._handles.begin_ack(group.name, handles))
            self._metrics.acked_messages[group.name] += len(handles) - len(failed)
            return failed

        failed = await self._everywhere(asked, request, here)
        return AckAnswer(len(request.handles) - len(failed), failed)

    async def invisible(self, asked: Asked) -> InvisibleAnswer:
        """Change the invisible time of one message."""
        request = decode(_invisible, asked.headers, asked.call.body)
        disposition = Disposition(self._invisible.check(request.invisible_ms, zero=True))
        for cluster in self._elsewhere.split([request.handle], asked.call)[1]:
            body = msgspec.to_builtins(request)
            return InvisibleAnswer((await self._elsewhere.ask(cluster, asked.call, body))["handle"])
        group = await self._group(asked.group)
        _, barred = self._owners.allowed(group.name, [request.handle], asked.caller)
        if barred:
            raise Forbidden("handle: the topic of its message may not be consumed any more", field="handle")
        for peer in self._owners.split(group.name, [request.handle], asked.call).theirs:
            return await self._owners.ask(peer, asked.call, InvisibleAnswer)
        failed, renewed = await self._handles.change(group, [request.handle], lambda _: disposition)
        if failed:
            raise _refused(failed[0])
        names_cluster = bool(cluster_of_handle(request.handle))
        return InvisibleAnswer(handle_of_cluster(self._here, renewed[0]) if names_cluster else renewed[0])

    async def nack(self, asked: Asked) -> NackAnswer:
        """Give messages back as failed."""
        request = decode(_nack, asked.headers, asked.call.body)
        if request.delay_ms is not None:
            self._invisible.check(request.delay_ms, field="delay_ms", zero=True)

        async def here(group: Group, handles: Sequence[str]) -> Mapping[int, str]:
            def decide(handle: Handle) -> Disposition:
                return _after_failure(group, self._lanes.topic(handle.lease.topic), handle, request.delay_ms)

            failed, _ = await self._handles.change(group, handles, decide)
            self._metrics.nacked_messages[group.name] += len(handles) - len(failed)
            return failed

        failed = await self._everywhere(asked, request, here)
        return NackAnswer(len(request.handles) - len(failed), failed)

    async def dead(self, asked: Asked) -> DeadAnswer:
        """Send messages to the dead letters."""
        request = decode(_dead, asked.headers, asked.call.body)
        disposition = Disposition(0, check_reason(request.reason), Outcome.DEAD)

        async def here(group: Group, handles: Sequence[str]) -> Mapping[int, str]:
            failed, _ = await self._handles.change(group, handles, lambda _: disposition)
            self._metrics.condemned_messages[group.name] += len(handles) - len(failed)
            return failed

        failed = await self._everywhere(asked, request, here)
        return DeadAnswer(len(request.handles) - len(failed), failed)

    async def _everywhere(
        self,
        asked: Asked,
        request: AckRequest | NackRequest | DeadRequest,
        here: Callable[[Group, Sequence[str]], Awaitable[Mapping[int, str]]],
    ) -> list[FailedHandle]:
        """Run `here` for handles of our brokers, send the others to their processes and clusters; return the refused.

        `here` returns the codes of the handles that it refuses, by position.
        """
        ours, theirs = self._elsewhere.split(request.handles, asked.call)
        if not theirs:
            return await self._in_cluster(asked, request, ours, here)
        # The group may exist only in the other cluster.
        mine = [self._in_cluster(asked, request, ours, here)] if ours else []
        body = msgspec.to_builtins(request)
        refused = await together([self._elsewhere.ask_all(theirs, asked.call, body), *mine])
        return [handle for part in refused for handle in part]

    async def _in_cluster(
        self,
        asked: Asked,
        request: AckRequest | NackRequest | DeadRequest,
        handles: list[str],
        here: Callable[[Group, Sequence[str]], Awaitable[Mapping[int, str]]],
    ) -> list[FailedHandle]:
        """Do what `_everywhere` does, for handles that this cluster gave."""
        group = await self._group(asked.group)
        handles, barred = self._owners.allowed(group.name, handles, asked.caller)
        split = self._owners.split(group.name, handles, asked.call)
        if not split.theirs:
            return barred + _failed(handles, await here(group, handles))
        ours = [handles[at] for at in split.ours]
        body = {**msgspec.to_builtins(request), "handles": handles}
        failed, answers = await together([here(group, ours), self._owners.ask_all(split.theirs, asked.call, body)])
        return barred + _failed(ours, failed) + failed_of(answers)

    async def _group(self, name: str) -> Group:
        return self._groups.find(name) or await self._groups.require(name)


def _refused(code: str) -> Refused | Conflict:
    if code == "handle_invalid":
        return Refused("handle: not a handle of this group", code=code, field="handle")
    return Conflict(
        "handle: the message is acknowledged, delivered again, or has a newer handle", code=code, field="handle"
    )


def _after_failure(group: Group, topic: Topic | None, handle: Handle, delay_ms: int | None) -> Disposition:
    """Redeliver by the retry policy, or dead-letter after the last attempt; a strict topic in order has no last one."""
    settings, attempt = group.settings, handle.attempt
    is_ordered = handle.lease.revive_queue == ORDERED_REVIVE_QUEUE
    in_place = is_ordered and topic is not None and topic.settings.order_strategy == "strict"
    draw = random.random()
    if not in_place:
        after = after_failure(settings.retry_policy, attempt=attempt, max_attempts=settings.max_attempts, draw=draw)
        if isinstance(after, Dead):
            return Disposition(0, after.reason, Outcome.DEAD)
    wait = wait_ms(settings.retry_policy, attempt, draw) if delay_ms is None else delay_ms
    return Disposition(wait, outcome=Outcome.FAILED)


def _failed(handles: Sequence[str], failed: Mapping[int, str]) -> list[FailedHandle]:
    return [FailedHandle(handles[position], code) for position, code in sorted(failed.items())]


_Call = Callable[[HandlesEndpoint, Asked], Awaitable[msgspec.Struct]]
#: The calls with handles, by the last segment of the path.
CALLS: Final[dict[bytes, _Call]] = {
    b"ack": HandlesEndpoint.ack,
    b"invisible": HandlesEndpoint.invisible,
    b"nack": HandlesEndpoint.nack,
    b"dead": HandlesEndpoint.dead,
}
