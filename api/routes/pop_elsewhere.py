"""Pops of brokers that another process serves, and acknowledgements in a pop that concern other processes.

    acks of third processes, and ours --> done first    then the pop with the acks that are its own --> its answer

Handles that were refused before are added to that answer.

A logical queue of a static topic may have segments at several processes. A pop of the queue goes to processes with
closed segments that its group is not done with, in the order of the segments, and last to the process of its leader:

    0@__logical_queue_broker__   #0@a finished   #4@b 20 left   #9@c leader       stations: b       last: c, and waits
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

import msgspec
import pyarrow as pa

from deltamq.api.auth.caller import Caller
from deltamq.api.host.clusters import ClusterHandles, from_cluster
from deltamq.api.host.hosting import Hosting
from deltamq.api.host.owners import Owners, failed_of
from deltamq.api.host.peers import Call, Peer, Peers, is_forwarded, json_of
from deltamq.api.queue.handle_calls import HandleCalls
from deltamq.api.queue.lanes import Lanes
from deltamq.api.queue.moved_progress import MovedProgress
from deltamq.api.queue.pop_requests import ARROW_TYPE, TopicPopRequest
from deltamq.api.wire.answer import Answer
from deltamq.api.wire.request import Admission, Client
from deltamq.mq.errors import DeltaMQError, Unavailable, Unknown
from deltamq.mq.limits import MESSAGE_BYTES_MAX
from deltamq.mq.names import broker_of
from deltamq.mq.static.logical_queue import LogicalQueue, TopicQueues
from deltamq.mq.wire.pop import FAILED_KEY, FailedHandle, PopRequest

#: How long a pop waits at another process before it looks again: at its client, which may have gone, and at closed
#: segments that other processes serve.
STATION_MS: Final = 1_000
#: Seconds for which a pop waits until another cluster has acknowledged its messages.
_ACK_S: Final = 5.0

_OK: Final = 200
_REFUSED: Final = msgspec.json.Decoder(list[FailedHandle])


class _Passed(msgspec.Struct):
    """A pop's answer whose messages are passed on as they are."""

    messages: msgspec.Raw
    pop_time: str
    invisible_ms: int
    rest: int
    failed_acks: list[FailedHandle] = []


class Way(NamedTuple):
    """The processes that a pop visits; None stands for this one."""

    #: The processes that are asked first, without a wait.
    stations: tuple[Peer | None, ...]
    last: Peer | None


