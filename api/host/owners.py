"""Requests that concern brokers of several processes: each part is answered by the process that serves its broker.

    handles --by broker--> ours: answered here     theirs: forwarded as requests     --> one answer

Every process of the warehouse can verify handles, since all share the secret; this one refuses forged handles.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, Self, TypeVar

import msgspec

from deltamq.api.auth.caller import EVERYBODY, Caller
from deltamq.api.host.hosting import Hosting
from deltamq.api.host.peers import Call, Peer, Peers, json_of, unreadable
from deltamq.api.wire.answer import Answer
from deltamq.mq.errors import DeltaMQError, Forbidden, Unavailable
from deltamq.mq.names import broker_of
from deltamq.mq.queue.handle import HandleKeys, claimed_topics, open_handles
from deltamq.mq.wire.cluster import Readiness
from deltamq.mq.wire.pop import FailedHandle

T = TypeVar("T")

_PROBLEM: Final = frozenset({"type", "title", "status", "detail", "code", "field"})
#: How long `tell` waits for a process, in seconds.
_TELL_S: Final = 2.0


class Relayed(DeltaMQError):
    """A problem that another process answered with, to be passed on as it is."""

    retry_after_s: int | None = None

    @classmethod
    def of(cls, answer: Answer) -> Self:
        """Return the problem in the other process's answer.

        Raises
        ------
        Unavailable
            The answer is no problem; see `json_of`.
        """
        problem = json_of(answer.body, dict[str, Any], status=answer.status)
        extra = {name: value for name, value in problem.items() if name not in _PROBLEM}
        after = dict(answer.headers).get(b"retry-after")
        try:
            relayed = cls(problem["detail"], code=problem["code"], field=problem.get("field"), extra=extra)
            relayed.retry_after_s = None if after is None else int(after)
        except (KeyError, ValueError) as error:
            raise unreadable(answer.status) from error
        relayed.status = answer.status
        return relayed


class Split(msgspec.Struct):
    """Positions in a list of handles, by the process that answers for them."""

    ours: list[int] = msgspec.field(default_factory=list)
    theirs: dict[Peer, list[int]] = msgspec.field(default_factory=dict)


class Owners:
    """Finds the processes that own parts of a request, and asks them; used on the event loop."""

    def __init__(self, hosting: Hosting, peers: Peers, keys: HandleKeys) -> None:
        self._hosting = hosting
        self._peers = peers
        self._keys = keys

    def of(self, broker: str, call: Call) -> Peer | None:
        """Return the process that serves the broker; None for this one. Raises as `Peers.of` does."""
        return self._peers.of(broker, call)

    def of_any(self, brokers: Iterable[str], call: Call) -> Peer | None:
        """Return a process that serves one of the brokers; None for this one. Raises as `of` does."""
        brokers = list(brokers)
        if any(map(self._hosting.hosts, brokers)):
            return None
        reachable = [broker for broker in brokers if self._hosting.owner(broker) is not None]
        return self.of(random.choice(reachable or brokers), call)

    def split(self, group: str, handles: Sequence[str], call: Call) -> Split:
        """Group the handles by the process that answers for them. Raises as `of` does."""
        if not handles or self._hosting.alone:
            return Split(ours=list(range(len(handles))))
        opened, invalid = open_handles(self._keys, group, handles)
        split = Split(ours=list(invalid))
        for claim in opened:
            broker = broker_of(claim.lease.partition)
            peer = self.of(broker, call)
            positions = split.ours if peer is None else split.theirs.setdefault(peer, [])
            positions += claim.positions
        split.ours.sort()
        return split

    def allowed(self, group: str, handles: list[str], caller: Caller) -> tuple[list[str], list[FailedHandle]]:
        """Return the handles that the caller may use, and those whose topics it may no longer consume."""
        if caller is EVERYBODY or not handles:
            return handles, []
        if all(caller.allows("topic", topic, "subscribe") for topic in claimed_topics(handles)):
            return handles, []  # forged handles are refused where they are used
        opened, _ = open_handles(self._keys, group, handles)
        barred = {
            at
            for claim in opened
            if not caller.allows("topic", claim.lease.topic, "subscribe")
            for at in claim.positions
        }
        if not barred:
            return handles, []
        left = [handle for at, handle in enumerate(handles) if at not in barred]
        return left, [FailedHandle(handles[at], Forbidden.code) for at in sorted(barred)]

    async def ask(self, peer: Peer, call: Call, kind: type[T]) -> T:
        """Ask another process, and return its JSON answer as this `kind`.

        Raises
        ------
        Relayed
            The answer is a problem.
        Unavailable
            The answer is not DeltaMQ's; also raises as `Peers.ask` does.
        """
        answer = await self._peers.ask(peer.host, peer.address, call)
        if answer.status != 200:
            raise Relayed.of(answer)
        return json_of(answer.body, kind)

    async def tell(self, brokers: Iterable[str], call: Call) -> None:
        """Let the processes that serve these brokers read the metadata as far as this one has.

        A process that cannot be reached reads it later by itself. `call` is the request that changed the metadata.
        """
        peers: set[Peer] = set()
        for broker in brokers:
            with contextlib.suppress(Unavailable):
                peer = self.of(broker, call)
                if peer is not None:
                    peers.add(peer)
        ready = Call("GET", b"/readyz", [], b"", _TELL_S)
        await asyncio.gather(*(self.ask(peer, ready, Readiness) for peer in peers), return_exceptions=True)

    async def ask_all(
        self, theirs: Mapping[Peer, Sequence[int]], call: Call, body: Mapping[str, Any]
    ) -> list[dict[str, Any]]:
        """Ask each process with its part of `body["handles"]`, and return the answers.

        Raises
        ------
        DeltaMQError
            One process did not succeed. Others may have applied their parts: repeating the whole request is safe.
        """
        handles = body["handles"]
        asking = [
            self.ask(
                peer,
                call._replace(body=msgspec.json.encode({**body, "handles": [handles[at] for at in places]})),
                dict[str, Any],
            )
            for peer, places in theirs.items()
        ]
        return await together(asking)


async def together(asking: Sequence[Any]) -> list[Any]:
    """Wait until all of `asking` have ended; return the results, or raise the first failure."""
    done = await asyncio.gather(*asking, return_exceptions=True)
    for result in done:
        if isinstance(result, BaseException):
            raise result
    return done


def failed_of(answers: Sequence[Mapping[str, Any]]) -> list[FailedHandle]:
    """Return the handles that other processes refused."""
    return [FailedHandle(failed["handle"], failed["code"]) for answer in answers for failed in answer["failed"]]
