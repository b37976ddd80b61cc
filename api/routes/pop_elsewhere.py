"""Pops of brokers that another process serves, and acknowledgements in a pop that concern other processes.

    acks of third processes, and ours --> done first    then the pop with the acks that are its own --> its answer

Handles that were refused before are added to that answer.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import msgspec
import pyarrow as pa

from api.host import Call, Owners, Peer, Peers, failed_of
from api.queue import ARROW_TYPE, HandleCalls
from api.wire import Answer, Client
from mq.wire import FAILED_KEY, FailedHandle, PopRequest

__all__ = [
    "PopForwarder",
]

_REFUSED: Final = msgspec.json.Decoder(list[FailedHandle])


class _Passed(msgspec.Struct):
    """A pop's answer whose messages are passed on as they are."""

    messages: msgspec.Raw
    pop_time: str
    invisible_ms: int
    rest: int
    failed_acks: list[FailedHandle] = []


class PopForwarder:
    """Forwards pops, and acknowledgements in pops, to the processes that they concern; used on the event loop."""

    def __init__(self, owners: Owners, peers: Peers, handles: HandleCalls) -> None:
        self._owners = owners
        self._peers = peers
        self._handles = handles

    async def forward(
        self, request: PopRequest, group: str, brokers: Iterable[str], call: Call, client: Client
    ) -> tuple[Answer | None, list[str], list[FailedHandle]]:
        """Do what other processes must do for a pop that visits `brokers`.

        Returns
        -------
        tuple
            The answer of the process that serves the brokers, None if it is this one; the handles that are left to
            acknowledge here; and those that were refused.
        """
        peer = self._owners.of_any(brokers, call)
        handles, refused = await self._ack(group, request.ack or [], call, peer)
        if peer is None:
            return None, handles, refused
        return await self._pop(peer, request, handles, refused, call, client), [], []

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
            # A pop's path is that of its group, its topic and the call.
            target = b"/".join([*call.target.split(b"/")[:4], b"ack"])
            ack = Call("POST", target, [(b"content-type", b"application/json")], b"")
            refused += failed_of(await self._owners.ask_all(split.theirs, ack, {"handles": handles}))
        return [handles[at] for at in left], refused

    async def _pop(
        self,
        peer: Peer,
        request: PopRequest,
        handles: list[str],
        refused: Sequence[FailedHandle],
        call: Call,
        client: Client,
    ) -> Answer:
        """Return the answer of `peer`, with the handles that were refused before added."""
        body = msgspec.json.encode(msgspec.structs.replace(request, ack=handles))
        headers = [one for one in call.headers if one[0] != b"content-type"] + [(b"content-type", b"application/json")]
        answer = await self._peers.ask(peer.host, peer.address, call._replace(body=body, headers=headers), client)
        return _with_refused(answer, refused) if refused and answer.status == 200 else answer


def _with_refused(answer: Answer, refused: Sequence[FailedHandle]) -> Answer:
    assert isinstance(answer.body, bytes), "answers of other processes are whole"
    if dict(answer.headers).get(b"content-type") == ARROW_TYPE.encode():
        body, count = _arrow_with_refused(answer.body, refused)
        kept = [(name, value) for name, value in answer.headers if name not in (b"content-length", b"mq-failed")]
        return Answer(200, [*kept, (b"content-length", b"%d" % len(body)), (b"mq-failed", b"%d" % count)], body)
    passed = msgspec.json.decode(answer.body, type=_Passed)
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