class PopForwarder:
    """Forwards pops, and acknowledgements in pops, to the processes that they concern; used on the event loop."""

    def __init__(
        self,
        owners: Owners,
        peers: Peers,
        handles: HandleCalls,
        *,
        hosting: Hosting,
        lanes: Lanes,
        progress: MovedProgress,
        clusters: ClusterHandles,
        is_stopping: Callable[[], bool],
        answers: Admission,
    ) -> None:
        """`progress` knows how far groups are at brokers that other processes serve; `answers` bounds their answers.

        While it `is_stopping`, the service lets no pop wait.
        """
        self._is_stopping = is_stopping
        self._answers = answers
        self._clusters = clusters
        self._owners = owners
        self._peers = peers
        self._handles = handles
        self._hosting = hosting
        self._lanes = lanes
        self._progress = progress

    def allowed(self, group: str, handles: list[str], caller: Caller) -> tuple[list[str], list[FailedHandle]]:
        """Return the handles that the caller may acknowledge, and the others."""
        return self._owners.allowed(group, handles, caller)

    async def ack_in_clusters(self, handles: list[str], call: Call) -> tuple[list[str], list[FailedHandle]]:
        """Acknowledge the handles that other clusters gave; return this cluster's handles, and those that were refused.

        A cluster that is away holds up no pop: its handles are refused with the code `queue_unserved`, and their
        messages are delivered again unless they are acknowledged later.
        """
        ours, theirs = self._clusters.split(handles, call)
        refused: list[FailedHandle] = []
        for cluster, given in theirs.items():
            try:
                ack = _ack_of(call)._replace(timeout_s=_ACK_S)
                refused += await self._clusters.ask_all({cluster: given}, ack, {"handles": given})
            except DeltaMQError as error:
                is_away = isinstance(error, Unavailable | Unknown)
                refused += [FailedHandle(handle, "queue_unserved" if is_away else error.code) for handle in given]
        return ours, refused

    # The way.

    async def way(self, wanted: TopicPopRequest, queues: TopicQueues | None, call: Call) -> Way:
        """Return the processes that the pop visits; `queues` are a static topic's. Raises what `Owners.of` does.

        A pop that was sent on stays where it is.
        """
        queue = None if queues is None or wanted.partition is None else queues.find(wanted.partition)
        if queue is not None:
            names = [segment.partition for segment in queue.segments]
        elif wanted.partition is not None:
            names = [wanted.partition]
        else:
            names = list(wanted.topic.route.partitions)
        brokers = list(dict.fromkeys(map(broker_of, names)))
        if queues is None or is_forwarded(call.headers):
            return Way((), self._owners.of_any(brokers, call))
        if queue is not None:
            return await self._way_of(queue, wanted, queues, call)
        if from_cluster(call.headers):
            return self._way_through(brokers, call)
        # A process that serves only closed segments gives what is left there, and then what the leaders have.
        leading = list(dict.fromkeys(served.leader.broker for served in queues.served.values())) or brokers
        last = self._owners.of_any(leading, call)
        is_here = last is not None and any(map(self._hosting.hosts, brokers))
        return Way((None,) if is_here else (), last)

    def _way_through(self, brokers: Sequence[str], call: Call) -> Way:
        """Return a way through all processes that serve these brokers: another cluster asks one of them for all."""
        peers: dict[Peer | None, None] = {}
        for broker in brokers:
            with contextlib.suppress(DeltaMQError):
                peers[self._owners.of(broker, call)] = None
        if not peers:
            return Way((), self._owners.of_any(brokers, call))
        *stations, last = random.sample(list(peers), len(peers))
        return Way(tuple(stations), last)

    async def _way_of(self, queue: LogicalQueue, wanted: TopicPopRequest, queues: TopicQueues, call: Call) -> Way:
        last = self._owners.of(queue.leader.broker, call)
        stations: dict[Peer | None, None] = {}
        group_topic = self._lanes.group_topic(wanted.topic, wanted.group)
        for visit in list(group_topic.segment_lanes(queues, queue.name)):
            if visit.key.partition == queue.leader.partition:
                continue
            # A segment that no process serves at the moment, or that cannot be read, is asked for by the next pop.
            with contextlib.suppress(DeltaMQError):
                process = self._owners.of(visit.broker, call)
                if process == last or process in stations:
                    continue
                if await self._progress.is_left(visit):
                    stations[process] = None
                elif visit.end_offset is not None:
                    group_topic.finish(visit)
        return Way(tuple(stations), last)

    # Pops and acknowledgements elsewhere.

    async def forward(
        self, request: PopRequest, group: str, peer: Peer | None, call: Call, client: Client
    ) -> tuple[Answer | None, list[str], list[FailedHandle]]:
        """Do what other processes must do for a pop that `peer` answers, or this process.

        Returns
        -------
        tuple
            The answer of `peer`, None if there is none; the handles that are left to acknowledge here; and those that
            were refused.
        """
        handles, refused = await self._ack(group, request.ack or [], call, peer)
        if peer is None:
            return None, handles, refused
        return await self._pop(peer, msgspec.structs.replace(request, ack=handles), call, client), [], refused

    async def ack_all(self, group: str, handles: list[str], call: Call) -> list[FailedHandle]:
        """Acknowledge handles of all processes, this one included; return those that were refused."""
        ours, refused = await self._ack(group, handles, call, None)
        failed = await self._handles.finish(self._handles.begin_ack(group, ours))
        return refused + [FailedHandle(ours[at], code) for at, code in sorted(failed.items())]

    async def ask(self, peer: Peer, request: PopRequest, call: Call, client: Client, *, wait_ms: int) -> Answer:
        """Return what another process answers to a pop that waits there for `wait_ms`, and acknowledges nothing."""
        return await self._pop(peer, msgspec.structs.replace(request, ack=[], wait_ms=wait_ms), call, client)

    async def _ack(
        self, group: str, handles: list[str], call: Call, peer: Peer | None
    ) -> tuple[list[str], list[FailedHandle]]:
        """Acknowledge the handles that the process which answers the pop, `peer` or this one, does not own.

        Returns
        -------
        tuple
            The handles that are left for that process, and those that were refused.
        """
        split = self._owners.split(group, handles, call)
        left = split.ours if peer is None else split.theirs.pop(peer, [])
        refused: list[FailedHandle] = []
        if peer is not None and split.ours:
            ours = [handles[at] for at in split.ours]
            failed = await self._handles.finish(self._handles.begin_ack(group, ours))
            refused += [FailedHandle(ours[at], code) for at, code in sorted(failed.items())]
        if split.theirs:
            refused += failed_of(await self._owners.ask_all(split.theirs, _ack_of(call), {"handles": handles}))
        return [handles[at] for at in left], refused

    async def _pop(self, peer: Peer, request: PopRequest, call: Call, client: Client) -> Answer:
        """Return what another process answers to a pop; it may be asked to wait several times.

        A pop that is under way there is not cancelled: what it found would be hidden for its invisible time.

        Raises
        ------
        Overloaded
            There is no room for the answer, and the other process was not asked (again).
        """
        loop = asyncio.get_running_loop()
        left_ms = request.wait_ms or 0
        deadline = loop.time() + left_ms / 1000
        while True:
            request = msgspec.structs.replace(request, wait_ms=min(left_ms, STATION_MS))
            # Later is too late: the messages of its answer are hidden then, and a refused client would not get them.
            self._answers.check_room(MESSAGE_BYTES_MAX)
            answer = await self._peers.ask(peer.host, peer.address, call.with_json(msgspec.json.encode(request)))
            is_last = request.wait_ms == left_ms or client.gone.done() or self._is_stopping()
            if is_last or answer.status != _OK or has_messages(answer) or _has_refused(answer):
                return answer
            request.ack = []
            left_ms = max(0, int((deadline - loop.time()) * 1000))


