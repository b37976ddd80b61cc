"""`deltamq group ...`: create, list, show, reset and delete consumer groups; how places in a log are written."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any, Final, Literal, get_args

import click
import msgspec

from deltamq.mq.client.admin.admin import Admin
from deltamq.mq.client.cli.cluster import warn_of_missing_jobs
from deltamq.mq.client.cli.console import PATIENCE, print_json, print_table, service_options, watchable
from deltamq.mq.client.cli.history import watch
from deltamq.mq.client.http.calls import ClientAccess
from deltamq.mq.client.pop.client import PopClient
from deltamq.mq.errors import Conflict
from deltamq.mq.meta.allocation import STRATEGIES
from deltamq.mq.meta.group_settings import ConsumeStrategy
from deltamq.mq.request_values import ago_ms
from deltamq.mq.wire.groups import (
    GroupClient,
    GroupInfo,
    GroupMember,
    GroupPartition,
    GroupTopic,
    ResetPlan,
    RetriesAnswer,
    TopicStatistics,
)

PLACE_HELP: Final = "first, last, -1h (s, m, h or d ago) or TIME (RFC 3339)"

#: Kafka's words are taken, too.
_WORDS: Final[dict[str, Literal["first", "last"]]] = {
    "first": "first",
    "earliest": "first",
    "last": "last",
    "latest": "last",
}


def parse_moment(text: str, hint: str, *, now: datetime | None = None) -> datetime | Literal["first", "last"]:
    """Return the place that an option names; a time without a zone is in UTC. `now` is for tests."""
    if text in _WORDS:
        return _WORDS[text]
    ago = ago_ms(text)
    try:
        if ago is not None:
            return (now or datetime.now(UTC)) - timedelta(milliseconds=ago)
        moment = datetime.fromisoformat(text)
    except (ValueError, OverflowError):
        raise click.BadParameter(f"{text!r} is not {PLACE_HELP}", param_hint=hint) from None
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)


def parse_place(text: str, hint: str) -> str:
    """Return the place that an option names, as the API takes it."""
    moment = parse_moment(text, hint)
    return moment if isinstance(moment, str) else moment.isoformat()


ORDERS: Final = {"none": False, "partition": True, "key": "key"}


def parse_order(text: str | None) -> Any:
    """Parse `--order` into the API's value."""
    return None if text is None else ORDERS[text]


def parse_policy(text: str) -> list[int] | dict[str, object]:
    """Parse `--retry-policy`: waits in ms separated by commas, or the API's JSON."""
    if text.lstrip().startswith(("[", "{")):
        try:
            return msgspec.json.decode(text.encode(), type=list[int] | dict[str, object])
        except msgspec.MsgspecError as error:
            raise click.BadParameter(f"not JSON: {error}", param_hint="--retry-policy") from None
    waits = text.split(",")
    if not all(wait.strip().isascii() and wait.strip().isdigit() for wait in waits):
        raise click.BadParameter(
            'write waits in ms, for example 1000,5000,60000, or JSON such as {"fixed_ms": 1000}',
            param_hint="--retry-policy",
        )
    return [int(wait) for wait in waits]


def parse_offsets(texts: tuple[str, ...], hint: str) -> dict[str, int]:
    """Parse `NAME@BROKER=OFFSET` options into offsets by partition."""
    offsets = {}
    for text in texts:
        partition, equals, offset = text.rpartition("=")
        if not equals or not partition or not (offset.isascii() and offset.isdigit()):
            raise click.BadParameter(f"{text!r} is not NAME@BROKER=OFFSET", param_hint=hint)
        offsets[partition] = int(offset)
    return offsets


@click.group()
def group() -> None:
    """Create, list, show, reset and delete consumer groups; print their statistics."""


