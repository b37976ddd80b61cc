"""`POST /v1/groups/{group}/ack`, `/invisible`, `/nack`, `/dead`: what becomes of messages that a group holds.

Each handle of a call has its own outcome; handles of other processes' brokers are forwarded there (see
`api.host.owners`). The answer comes when everything is stored that must be.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from api.host import Call, failed_of, together
from api.queue import Fate
from api.service import Service
from api.wire import BODY_BYTES_MAX, Answer, Headers, Receive, Scope, decode, headers_of, parse_query, read_body
from mq.errors import Conflict, Refused
from mq.meta import Group
from mq.queue import Dead, Handle, after_failure, check_reason, wait_ms
from mq.queue_limits import ORDERED_REVIVE_QUEUE
from mq.wire import (
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

__all__ = ["CALLS", "answer_handles"]

Count = Annotated[int, Meta(ge=0)]

_ack: Final = msgspec.json.Decoder(AckRequest)
_invisible: Final = msgspec.json.Decoder(InvisibleRequest)
_nack: Final = msgspec.json.Decoder(NackRequest)
_dead: Final = msgspec.json.Decoder(DeadRequest)


async def answer_handles(service: Service, call: bytes, group_name: str, scope: Scope, receive: Receive) -> Answer:
    """Answer one of the calls."""
    parse_query(scope["query_string"], ())
    headers = headers_of(scope)
    within_ms = service.settings.request_ms
    with service.pops.enter() as reserved:
        body = await read_body(headers, receive, reserved, limit=BODY_BYTES_MAX, within_ms=within_ms)
        group = service.groups.find(group_name) or await service.groups.require(group_name)
        answer = msgspec.json.encode(await CALLS[call](service, group, headers, Call.of(scope, body)))
    return Answer(200, [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(answer))], answer)


async def _everywhere(
    service: Service,
    group: Group,
    call: Call,
    request: AckRequest | NackRequest | DeadRequest,
    here: Callable[[Sequence[str]], Awaitable[Mapping[int, str]]],
) -> list[FailedHandle]:
    """Run `here` for handles of our brokers, forward the others to their processes; return the refused handles.

    `here` returns the codes of the handles that it refuses, by position.
    """
    handles = request.handles
    split = service.owners.split(group.name, handles, call)
    if not split.theirs:
        return _failed(handles, await here(handles))
    ours = [handles[at] for at in split.ours]
    asking = service.owners.ask_all(split.theirs, call, msgspec.to_builtins(request))
    failed, answers = await together([here(ours), asking])
    return _failed(ours, failed) + failed_of(answers)


async def _on_ack(service: Service, group: Group, headers: Headers, call: Call) -> AckAnswer:
    request = decode(_ack, headers, call.body)

    async def here(handles: Sequence[str]) -> Mapping[int, str]:
        failed = await service.handles.finish(service.handles.begin_ack(group.name, handles))
        service.metrics.acked_messages[group.name] += len(handles) - len(failed)
        return failed

    failed = await _everywhere(service, group, call, request, here)
    return AckAnswer(len(request.handles) - len(failed), failed)


async def _on_invisible(service: Service, group: Group, headers: Headers, call: Call) -> InvisibleAnswer:
    request = decode(_invisible, headers, call.body)
    fate = Fate(service.invisible.check(request.invisible_ms, zero=True))
    for peer in service.owners.split(group.name, [request.handle], call).theirs:
        return InvisibleAnswer((await service.owners.ask(peer, call))["handle"])
    failed, renewed = await service.handles.change(group, [request.handle], lambda _: fate)
    if failed:
        raise _refused(failed[0])
    return InvisibleAnswer(renewed[0])


def _refused(code: str) -> Refused | Conflict:
    """Return the error for a call whose only handle is refused."""
    if code == "handle_invalid":
        return Refused("handle: not a handle of this group", code=code, field="handle")
    return Conflict(
        "handle: the message is acknowledged, delivered again, or has a newer handle", code=code, field="handle"
    )


async def _on_nack(service: Service, group: Group, headers: Headers, call: Call) -> NackAnswer:
    request = decode(_nack, headers, call.body)
    if request.delay_ms is not None:
        service.invisible.check(request.delay_ms, field="delay_ms", zero=True)

    def decide(handle: Handle) -> Fate:
        return _after_failure(service, group, handle, request.delay_ms)

    async def here(handles: Sequence[str]) -> Mapping[int, str]:
        failed, _ = await service.handles.change(group, handles, decide)
        service.metrics.nacked_messages[group.name] += len(handles) - len(failed)
        return failed

    failed = await _everywhere(service, group, call, request, here)
    return NackAnswer(len(request.handles) - len(failed), failed)


def _after_failure(service: Service, group: Group, handle: Handle, delay_ms: int | None) -> Fate:
    """Redeliver by the retry policy, or dead-letter after the last attempt; a strict topic in order has no last one."""
    settings, attempt, lease = group.settings, handle.attempt, handle.lease
    topic = service.lanes.topic(lease.topic)
    in_place = lease.revive_queue == ORDERED_REVIVE_QUEUE and topic and topic.settings.order_strategy == "strict"
    draw = random.random()
    if not in_place:
        after = after_failure(settings.retry_policy, attempt=attempt, max_attempts=settings.max_attempts, draw=draw)
        if isinstance(after, Dead):
            return Fate(0, after.reason)
    return Fate(wait_ms(settings.retry_policy, attempt, draw) if delay_ms is None else delay_ms)


async def _on_dead(service: Service, group: Group, headers: Headers, call: Call) -> DeadAnswer:
    request = decode(_dead, headers, call.body)
    fate = Fate(0, check_reason(request.reason))

    async def here(handles: Sequence[str]) -> Mapping[int, str]:
        failed, _ = await service.handles.change(group, handles, lambda _: fate)
        service.metrics.condemned_messages[group.name] += len(handles) - len(failed)
        return failed

    failed = await _everywhere(service, group, call, request, here)
    return DeadAnswer(len(request.handles) - len(failed), failed)


def _failed(handles: Sequence[str], failed: Mapping[int, str]) -> list[FailedHandle]:
    return [FailedHandle(handles[position], code) for position, code in sorted(failed.items())]


_Call = Callable[[Service, Group, Headers, Call], Awaitable[msgspec.Struct]]
#: The calls with handles, by the last segment of the path.
CALLS: Final[dict[bytes, _Call]] = {b"ack": _on_ack, b"invisible": _on_invisible, b"nack": _on_nack, b"dead": _on_dead}
