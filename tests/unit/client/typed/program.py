"""User code with every name that `deltamq` exports, as its users write it: mypy and pyright check it, both strict.

Nothing here runs. What takes or gives Arrow's tables is in `arrow_program.py`: pyarrow has no types.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import assert_never

from deltamq import (
    AclInfo,
    ActInfo,
    Admin,
    AsyncAdmin,
    AsyncOrderlyConsumer,
    AsyncOutboxRelay,
    AsyncPopClient,
    AsyncPopConsumer,
    AsyncProducer,
    AsyncPullConsumer,
    BroadcastOffsets,
    BrokerInfo,
    Closed,
    ClusterInfo,
    Conflict,
    ConsumerClosed,
    ConsumerStats,
    Corrupt,
    DeadLetter,
    DeltaMQBroker,
    DeltaMQError,
    Ending,
    FailedHandle,
    Failure,
    FaultInfo,
    FeatureInfo,
    Fenced,
    FileOffsets,
    Forbidden,
    ForkedClient,
    GroupInfo,
    GroupMember,
    GroupOffsets,
    GroupPartition,
    GroupStatistics,
    GroupTopic,
    HandlerEnd,
    HostInfo,
    KeyInfo,
    MappingInfo,
    MemoryQueue,
    Message,
    MessageOrigin,
    MissingJob,
    MovedQueue,
    NewKey,
    NotFound,
    OffsetMismatch,
    OffsetOutOfRange,
    OidcClientCredentials,
    OrderedMessage,
    OrderlyClosed,
    OrderlyConsumer,
    Outbox,
    OutboxDialect,
    OutboxRelay,
    OutboxStatus,
    Overloaded,
    PartitionInfo,
    PartlySent,
    Patience,
    PopBatch,
    PopClient,
    PopConsumer,
    PoppedMessage,
    PrincipalInfo,
    Producer,
    ProducerStats,
    PullConsumer,
    QuarantinedMessage,
    QuarantineDone,
    QueueInfo,
    QuotaInfo,
    ReceivedMessage,
    RefusalInfo,
    Refused,
    RelayStats,
    Remapping,
    Result,
    SchemaReference,
    SchemaVersion,
    SegmentInfo,
    Sent,
    SentBatch,
    SentRange,
    ServiceProcess,
    SetAside,
    StoppedPartition,
    StorageFull,
    Suspend,
    TableProgress,
    TableSendInterrupted,
    TableSendState,
    TooLarge,
    TopicCheck,
    TopicInfo,
    TopicRepair,
    TopicSchema,
    TopicStatistics,
    Unauthenticated,
    Unavailable,
    Unknown,
    Unprocessable,
    UpgradeInfo,
    Verdict,
    dead_letter_on,
    handler,
    logged,
    retry_on,
)

URL = "http://127.0.0.1:8080"


# Sends ---------------------------------------------------------------------------------------------------------


def send(producer: Producer) -> list[str]:
    sent: Sent = producer.send("orders", b"paid", key="order-17", tag="paid", headers={"region": "eu"})
    later = producer.send_soon("orders", "paid", delay_ms=5_000)
    later.add_done_callback(lambda future: print(future.result().offset))
    producer.send_oneway("orders", Message(b"paid", "order-17"))
    chosen = producer.send("orders", b"x", selector=lambda partitions, message, argument: partitions[0])
    batch: SentBatch = producer.send_batch("orders", [Message(b"1"), b"2", "3"])
    ranges: tuple[SentRange, ...] = batch.ranges
    stats: ProducerStats = producer.stats()
    print(stats.sent, stats.unresolved, sent.duplicate, chosen.partition, later.result(5).offset)
    closed: Closed = producer.close()
    return [place.partition for place in batch] + [r.partition for r in ranges] + [str(closed.not_sent)]


def interrupted(error: TableSendInterrupted) -> TableSendState:
    def show(progress: TableProgress) -> None:
        print(progress.rows_stored, progress.rows, progress.state.to_json())

    show(TableProgress(rows_stored=error.state.rows_stored, rows=error.state.rows, state=error.state))
    return error.state


def resend(producer: Producer, messages: list[Message]) -> list[Message]:
    """Return the messages whose outcome is not known."""
    try:
        producer.send_batch("orders", messages)
    except PartlySent as error:
        failures: tuple[Failure, ...] = error.failures
        print([failure.error.code for failure in failures], error.sent.count)
        outcomes = error.outcomes()
        again = [message for message, what in zip(messages, outcomes, strict=True) if what == "not_stored"]
        producer.send_batch("orders", again)
        return [message for message, what in zip(messages, outcomes, strict=True) if what == "unknown"]
    except DeltaMQError as error:
        match error.outcome:
            case "stored" | "not_stored":
                return []
            case "unknown":
                return messages
            case _:
                assert_never(error.outcome)
    return []


def caught(error: DeltaMQError) -> str:
    match error:
        case OffsetOutOfRange() | ForkedClient() | TooLarge() | NotFound() | Unprocessable():
            return str(error.field)
        case Unauthenticated() | Forbidden() | Refused():
            return error.detail
        case OffsetMismatch() | Fenced() | Conflict():
            return error.code
        case Overloaded():
            return str(error.retry_after_s)
        case StorageFull() | Unavailable():
            return str(error.status)
        case Unknown() | Corrupt():
            return str(error.extra.get("partition"))
        case _:
            return error.outcome


# Consumers -----------------------------------------------------------------------------------------------------


def bill(message: PoppedMessage) -> Result | None:
    origin: MessageOrigin | None = message.origin
    print(message.text, message.delivery_attempt, message.headers, None if origin is None else origin.topic)
    if message.tag == "later":
        return Result.RETRY(delay_ms=5_000)
    if message.tag is None:
        return Result.DEAD("no tag")
    return Result.RETRY if message.key is None else Result.OK


def bill_all(messages: list[PoppedMessage]) -> list[Result]:
    return [Result.OK for _ in messages]


def ended(message: PoppedMessage, results: Sequence[Result], ending: Ending) -> None:
    print(message.offset, len(results), ending.took_ms, ending.how is HandlerEnd.TIMED_OUT, ending.error)


def consume() -> ConsumerClosed:
    patience = Patience(retries=3, timeout_s=5)
    PopConsumer(URL, "billing", ["orders", "refunds"], bill_all, batch_messages=100).close()
    consumer = PopConsumer(URL, "billing", "orders", bill, order="key", after=ended, patience=patience, token="t")
    with consumer:
        consumer.stop()
        stats: ConsumerStats = consumer.stats()
        print(stats.ok, stats.held, consumer.error)
    inline = PopConsumer(URL, "billing", "orders", lambda message: print(message))
    inline.run()
    return consumer.close()


def pop(client: PopClient) -> list[FailedHandle]:
    batch: PopBatch = client.pop("orders", 10, wait_ms=1_000, order="key")
    handle = client.change_invisible(batch.messages[0].handle, 60_000)
    print(batch.rest, batch.invisible_ms)
    return [*client.ack([handle]), *client.nack([handle], delay_ms=5), *client.dead([handle], "no amount")]


def book(message: OrderedMessage) -> Verdict | Suspend:
    print(message.topic, message.attempt)
    return Suspend(1_000) if message.key is None else Verdict.SUCCESS


def consume_in_order() -> OrderlyClosed:
    consumer = OrderlyConsumer(URL, "ledger", "orders", book, keys_in_parallel=8)
    consumer.run()
    return consumer.close()


def read(path: Path) -> Iterator[ReceivedMessage]:
    with PullConsumer(URL, "orders", offsets=FileOffsets(path), start=datetime(2026, 1, 1, tzinfo=UTC)) as consumer:
        yield from consumer.poll(wait_ms=5_000)
        print(consumer.commit())
    with PullConsumer(URL, "orders", offsets=GroupOffsets("audit"), partitions=["orders@broker-a"]) as consumer:
        consumer.seek("orders@broker-a", 17)
        print(consumer.positions())
    with PullConsumer(URL, "orders", offsets=BroadcastOffsets("caches", "web-1"), start={"orders@a": 3}) as consumer:
        print(consumer.end_offsets())


# Handlers ------------------------------------------------------------------------------------------------------


@dataclass
class Order:
    id: int
    amount: float


async def timed(message: PoppedMessage, call: Callable[[], Awaitable[Result | None]]) -> Result | None:
    try:
        return await call()
    except KeyError:
        return Result.DEAD(f"{message.message_id} lacks a field")


@handler(topic="orders", group="billing", concurrency=8, order="key", middleware=[logged, timed])
def typed(order: Order) -> Result | None:
    return Result.OK if order.amount else None


@handler(
    topic=["orders", "refunds"],
    group="audit",
    middleware=[dead_letter_on(KeyError, ValueError), retry_on(TimeoutError, delay_ms=60_000)],
)
async def noted(order: Order, message: PoppedMessage) -> None:
    print(order.id, message.offset)


def call_handlers() -> Result | None:
    return typed(Order(17, 12.5))


# An outbox -----------------------------------------------------------------------------------------------------


def put(database: sqlite3.Connection) -> OutboxStatus:
    outbox = Outbox(OutboxDialect(name="own", paramstyle="qmark", id_column="INTEGER PRIMARY KEY", bytes_type="BLOB"))
    outbox.create(database)
    with database:
        outbox.put(database, "orders", Message(b"paid", key="order-17"))
    return outbox.status(database)


def relay(shop: str) -> RelayStats:
    def aside(gone: SetAside) -> None:
        print(gone.topic, gone.ids, gone.code)

    with OutboxRelay(lambda: sqlite3.connect(shop), URL, on_set_aside=aside) as relay:
        relay.drain()
        return relay.stats()


# Administration ------------------------------------------------------------------------------------------------


def administer(admin: Admin) -> None:
    topic: TopicInfo = admin.create_topic("orders", partitions=4)
    partitions: list[PartitionInfo] = list(topic.partitions)
    queues: list[QueueInfo] = list(topic.queues)
    segments: list[SegmentInfo] = [segment for queue in queues for segment in queue.segments]
    group: GroupInfo = admin.create_group("billing", max_attempts=5, retry_policy=[1_000, 60_000])
    schema: SchemaVersion = admin.get_schema("orders-value")
    used: list[SchemaReference] = list(schema.references)
    wanted: TopicSchema = {"format": "columns", "schema": "id STRING", "on_invalid": "quarantine"}
    admin.create_topic("orders", schema=wanted)
    misfits: list[QuarantinedMessage] = list(admin.quarantine("orders"))
    again: QuarantineDone = admin.replay_quarantine("orders", offsets={one.partition: [one.offset] for one in misfits})
    members: list[GroupMember] = list(group.members)
    topics: list[GroupTopic] = list(group.topics)
    lanes: list[GroupPartition] = [lane for one in topics for lane in one.partitions]
    statistics: GroupStatistics = admin.group_statistics("billing")
    by_topic: list[TopicStatistics] = list(statistics.topics)
    letters: list[DeadLetter] = list(admin.dead_letters("billing").messages)
    cluster: ClusterInfo = admin.cluster()
    brokers: list[BrokerInfo] = list(cluster.brokers)
    hosts: list[HostInfo] = list(cluster.hosts)
    missing: list[MissingJob] = list(cluster.missing_jobs)
    stopped: list[StoppedPartition] = list(cluster.stopped)
    upgrade: UpgradeInfo = admin.upgrade_state()
    features: list[FeatureInfo] = [*upgrade.on, *upgrade.waiting]
    print(
        partitions,
        segments,
        members,
        lanes,
        by_topic,
        letters,
        brokers,
        hosts,
        missing,
        stopped,
        features,
        used,
        again.done,
    )


def remap(admin: Admin) -> list[MappingInfo]:
    remapping: Remapping = admin.remap("invoices", ["broker-b"], mode="available", plan=True)
    moved: list[MovedQueue] = list(remapping.moved)
    check: TopicCheck = admin.check_topic("invoices")
    faults: list[FaultInfo] = list(check.faults)
    repair: TopicRepair = admin.repair_topic("invoices", plan=True)
    print(moved, faults, repair.plan)
    return list(check.mappings)


def let_in(admin: Admin) -> NewKey:
    principal: PrincipalInfo = admin.put_principal("billing")
    rule: AclInfo = admin.add_acl("billing", "topic", ("read",), pattern="orders")
    quota: QuotaInfo = admin.set_quota("billing", requests_per_s=100)
    keys: list[KeyInfo] = principal.keys
    acts: list[ActInfo] = list(admin.audit(limit=10))
    refusals: list[RefusalInfo] = list(admin.audit_refusals())
    print(rule, quota, keys, acts, refusals)
    return admin.create_key("billing")


def log_in() -> Admin:
    token = OidcClientCredentials(issuer="https://idp.example.org", client_id="billing", client_secret="secret")
    return Admin([URL, "http://127.0.0.1:8081"], token=token, patience=Patience(timeout_s=5))


# Tests ---------------------------------------------------------------------------------------------------------


def test_billing(deltamq_memory: MemoryQueue, deltamq_service: ServiceProcess) -> None:
    deltamq_memory.create_topic("orders")
    deltamq_memory.put_group("billing", max_attempts=3)
    deltamq_memory.send("orders", b"paid", key="order-17")
    (message,) = deltamq_memory.pop("billing", "orders")
    print(message.row.body, message.delivery_attempt, message.handle)
    assert not deltamq_memory.ack("billing", [message.handle]).failed
    with Producer(deltamq_service.url) as producer:
        producer.send("orders", b"paid")
    deltamq_service.kill()
    deltamq_service.start()


async def on_a_loop() -> int:
    async def book(message: PoppedMessage) -> Result | None:
        return None if message.body else Result.DEAD("empty")

    async def listen(message: OrderedMessage) -> Verdict:
        return Verdict.SUCCESS if message.offset >= 0 else Verdict.SUSPEND

    async with AsyncProducer(URL, linger_ms=5) as producer, AsyncAdmin(URL) as admin:
        sent = await producer.send("orders", "paid", key="order-17")
        later = await producer.send_soon("orders", b"paid", delay_ms=5_000)
        await producer.send_oneway("orders", "paid")
        batch = await producer.send_batch("orders", [Message(b"1"), "2"])
        offset: int = sent.offset + (await later).offset + batch.ranges[0].base_offset
        topics: list[str] = await admin.list_topics()
        async for found in admin.search(topics[0], key="order-17"):
            offset += found.offset
    async with AsyncPullConsumer(URL, "orders", start="first", offsets=GroupOffsets("audit")) as pull:
        async for received in pull:
            positions: dict[str, int] = await pull.commit()
            return received.offset + sum(positions.values())
    async with AsyncPopConsumer(URL, "billing", "orders", book, concurrency=100) as consumer:
        await consumer.run()
        closed: ConsumerClosed = await consumer.close(timeout_s=5)
        offset += closed.untold
    async with AsyncPopConsumer(URL, "billing", "orders") as consumer:
        async for popped in consumer:
            offset += popped.offset
    async with AsyncOrderlyConsumer(URL, "ledger", "orders", listen) as ordered:
        await ordered.run()
    async with AsyncOutboxRelay(lambda: sqlite3.connect("shop.db"), URL) as relay:
        offset += (await relay.run_once()).sent
    async with AsyncPopClient(URL, "billing") as client:
        pops: PopBatch = await client.pop("orders", 10, wait_ms=1_000)
        failed: list[FailedHandle] = await client.ack([message.handle for message in pops.messages])
        return offset + len(failed)


broker = DeltaMQBroker(URL, "tasks", token="a token")


@broker.task(delay=1.5)
async def kicked_off(order: int) -> str:
    return f"billed {order}"


async def kicked() -> bool:
    await broker.startup()
    task = await kicked_off.kiq(17)
    await broker.shutdown()
    return bool(task.task_id)