@group.command()
@click.argument("name")
@click.option(
    "--consume-from",
    help=f"Where to begin in a partition never consumed (first): {PLACE_HELP}.",
)
@click.option("--max-attempts", type=click.IntRange(1), help="Deliveries before a message becomes a dead letter (17).")
@click.option(
    "--retry-policy", help='Waits in ms by attempt (1000,5000,60000), {"fixed_ms": n} or {"exponential": {...}}.'
)
@click.option("--invisible-ms", type=click.IntRange(1), help="Invisible time of a popped message, in ms (60000).")
@click.option("--order", type=click.Choice(list(ORDERS)), help="Consume in order by partition or by key, or not.")
@click.option(
    "--strategy",
    type=click.Choice(get_args(ConsumeStrategy)),
    help="shared: a message to one client; exclusive: a partition to one client; broadcast: everything to each client.",
)
@click.option(
    "--allocation", type=click.Choice(STRATEGIES), help="How clients of an exclusive group get partitions (sticky)."
)
@service_options
def create(
    name: str,
    consume_from: str | None,
    max_attempts: int | None,
    retry_policy: str | None,
    invisible_ms: int | None,
    order: str | None,
    strategy: str | None,
    allocation: str | None,
    url: str,
    access: ClientAccess,
    as_json: bool,
) -> None:
    """Create group NAME, or change it to these settings."""
    policy = None if retry_policy is None else parse_policy(retry_policy)
    start = None if consume_from is None else parse_place(consume_from, "--consume-from")
    with Admin(url, patience=PATIENCE, **access) as admin:
        info, created = admin.put_group(
            name,
            consume_strategy=strategy,
            allocation_strategy=allocation,
            order=parse_order(order),
            consume_from=start,
            max_attempts=max_attempts,
            retry_policy=policy,
            invisible_ms=invisible_ms,
        )
    if as_json:
        print_json({"created": created, "group": info})
        return
    click.echo(f"{'created' if created else 'have'} {_settings(info)}")


@group.command("list")
@service_options
def list_groups(url: str, access: ClientAccess, as_json: bool) -> None:
    """Print the names of all groups."""
    with Admin(url, patience=PATIENCE, **access) as admin:
        names = admin.list_groups()
    if as_json:
        print_json({"groups": names})
        return
    for name in names:
        click.echo(name)


@group.command()
@click.argument("name")
@service_options
@watchable
def show(name: str, url: str, access: ClientAccess, as_json: bool) -> None:
    """Print the settings and clients of group NAME, and how far it is in each topic that it consumes.

    Lag counts messages after the committed offset; in flight are messages that clients hold or that wait for their next
    delivery. A message that is held for long is in flight and, within a minute, no longer in the lag.
    """
    with Admin(url, patience=PATIENCE, **access) as admin:
        info = admin.get_group(name)
    if as_json:
        print_json(info)
        return
    click.echo(_settings(info))
    rows = [_row(topic.topic, partition) for topic in info.topics for partition in topic.partitions]
    if rows:
        columns = ("topic", "partition", "committed", "end", "lag", "in flight", "last consumed")
        print_table(columns, rows, right=("committed", "end", "lag", "in flight"))
    members = [(member.client_id, *_row(topic.topic, partition)) for member, topic, partition in _members(info)]
    if members:
        headings = ("client", "topic", "partition", "committed", "end", "lag", "in flight", "last consumed")
        print_table(headings, members, right=("committed", "end", "lag", "in flight"))
    shares = [_share(info, client, topic) for client in info.clients for topic in client.topics]
    if shares:
        print_table(("client", "state", "topic", "partitions"), shares)
    warn_of_missing_jobs(url, access)


@group.command()
@click.argument("name")
@click.option(
    "--minutes", type=click.IntRange(1, 15), default=5, show_default=True, help="Minutes before the running one."
)
@service_options
def statistics(name: str, minutes: int, url: str, access: ClientAccess, as_json: bool) -> None:
    """Print what the clients of group NAME did in the last minutes: rates, ages of messages, handling times."""
    with Admin(url, patience=PATIENCE, **access) as admin:
        counts = admin.group_statistics(name, minutes=minutes)
    if as_json:
        print_json(counts)
        return
    click.echo(f"{counts.group}: {counts.seconds:,.0f} s, as {counts.processes} service processes counted them")
    columns = ("topic", "delivered", "again", "succeeded", "failed", "dead", "ok %", "age ms", "handling ms")
    print_table(columns, [_counted(topic) for topic in counts.topics], right=columns[1:])


def _counted(topic: TopicStatistics) -> tuple[object, ...]:
    rate = "-" if topic.success_rate is None else f"{100 * topic.success_rate:.1f}"
    age, handling = ("-" if mean is None else f"{mean:,.0f}" for mean in (topic.age_mean_ms, topic.handling_mean_ms))
    outcomes = (topic.delivered, topic.redelivered, topic.succeeded, topic.failed, topic.dead)
    return (topic.topic, *outcomes, rate, age, handling)


def _members(info: GroupInfo) -> Iterator[tuple[GroupMember, GroupTopic, GroupPartition]]:
    for member in info.members:
        for topic in member.topics:
            for partition in topic.partitions:
                yield member, topic, partition


