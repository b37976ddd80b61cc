"""Long sends that can be taken up again (SEND-5)."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pyarrow as pa
import pytest
from msgspec.structs import replace

from deltamq.mq.client.produce import repeatable_sends
from deltamq.mq.client.produce.producer import Producer
from deltamq.mq.client.produce.repeatable_sends import TableProgress, TableSendInterrupted, TableSendState
from deltamq.mq.errors import NotFound, Refused, TooLarge
from tests.unit.client.stub_service import StubService
from tests.unit.client.stub_topics import Fault

MakeProducer = Callable[..., Producer]

ROWS = 1_500
TABLE = pa.table(
    {"key": [f"k{n % 50}" for n in range(ROWS)], "body": [f"{n:0100}".encode() for n in range(ROWS)]},
)


@pytest.fixture
def small_chunks(make_producer: MakeProducer) -> Producer:
    """A buffer that makes chunks small: 1,500 rows are then about 8 chunks."""
    return make_producer(buffer_bytes_max=25_000, message_bytes_max=10_000, retries=1)


def assert_each_row_once(stub: StubService) -> None:
    bodies = stub.bodies("orders")
    assert len(bodies) == ROWS
    assert sorted(int(body) for body in bodies) == list(range(ROWS))
    for partition in stub.topics["orders"].route.partitions:
        numbers = [int(body) for body in stub.bodies("orders", partition)]
        assert numbers == sorted(numbers)


def test_a_table_is_sent_chunk_by_chunk_with_progress(stub: StubService, small_chunks: Producer) -> None:
    stub.create("orders", 3)
    seen: list[TableProgress] = []
    sent = small_chunks.send_table("orders", TABLE, progress=seen.append)
    assert sent.count == ROWS
    assert len(seen) > 4
    assert [p.rows_stored for p in seen] == sorted(p.rows_stored for p in seen)
    assert seen[-1].rows_stored == seen[-1].rows == ROWS
    assert_each_row_once(stub)
    for n, place in list(enumerate(sent.places()))[::97]:
        assert int(stub.topics["orders"].log(place.partition)[place.offset]["body"]) == n


@pytest.mark.parametrize("fault", [Fault.DROP_AFTER, Fault.DROP_BEFORE, Fault.REFUSE], ids=lambda fault: fault.name)
@pytest.mark.parametrize("at", [0, 4, 13])
def test_send_05_an_interrupted_send_is_taken_up_without_loss_or_repetition(
    stub: StubService, small_chunks: Producer, make_producer: MakeProducer, fault: Fault, at: int
) -> None:
    stub.create("orders", 3)
    stub.faults.extend([Fault.NONE] * at + [fault] * 4)
    with pytest.raises(TableSendInterrupted) as caught:
        small_chunks.send_table("orders", TABLE, progress=False)
    assert small_chunks.stats().unresolved == 0, "a resumption would meet requests of the interrupted run"
    stub.faults.clear()
    # As another process would: from the state's JSON alone.
    state = TableSendState.from_json(caught.value.state.to_json())
    assert state.rows_stored < ROWS
    make_producer().send_table("orders", TABLE, progress=False, state=state)
    assert_each_row_once(stub)


def test_send_05_taking_up_any_earlier_state_repeats_nothing(
    stub: StubService, small_chunks: Producer, make_producer: MakeProducer
) -> None:
    stub.create("orders", 2)
    states: list[TableSendState] = []
    small_chunks.send_table("orders", TABLE, progress=lambda progress: states.append(progress.state))
    for state in states[-3:]:
        make_producer().send_table("orders", TABLE, progress=False, state=state)
    assert_each_row_once(stub)


def test_keyless_rows_are_taken_up_at_the_same_places(
    stub: StubService, small_chunks: Producer, make_producer: MakeProducer
) -> None:
    stub.create("orders", 3)
    stub.faults.extend([Fault.NONE] * 5 + [Fault.DROP_AFTER] * 2)
    table = TABLE.drop_columns(["key"])
    with pytest.raises(TableSendInterrupted) as caught:
        small_chunks.send_table("orders", table, progress=False)
    stub.faults.clear()
    make_producer().send_table("orders", table, progress=False, state=caught.value.state)
    assert_each_row_once(stub)


def test_a_state_of_another_table_is_refused(stub: StubService, producer: Producer) -> None:
    stub.create("orders", 1)
    states: list[TableSendState] = []
    producer.send_table("orders", TABLE, progress=lambda progress: states.append(progress.state))
    posts = len(stub.posts)
    for table, state in [
        (TABLE.slice(1), states[0]),
        (TABLE.drop_columns(["key"]), replace(states[0], body_bytes=1)),
        (TABLE, replace(states[0], topic="other")),
    ]:
        with pytest.raises(Refused) as caught:
            producer.send_table("orders", table, progress=False, state=state)
        assert caught.value.code == "state_of_another_table"
    with pytest.raises(Refused):
        TableSendState.from_json(b"{}")
    assert len(stub.posts) == posts


def test_a_table_needs_an_existing_topic_and_rows_that_fit(stub: StubService, make_producer: MakeProducer) -> None:
    producer = make_producer(message_bytes_max=50)
    with pytest.raises(NotFound):
        producer.send_table("orders", pa.table({"body": [b"x"]}), progress=False)
    stub.create("orders", 1)
    with pytest.raises(TooLarge):
        producer.send_table("orders", TABLE, progress=False)
    assert producer.send_table("orders", TABLE.slice(0, 0), progress=False).count == 0


def test_the_requests_in_flight_stay_within_what_the_service_remembers(
    stub: StubService, small_chunks: Producer
) -> None:
    stub.create("orders", 2)
    gate = threading.Event()
    stub.on_post = lambda post: gate.wait(30)
    thread = threading.Thread(target=small_chunks.send_table, args=("orders", TABLE), kwargs={"progress": False})
    thread.start()
    stub.wait_for(lambda: len(stub.posts) == 2)
    assert small_chunks.stats().unresolved <= ROWS // 2
    gate.set()
    thread.join(20)
    assert_each_row_once(stub)
    assert repeatable_sends._CHUNKS_IN_FLIGHT_MAX * 2 < 16