def _ack_of(call: Call) -> Call:
    # The target is /v1/groups/{group}/topics/{topic}/pop.
    target = b"/".join([*call.target.split(b"/")[:4], b"ack"])
    return Call.on_behalf("POST", target.decode("ascii"), call.headers)._replace(principal=call.principal)


def has_messages(answer: Answer) -> bool:
    """Whether another process's answer to a pop has messages."""
    if answer.status != _OK:
        return False
    assert isinstance(answer.body, bytes), "answers of other processes are whole"
    if dict(answer.headers).get(b"content-type") == ARROW_TYPE.encode():
        with pa.ipc.open_stream(answer.body) as reader:
            return any(batch.num_rows for batch in reader)
    return bytes(json_of(answer.body, _Passed).messages) != b"[]"


def _has_refused(answer: Answer) -> bool:
    assert isinstance(answer.body, bytes), "answers of other processes are whole"
    headers = dict(answer.headers)
    if headers.get(b"content-type") == ARROW_TYPE.encode():
        return headers.get(b"mq-failed", b"0") != b"0"
    return bool(json_of(answer.body, _Passed).failed_acks)


def with_refused(answer: Answer, refused: Sequence[FailedHandle]) -> Answer:
    """Return another process's answer to a pop, with the handles that were refused before added."""
    if not refused or answer.status != _OK:
        return answer
    assert isinstance(answer.body, bytes), "answers of other processes are whole"
    if dict(answer.headers).get(b"content-type") == ARROW_TYPE.encode():
        body, count = _arrow_with_refused(answer.body, refused)
        kept = [(name, value) for name, value in answer.headers if name not in (b"content-length", b"mq-failed")]
        return Answer(200, [*kept, (b"content-length", b"%d" % len(body)), (b"mq-failed", b"%d" % count)], body)
    passed = json_of(answer.body, _Passed)
    passed.failed_acks += refused
    body = msgspec.json.encode(passed)
    return Answer.of_json(body)


def _arrow_with_refused(stream: bytes, refused: Sequence[FailedHandle]) -> tuple[bytes, int]:
    """Return the stream with the refused handles added to its schema's metadata, and the number of all there."""
    with pa.ipc.open_stream(stream) as reader:
        table = reader.read_all()
    before = (table.schema.metadata or {}).get(FAILED_KEY)
    failed = [*(_REFUSED.decode(before) if before is not None else []), *refused]
    schema = table.schema.with_metadata({FAILED_KEY: msgspec.json.encode(failed)})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema) as writer:
        for batch in table.to_batches():
            writer.write_batch(pa.RecordBatch.from_arrays(batch.columns, schema=schema))
    return sink.getvalue().to_pybytes(), len(failed)
