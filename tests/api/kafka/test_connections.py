"""What the clients of connections hold while they wait, and what becomes of it when they go (SPEC KAFKA-6)."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections.abc import Awaitable

import numpy as np
import pyarrow as pa
import pytest

from deltamq.api.auth.quotas import Quotas
from deltamq.api.kafka.access.client_meters import ClientMeters
from deltamq.api.kafka.access.session import Session
from deltamq.api.kafka.calls.producing import Reply
from deltamq.api.kafka.messages.apis import Frame
from deltamq.api.kafka.messages.errors import ErrorCode
from deltamq.api.kafka.messages.group_messages import (
    DescribeGroupsRequest,
    GroupProtocol,
    JoinGroupRequest,
    ListGroupsRequest,
)
from deltamq.api.kafka.messages.log_messages import ProducePartition, ProduceRequest, ProduceTopic
from deltamq.api.kafka.records.columns import Records
from deltamq.api.kafka.records.encode import encode_records
from deltamq.api.kafka.server.arrival import Room
from deltamq.api.kafka.server.connection import IN_FLIGHT_MAX, Connection
from deltamq.api.sending.request_appender import INLINE_BYTES
from deltamq.api.wire.request import Admission, Ticket
from deltamq.mq.auth.state import AuthState
from deltamq.mq.limits import MIB
from deltamq.tables.config_sections import ServiceSettings
from tests.api.guarded import guarded
from tests.api.kafka.door import kafka_running
from tests.api.kafka.raw_client import RawClient, framed
from tests.api.running import until
from tests.free_ports import free_port

#: Few places for appends, so that a test can take them all.
PLACES = 16
#: ApiVersions 0, whole, and the first bytes of one of 60,000 bytes.
API_VERSIONS = struct.pack(">ihhih", 10, 18, 0, 1, -1)
ANNOUNCED = struct.pack(">ih", 60_000, 18)


def _append(topic: str, *values: bytes, acks: int = 1) -> ProduceRequest:
    times = np.full(len(values), 1_700_000_000_000, np.int64)
    rows = Records(pa.nulls(len(values), pa.binary()), pa.array(values, pa.binary()), None, times)
    batch = encode_records(rows, base_offset=0)
    return ProduceRequest(None, acks, 20_000, [ProduceTopic(name=topic, partitions=[ProducePartition(0, batch)])])


def _join(group: str) -> JoinGroupRequest:
    """A new member of a group, for which the others may wait as long as they like."""
    return JoinGroupRequest(
        group_id=group,
        session_timeout_ms=60_000,
        rebalance_timeout_ms=2**31 - 1,
        member_id="",
        protocol_type="consumer",
        protocols=[GroupProtocol("range", b"")],
    )


def test_kafka_06_who_is_not_known_and_only_announces_calls_holds_nothing(tmp_path, topic) -> None:
    port = free_port()
    with guarded(tmp_path, kafka_port=port, queue_requests_max=PLACES) as admin, contextlib.ExitStack() as stack:
        admin.put_topic(topic, partitions=1)
        caller = admin.caller(topic, ("topic", topic, "publish"))
        for _ in range(2 * PLACES):
            stranger = stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=30))
            stranger.sendall(API_VERSIONS + ANNOUNCED)
            assert stranger.recv(1), "the first call is answered, so the second one was seen"
        assert admin.send(topic, "over REST").status == 200
        assert admin.service.admission.requests == 0
        with RawClient(port) as client:
            assert client.plain(topic, caller.token).error_code == 0
            answer = client.ask(_append(topic, b"of a Kafka client"))
            assert answer.topics[0].partitions[0].error_code == ErrorCode.NONE


@pytest.mark.long
def test_kafka_06_who_is_not_known_in_time_is_cut_off_also_in_the_middle_of_a_call(tmp_path) -> None:
    port = free_port()
    with guarded(tmp_path, kafka_port=port, request_ms=3_600_000), RawClient(port) as client:
        client.socket.sendall(ANNOUNCED)
        assert client.is_closed(40), "after 30 seconds"


def test_kafka_06_what_waits_behind_a_member_that_joins_keeps_no_append_waiting(tmp_path, topic, group) -> None:
    with (
        kafka_running(tmp_path, queue_requests_max=PLACES) as kafka,
        RawClient(kafka.port) as first,
        RawClient(kafka.port) as second,
    ):
        kafka.api.put_topic(topic, partitions=1)
        assert first.ask(_join(group), 3).error_code == ErrorCode.NONE
        second.send(_join(group), 3)  # waits until the first one joins again
        for _ in range(PLACES):
            second.send(ListGroupsRequest())
        second.send(_append(topic, b"behind them"))
        until(lambda: list(kafka.api.stored(topic).values()) == [1])
        assert kafka.api.send(topic, "over REST").status == 200


def test_kafka_06_a_large_call_behind_one_that_waits_is_answered_in_its_turn(kafka, group) -> None:
    with RawClient(kafka.port) as first, RawClient(kafka.port) as second:
        joined = first.ask(_join(group), 3)
        sent = [second.send(_join(group), 3)]
        many = DescribeGroupsRequest([f"{group}.{number}".ljust(200, ".") for number in range(4_000)])
        sent += [second.send(many), second.send(ListGroupsRequest())]
        again = _join(group)
        again.member_id = joined.member_id
        assert first.ask(again, 3).error_code == ErrorCode.NONE
        answers = [second.receive(one) for one in sent]
    assert answers[0].error_code == ErrorCode.NONE and len(answers[1].groups) == 4_000
    assert group in [one.group_id for one in answers[2].groups]


class _Transport(asyncio.Transport):
    """The service's end of a connection, as far as reading goes."""

    is_read = True

    def get_extra_info(self, name: str, default: object = None) -> object:
        return default

    def is_closing(self) -> bool:
        return False

    def pause_reading(self) -> None:
        self.is_read = False

    def resume_reading(self) -> None:
        self.is_read = True

    def abort(self) -> None:
        pass