def _share(info: GroupInfo, client: GroupClient, topic: str) -> tuple[object, ...]:
    allocation = info.allocation.get(topic)
    partitions = [] if allocation is None else allocation.clients.get(client.client_id, [])
    return (client.client_id, "online" if client.online else "leaving", topic, " ".join(partitions) or "-")


def _settings(info: GroupInfo) -> str:
    order = {value: name for name, value in ORDERS.items()}[info.order]
    exclusive = info.consume_strategy == "exclusive"
    strategy = f"{info.consume_strategy} ({info.allocation_strategy})" if exclusive else info.consume_strategy
    settings = (
        f"{info.group}: {strategy}, from {info.consume_from}, order {order}, "
        f"{info.max_attempts:,} attempts, invisible for {info.invisible_ms:,} ms, lag {info.lag:,}"
    )
    if info.paused is None:
        return settings
    by, why = f" by {info.paused.by}" if info.paused.by else "", f": {info.paused.reason}" if info.paused.reason else ""
    return f"{settings}, paused since {info.paused.since_time.isoformat(timespec='seconds')}{by}{why}"


def _row(topic: str, partition: GroupPartition) -> tuple[object, ...]:
    consumed = partition.last_consume_time
    moment = "-" if consumed is None else consumed.isoformat(timespec="milliseconds")
    numbers = (partition.committed_offset, partition.end_offset, partition.lag, partition.in_flight)
    return (topic, partition.partition, *("-" if number is None else number for number in numbers), moment)


@group.command()
@click.argument("name")
@click.option("--reason", default="", help="Why, for those who look.")
@service_options
def pause(name: str, reason: str, url: str, access: ClientAccess, as_json: bool) -> None:
    """Deliver nothing to group NAME until `group resume`; Kafka's clients, which name no group, go on."""
    with Admin(url, patience=PATIENCE, **access) as admin:
        info = admin.pause_group(name, reason)
    print_json(info) if as_json else click.echo(_settings(info))


@group.command()
@click.argument("name")
@service_options
def resume(name: str, url: str, access: ClientAccess, as_json: bool) -> None:
    """Deliver messages to group NAME again."""
    with Admin(url, patience=PATIENCE, **access) as admin:
        info = admin.resume_group(name)
    print_json(info) if as_json else click.echo(_settings(info))


@group.command("in-flight")
@click.argument("name")
@click.option("--topic", help="Only messages of this topic.")
@click.option("--max", "limit", type=click.IntRange(1, 1_000), default=20, show_default=True, help="How many at most.")
@service_options
@watchable
def in_flight(name: str, topic: str | None, limit: int, url: str, access: ClientAccess, as_json: bool) -> None:
    """Print which client holds which messages of group NAME, since when, the oldest first."""
    with Admin(url, patience=PATIENCE, **access) as admin:
        answer = admin.in_flight(name, topic=topic, limit=limit)
    if as_json:
        print_json(answer)
        return
    click.echo(f"{name}: {answer.total:,} messages in flight")
    clients = [
        (holder.client_id or "-", holder.messages, holder.since_time.isoformat(timespec="seconds"))
        for holder in answer.by_client
    ]
    print_table(("client", "messages", "oldest since"), clients, right=("messages",))
    rows = [
        (
            held.topic,
            held.partition,
            held.offset,
            held.attempt,
            held.client_id or "-",
            held.since_time.isoformat(timespec="seconds"),
            held.visible_time.isoformat(timespec="seconds"),
        )
        for held in answer.messages
    ]
    columns = ("topic", "partition", "offset", "attempt", "client", "since", "again after")
    print_table(columns, rows, right=("offset", "attempt"))


@group.command()
@click.argument("name")
@click.option("--topic", help="Only messages of this topic.")
@click.option("--max", "limit", type=click.IntRange(1, 1_000), default=20, show_default=True, help="How many at most.")
@click.option("--now", is_flag=True, help="Bring forward those of them that wait for their time.")
@click.option("--dead", "reason", metavar="REASON", help="Make dead letters of those of them that wait for their time.")
@service_options
@watchable
def retries(
    name: str,
    topic: str | None,
    limit: int,
    now: bool,
    reason: str | None,
    url: str,
    access: ClientAccess,
    as_json: bool,
) -> None:
    """Print what is delivered to group NAME again: by attempt, and by due time, the next first.

    A message waits after a failure, is overdue when its time is over, and ready when the job `revive` has brought it.
    """
    if now and reason is not None:
        raise click.UsageError("--now and --dead: choose one")
    with Admin(url, patience=PATIENCE, **access) as admin:
        answer = admin.retries(name, topic=topic, limit=limit)
    handles = [message.handle for message in answer.messages if message.handle is not None]
    if now or reason is not None:
        done = _settle_retries(url, name, handles, reason, access)
        what = "brought forward" if reason is None else "made dead letters"
        print_json({"messages": done}) if as_json else click.echo(f"{name}: {done:,} messages {what}")
    elif as_json:
        print_json(answer)
    else:
        _print_retries(name, answer)


