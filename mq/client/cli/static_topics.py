"""`deltamq topic remap|check|repair`, and what `topic create` and `topic show` print about static topics.

A remapping or a repair prints first its plan, then its outcome; with --json only the outcome, as one document.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from itertools import pairwise
from typing import Final

import click
from msgspec.structs import replace

from deltamq.mq.client.admin.admin import Admin
from deltamq.mq.client.cli.console import LONG_PATIENCE, PATIENCE, print_json, print_table, service_options
from deltamq.mq.client.http.calls import ClientAccess
from deltamq.mq.client.produce.progress_bar import row_bar
from deltamq.mq.errors import Unavailable
from deltamq.mq.wire.static_topics import FaultInfo, MovedQueue, RemapMode, Remapping, TopicCheck
from deltamq.mq.wire.topics import PartitionInfo, QueueInfo, SegmentInfo, TopicInfo

_FAILED: Final = 1
#: Seconds between two looks at the queues that other processes have to seal.
_LOOK_S: Final = 0.1

#: The columns of a physical partition.
_PHYSICAL: Final = ("partition", "min", "max", "messages", "bytes", "files")

_MODES: Final = {
    "strict": "strict: a short stop, no hole in the offsets",
    "available": "available: no stop, a hole in the offsets",
}


# Remap ---------------------------------------------------------------------------------------------------------


@click.command()
@click.argument("name")
@click.option("--broker", "brokers", multiple=True, help="A broker that is to lead queues; may be repeated.")
@click.option(
    "--cluster",
    "clusters",
    multiple=True,
    help="For a global topic: a cluster that is to take messages; may be repeated.",
)
@click.option(
    "--mode",
    type=click.Choice(list(_MODES)),
    default="strict",
    show_default=True,
    help="strict: sends to a moved queue wait a moment; available: they do not, and its offsets jump.",
)
@click.option("--queue", "queues", type=click.IntRange(0), multiple=True, help="Only this queue; may be repeated.")
@click.option("--plan", is_flag=True, help="Only print what would move.")
@click.option(
    "--wait",
    "wait_s",
    type=click.FloatRange(0, 86_400),
    default=60.0,
    show_default=True,
    help="Seconds to wait until the brokers' processes have sealed the old partitions.",
)
@service_options
def remap(
    name: str,
    brokers: tuple[str, ...],
    clusters: tuple[str, ...],
    mode: RemapMode,
    queues: tuple[int, ...],
    plan: bool,
    wait_s: float,
    url: str,
    access: ClientAccess,
    as_json: bool,
) -> None:
    """Move logical queues of static topic NAME, so that the named brokers lead them, evenly.

    Clients go on under the same names and offsets. A remapping that was cut short is finished by running it again.
    Queues of a global topic move between the named clusters, or between the named brokers of the asked cluster.
    """
    if bool(brokers) == bool(clusters):
        raise click.UsageError("name the brokers that are to lead queues, or the clusters of a global topic")
    if clusters:
        _remap_clusters(Admin(url, patience=LONG_PATIENCE, **access), name, clusters, mode, queues, plan, as_json)
        return
    with Admin(url, patience=LONG_PATIENCE, **access) as admin:
        planned = admin.remap(name, brokers, mode=mode, queues=queues or None, plan=True)
        if not as_json:
            _print_plan(planned)
        if not plan:
            # Also if nothing is to be moved: this seals what an earlier remapping left open.
            done = admin.remap(name, brokers, mode=mode, queues=queues or None)
            info = _sealed(admin, name, wait_s)
            # A retry after a lost answer reports nothing.
            outcome = replace(done, moved=tuple(_outcome(move, info) for move in done.moved or planned.moved))
    if as_json:
        print_json(planned if plan else outcome)
    elif not plan and outcome.moved:
        _print_outcome(outcome)


def _remap_clusters(
    admin: Admin,
    name: str,
    clusters: tuple[str, ...],
    mode: RemapMode,
    queues: tuple[int, ...],
    plan: bool,
    as_json: bool,
) -> None:
    with admin:
        planned = admin.remap_clusters(name, clusters, mode=mode, queues=queues or None, plan=True)
        if not as_json:
            _print_cluster_moves(planned, "to move")
        # Also if nothing is to be moved: this settles what an earlier remapping left open.
        outcome = planned if plan else admin.remap_clusters(name, clusters, mode=mode, queues=queues or None)
    if as_json:
        print_json(outcome)
    elif not plan:
        _print_cluster_moves(outcome, "moved")


def _print_cluster_moves(moves: Remapping, what: str) -> None:
    if not moves.moved:
        click.echo(f"{moves.topic}: no queue {what}")
        return
    click.echo(f"{moves.topic}: {_queues(len(moves.moved))} {what} ({_MODES[moves.mode]})")
    rows = [(move.queue, move.source, move.target, _or_dash(move.logic_offset)) for move in moves.moved]
    columns = ("queue", "from cluster", "to cluster", "begins at offset")
    print_table(columns, rows, right=("queue", "begins at offset"))


def _print_plan(planned: Remapping) -> None:
    if not planned.moved:
        click.echo(f"{planned.topic}: every queue is where it belongs, nothing moves")
        return
    click.echo(f"{planned.topic}: {_queues(len(planned.moved))} to move ({_MODES[planned.mode]})")
    rows = [(move.queue, move.source, move.target, move.old_partition or "-") for move in planned.moved]
    print_table(("queue", "from", "to", "partition until now"), rows, right=("queue",))


def _print_outcome(done: Remapping) -> None:
    what = "sends to one waited" if done.mode == "strict" else "the offsets of one were undecided"
    longest = "" if done.seal_ms is None else f"; {what} for {done.seal_ms:,.0f} ms at most"
    click.echo(f"moved {_queues(len(done.moved))}{longest}")
    rows = [
        (
            move.queue,
            move.old_partition or "-",
            _or_dash(move.end_offset),
            move.new_partition or "-",
            _or_dash(move.logic_offset),
        )
        for move in done.moved
    ]
    columns = ("queue", "sealed partition", "its end", "new partition", "begins at logical offset")
    print_table(columns, rows, right=("queue", "its end", "begins at logical offset"))


def _sealed(admin: Admin, name: str, wait_s: float) -> TopicInfo:
    """Wait `wait_s` seconds until the logical offsets of all queues are decided; a bar counts the decided ones.

    Raises
    ------
    Unavailable
        `not_sealed`: a broker's process has not sealed its old partitions in time; it will when it is back.
    """
    deadline = time.monotonic() + wait_s
    info = admin.get_topic(name)
    total = len(_undecided(info))
    if not total:
        return info
    with row_bar(f"sealing queues of {name}", total) as advance:
        while waiting := _undecided(info):
            advance(total - len(waiting))
            if time.monotonic() > deadline:
                raise Unavailable(
                    f"the old partitions of {_queues(len(waiting))} are not sealed yet, first {waiting[0].partition}",
                    code="not_sealed",
                )
            time.sleep(_LOOK_S)
            info = admin.get_topic(name)
        advance(total)
    return info


def _undecided(info: TopicInfo) -> list[QueueInfo]:
    return [queue for queue in info.queues if queue.leader is not None and not queue.leader.is_decided]


def _outcome(moved: MovedQueue, info: TopicInfo) -> MovedQueue:
    """Return the move with the new partition and the offsets that the topic shows now."""
    queue = next((queue for queue in info.queues if queue.queue == moved.queue), None)
    segments = () if queue is None else queue.segments
    for old, new in pairwise(segments):
        if old.partition == moved.old_partition:
            return replace(moved, new_partition=new.partition, end_offset=old.end_offset, logic_offset=new.logic_offset)
    return moved


# Check and repair ----------------------------------------------------------------------------------------------


@click.command()
@click.argument("name")
@service_options
def check(name: str, url: str, access: ClientAccess, as_json: bool) -> int:
    """Check the mappings of static topic NAME on all brokers; exits 1 and names what is missing or torn."""
    with Admin(url, patience=PATIENCE, **access) as admin:
        info = admin.check_topic(name)
    if as_json:
        print_json(info)
    else:
        _print_check(info)
    return 0 if info.complete else _FAILED


def _print_check(info: TopicCheck) -> None:
    state = "complete" if info.complete else f"not complete, {len(info.faults):,} faults"
    click.echo(f"{info.topic}: {state}: {_queues(info.total_queues)}, epoch {info.epoch}")
    rows = [(m.broker, str(m.epoch), m.total_queues, m.hosted, m.copies) for m in info.mappings]
    columns = ("broker", "epoch", "queues", "leads", "copies")
    print_table(columns, rows, right=columns[1:])
    _print_faults(info.faults)


def _print_faults(faults: Sequence[FaultInfo]) -> None:
    if not faults:
        return
    rows = [(fault.kind, fault.broker or "-", _or_dash(fault.queue), fault.detail) for fault in faults]
    print_table(("fault", "broker", "queue", "detail"), rows, right=("queue",))


@click.command()
@click.argument("name")
@click.option("--plan", is_flag=True, help="Only print the faults and the brokers whose mappings would be written.")
@service_options
def repair(name: str, plan: bool, url: str, access: ClientAccess, as_json: bool) -> None:
    """Rewrite the mappings of static topic NAME from the copies that survive, if they have faults."""
    with Admin(url, patience=PATIENCE, **access) as admin:
        planned = admin.repair_topic(name, plan=True)
        if not as_json:
            _print_faults(planned.faults)
        done = planned if plan or not planned.faults else admin.repair_topic(name)
        # A retry after a lost answer finds no faults.
        outcome = replace(done if done.faults else planned, plan=plan)
    if as_json:
        print_json(outcome)
    elif not outcome.faults:
        click.echo(f"{outcome.topic}: nothing to repair")
    else:
        verb = "would write" if plan else "wrote"
        click.echo(f"{verb} the mappings of {', '.join(outcome.repaired) or 'no broker'}")


# Create and show -----------------------------------------------------------------------------------------------


def static_line(info: TopicInfo) -> str:
    """Return a static topic in one line: its queues and the brokers, or the clusters, that lead them."""
    if info.clusters is not None:
        return f"{_queues(len(info.queues))} in clusters {', '.join(info.clusters)}, home {info.home}"
    brokers = sorted({queue.broker for queue in info.queues if queue.broker is not None})
    return f"{_queues(len(info.queues))} on {', '.join(brokers) or 'no broker'}"


def print_static_topic(info: TopicInfo) -> None:
    """Print the logical queues of a static topic, then its physical partitions beside them (SPEC STATIC-18)."""
    if info.clusters is not None:
        _print_stays(info)
    rows = [
        (
            queue.partition,
            " ".join(f"[{low},{high})" for low, high in queue.logical_partitions),
            _or_dash(queue.min_offset),
            _or_dash(queue.max_offset),
            _or_dash(queue.messages),
            _or_dash(queue.holes),
            len(queue.segments),
            queue.broker or "-",
            queue.state,
        )
        for queue in info.queues
    ]
    columns = ("logical queue", "LPs", "min", "max", "messages", "holes", "segments", "leader on", "state")
    print_table(columns, rows, right=("min", "max", "messages", "holes", "segments"))
    of_queue = {segment.partition: (queue, segment) for queue in info.queues for segment in queue.segments}
    shown = [(partition, *of_queue.get(partition.partition, (None, None))) for partition in info.partitions]
    # Partitions whose queue is not known, because its mapping is missing, come last.
    shown.sort(key=lambda row: (len(info.queues) if row[1] is None else row[1].queue, row[2] and row[2].gen))
    print_table(
        ("queue", "gen", "logical offsets", *_PHYSICAL, "state", "last append", "location"),
        [_partition_row(*row) for row in shown],
        right=("queue", "gen", *_PHYSICAL[1:]),
    )


def _print_stays(info: TopicInfo) -> None:
    """Print which clusters have had the queues of a global topic (SPEC STATIC-19)."""
    click.echo(f"clusters {', '.join(info.clusters or ())}, home {info.home}")
    rows = [
        (
            queue.partition,
            stay.cluster,
            "undecided" if stay.logic_offset < 0 else stay.logic_offset,
            stay.local_start,
            "-" if stay.local_end < 0 else stay.local_end,
        )
        for queue in info.queues
        for stay in queue.stays or ()
    ]
    columns = ("global queue", "cluster", "begins at offset", "there from", "to")
    print_table(columns, rows, right=columns[2:])


def _partition_row(
    partition: PartitionInfo, queue: QueueInfo | None, segment: SegmentInfo | None
) -> tuple[object, ...]:
    numbers = (partition.min_offset, partition.max_offset, partition.messages, partition.bytes, partition.files)
    appended = partition.last_append_time
    return (
        "-" if queue is None else queue.queue,
        "-" if segment is None else segment.gen,
        "-" if segment is None else _logical_range(segment),
        partition.partition,
        *map(_or_dash, numbers),
        partition.state if segment is None else segment.state,
        "-" if appended is None else appended.isoformat(timespec="milliseconds"),
        partition.location,
    )


def _logical_range(segment: SegmentInfo) -> str:
    """Return `[400,520)`, for a leader `[400,...)`, or `undecided`."""
    if not segment.is_decided:
        return "undecided"
    if not segment.is_sealed:
        return f"[{segment.logic_offset},...)"
    return f"[{segment.logic_offset},{segment.logic_offset + segment.end_offset - segment.start_offset})"


def _queues(count: int) -> str:
    return f"{count:,} logical queue{'' if count == 1 else 's'}"


def _or_dash(number: int | None) -> object:
    return "-" if number is None else number