class _Calls:
    """Takes the requests that a connection begins, and owns the connection."""

    is_ending = False

    def __init__(self, *, at_once: bool = True) -> None:
        self.begun: list[Frame] = []
        self.closings = 0
        #: The answer to all requests.
        self.answer: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._at_once = at_once

    def connected(self, appends: Admission, transport: asyncio.Transport) -> Connection:
        """Return a connection whose appends get their room there."""
        calls = Admission("kafka", bytes_max=MIB, requests_max=10)
        quotas = Quotas(dict, lambda: 0, body_bytes_max=MIB)
        room = Room(quotas, ClientMeters(quotas, AuthState), appends, calls, calls)
        connection = Connection(self, room, ServiceSettings(), self)
        connection.connection_made(transport)
        return connection

    def opened(self, connection: Connection, transport: asyncio.Transport) -> Session:
        return Session(None, lambda: 0, is_private=True)

    def closed(self, connection: Connection) -> None:
        self.closings += 1

    def trace(self) -> None:
        return None

    def answered(self, asker: object, frame: Frame, began_s: float, answer: object) -> None:
        pass

    def begin_at_once(self, frame: Frame, asker: object, ticket: Ticket, reply: Reply) -> bool:
        if self._at_once:
            self.begun.append(frame)
            self.answer.add_done_callback(lambda _: reply.ready(None))
        return self._at_once

    async def begin(self, frame: Frame, session: Session, asker: object, ticket: Ticket) -> Awaitable[None]:
        await asyncio.sleep(0)
        self.begun.append(frame)
        return asyncio.shield(self.answer)