def _settle_retries(url: str, group: str, handles: list[str], reason: str | None, access: ClientAccess) -> int:
    """Bring messages forward, or make dead letters of them; return how many were still waiting."""
    with PopClient(url, group, patience=PATIENCE, **access) as client:
        if reason is not None:
            return len(handles) - len(client.dead(handles, reason))
        done = 0
        for handle in handles:
            with contextlib.suppress(Conflict):  # its time came meanwhile
                client.change_invisible(handle, 0)
                done += 1
        return done


def _print_retries(name: str, answer: RetriesAnswer) -> None:
    click.echo(f"{name}: {answer.total:,} messages are delivered again")
    counts = [(count.attempt, count.state, count.messages) for count in answer.by_attempt]
    print_table(("attempt", "state", "messages"), counts, right=("attempt", "messages"))
    rows = [
        (
            message.topic,
            "-" if message.origin is None else message.origin.partition,
            "-" if message.origin is None else message.origin.offset,
            message.attempt,
            message.state,
            message.due_time.isoformat(timespec="seconds"),
        )
        for message in answer.messages
    ]
    print_table(("topic", "partition", "offset", "attempt", "state", "due"), rows, right=("offset", "attempt"))


@group.command()
@click.argument("name")
@click.argument("topic")
@click.option("--to", "target", help=f"{PLACE_HELP}, for every partition.")
@click.option("--offset", "offsets", multiple=True, help="NAME@BROKER=OFFSET; may be repeated. Others keep theirs.")
@click.option("--drop-retries", is_flag=True, help="Drop the messages that wait for their next delivery.")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@click.option("--plan", is_flag=True, help="Only print what the reset would do.")
@service_options
def reset(
    name: str,
    topic: str,
    target: str | None,
    offsets: tuple[str, ...],
    drop_retries: bool,
    yes: bool,
    plan: bool,
    url: str,
    access: ClientAccess,
    as_json: bool,
) -> None:
    """Reset the offsets of group NAME in TOPIC. Handles that its clients hold now become void."""
    if (target is None) == (not offsets):
        raise click.UsageError("give either --to or --offset")
    to = parse_offsets(offsets, "--offset") if target is None else parse_place(target, "--to")
    with Admin(url, patience=PATIENCE, **access) as admin:
        asks = not yes and sys.stdin.isatty()
        if plan or asks:
            planned = admin.plan_reset(name, topic, to, keep_retries=not drop_retries)
            print_json(planned) if as_json and plan else _print_reset(planned)
        if plan:
            return
        if asks:
            click.confirm(f"reset the offsets of group {name} in {topic}?", abort=True, err=True)
        now = admin.reset_offsets(name, topic, to, keep_retries=not drop_retries)
    if as_json:
        print_json({"group": name, "topic": topic, "offsets": now})
        return
    for partition, offset in sorted(now.items()):
        click.echo(f"{name} goes on at {partition}:{offset}")


def _print_reset(planned: ResetPlan) -> None:
    rows = []
    for partition, one in sorted(planned.offsets.items()):
        what = "-" if not one.messages else "come again" if one.to < one.before else "passed over"
        rows.append((partition, one.before, one.to, one.messages, what))
    print_table(("partition", "from", "to", "messages", ""), rows, right=("from", "to", "messages"))


@group.command()
@click.argument("name")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@service_options
def delete(name: str, yes: bool, url: str, access: ClientAccess, as_json: bool) -> None:
    """Remove group NAME with its progress, retries and dead letters."""
    if not yes and sys.stdin.isatty():
        click.confirm(f"remove group {name} with its retries and dead letters?", abort=True, err=True)
    with Admin(url, patience=PATIENCE, **access) as admin:
        admin.delete_group(name)
    if as_json:
        print_json({"deleted": name})
    else:
        click.echo(f"deleted {name}")


group.add_command(watch)