def test_kafka_06_a_large_request_is_read_when_there_is_room_for_it() -> None:
    async def run() -> None:
        calls, transport = _Calls(), _Transport()
        appends = Admission("produce", bytes_max=2 * MIB, requests_max=10)
        connection = calls.connected(appends, transport)
        sent = framed(_append("t", bytes(MIB)))[1]
        held = appends.enter(2 * MIB)
        connection.data_received(sent[: MIB // 2])
        assert not transport.is_read, "what is read ahead is full"
        held.release()
        async with asyncio.timeout(30):
            while not transport.is_read:
                await asyncio.sleep(0.001)
        connection.data_received(sent[MIB // 2 :])
        assert len(calls.begun) == 1 and transport.is_read

    asyncio.run(run())


@pytest.mark.parametrize("at_once", [True, False])
@pytest.mark.parametrize("is_begun", [True, False])
def test_kafka_06_what_waits_to_be_stored_keeps_its_bytes_when_its_client_goes(at_once, is_begun) -> None:
    async def run() -> None:
        calls = _Calls(at_once=at_once)
        appends = Admission("produce", bytes_max=MIB, requests_max=10)
        connection = calls.connected(appends, _Transport())
        sent = framed(_append("t", b"x"))[1]
        connection.data_received(sent)
        while is_begun and not calls.begun:
            await asyncio.sleep(0)
        connection.connection_lost(None)
        await connection.gone
        for _ in range(3):
            await asyncio.sleep(0)
        assert len(calls.begun) == 1 and appends.bytes == len(sent) - 4
        calls.answer.set_result(None)
        async with asyncio.timeout(30):
            while appends.bytes:
                await asyncio.sleep(0)
        assert appends.requests == 0

    asyncio.run(run())


def test_kafka_11_what_is_begun_when_access_ends_is_not_stored_any_more() -> None:
    async def run() -> None:
        calls = _Calls(at_once=False)
        appends = Admission("produce", bytes_max=MIB, requests_max=10)
        connection = calls.connected(appends, _Transport())
        connection.data_received(framed(_append("t", b"x"))[1])
        await asyncio.sleep(0)
        connection.end()
        connection.connection_lost(None)
        async with asyncio.timeout(30):
            while appends.requests:
                await asyncio.sleep(0)
        assert not calls.begun

    asyncio.run(run())


@pytest.mark.parametrize("size", [100, 2 * INLINE_BYTES])
def test_kafka_06_clients_that_go_while_nothing_can_be_stored_leave_nothing_behind_for_ever(kafka, topic, size) -> None:
    kafka.api.put_topic(topic, partitions=1)
    admission = kafka.api.service.admission
    with kafka.api.hosted(topic, f"{topic}@broker-a").open().turn:
        for count in range(1, 6):
            with RawClient(kafka.port) as client:
                client.send(_append(topic, bytes(size)))
                until(lambda count=count: admission.requests == count)
    until(lambda: admission.requests == admission.bytes == 0)
    assert list(kafka.api.stored(topic).values()) == [5]


SENT = 300


def test_kafka_03_all_that_a_producer_without_acknowledgements_sent_before_it_went_is_stored(kafka, topic) -> None:
    kafka.api.put_topic(topic, partitions=1)
    appends = b"".join(framed(_append(topic, b"%d" % number, acks=0))[1] for number in range(SENT))
    with RawClient(kafka.port) as client:
        client.socket.sendall(appends)
    until(lambda: list(kafka.api.stored(topic).values()) == [SENT])
    assert kafka.api.bodies(topic) == {f"{topic}@broker-a": [str(number) for number in range(SENT)]}


@pytest.mark.parametrize("size", [1, INLINE_BYTES + 1])
@pytest.mark.parametrize("fault", ["topic", "partition", "checksum", "producer"])
def test_kafka_16_what_a_producer_without_acknowledgements_sent_in_vain_closes_its_connection(
    kafka, topic, fault, size
) -> None:
    kafka.api.put_topic(topic, partitions=1)
    wanted = _append("nowhere" if fault == "topic" else topic, b"x" * size, acks=0)
    wanted.transactional_id = "one" if fault == "producer" else None
    part = wanted.topics[0].partitions[0]
    part.index = 7 if fault == "partition" else 0
    if fault == "checksum":
        part.records = bytes(part.records)[:-2] + b"zz"
    with RawClient(kafka.port) as client, RawClient(kafka.port) as good:
        client.send(_append(topic, b"before", acks=0))
        client.send(wanted)
        assert client.is_closed(within_s=30)
        good.send(_append(topic, b"x", acks=0))
        assert not good.is_closed(within_s=0.2)
    until(lambda: sorted(kafka.api.bodies(topic)[f"{topic}@broker-a"]) == ["before", "x"])


def test_kafka_03_what_waits_for_room_when_its_producer_goes_is_stored(tmp_path, topic) -> None:
    with kafka_running(tmp_path, queue_requests_max=PLACES) as kafka:
        kafka.api.put_topic(topic, partitions=1)
        appends = b"".join(framed(_append(topic, b"x", acks=0))[1] for _ in range(SENT))
        with kafka.api.hosted(topic, f"{topic}@broker-a").open().turn:
            with RawClient(kafka.port) as client:
                client.socket.sendall(appends)
            until(lambda: kafka.api.service.admission.requests == PLACES)
        until(lambda: list(kafka.api.stored(topic).values()) == [SENT])


@pytest.mark.parametrize("at_once", [True, False])
def test_kafka_03_of_what_a_producer_sent_only_what_needs_no_answer_is_begun_when_it_is_gone(at_once) -> None:
    async def run() -> None:
        calls = _Calls(at_once=at_once)
        appends = Admission("produce", bytes_max=MIB, requests_max=100)
        connection = calls.connected(appends, _Transport())
        sent = [_append("t", b"x", acks=acks) for acks in [0] * IN_FLIGHT_MAX + [1, 0, -1, 0]]
        connection.data_received(b"".join(framed(one)[1] for one in [*sent, ListGroupsRequest(), sent[0]]) + b"half")
        connection.connection_lost(None)
        assert not connection.gone.done() and calls.closings == 0
        calls.answer.set_result(None)
        await asyncio.wait_for(connection.gone, 30)
        async with asyncio.timeout(30):
            while appends.requests:
                await asyncio.sleep(0)
        assert [one.request.acks for one in calls.begun] == [0] * (IN_FLIGHT_MAX + 3)
        assert calls.closings == 1 and appends.bytes == 0

    asyncio.run(run())


@pytest.mark.parametrize("how", ["stop", "end", "ending"])
def test_kafka_06_what_a_client_left_behind_ends_with_the_service_and_with_its_access(how) -> None:
    async def run() -> None:
        calls = _Calls()
        appends = Admission("produce", bytes_max=MIB, requests_max=100)
        connection = calls.connected(appends, _Transport())
        connection.data_received(framed(_append("t", b"x", acks=0))[1] * (IN_FLIGHT_MAX + 5))
        connection.connection_lost(None)
        if how == "ending":
            calls.is_ending = True
            calls.answer.set_result(None)
        else:
            getattr(connection, how)()
        await asyncio.wait_for(connection.gone, 30)
        if how != "ending":
            assert appends.requests == IN_FLIGHT_MAX, "these are still to be stored"
            calls.answer.set_result(None)
        async with asyncio.timeout(30):
            while appends.requests:
                await asyncio.sleep(0)
        assert len(calls.begun) == IN_FLIGHT_MAX and calls.closings == 1

    asyncio.run(run())
