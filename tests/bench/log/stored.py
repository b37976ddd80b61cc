"""Bytes on disk for each message, for real messages: the flight events of 2013, as `make run` sends them.

Ours: the live data files and the live part of the log after upkeep has nothing left to do; files that a roll-up
replaced go away by themselves and are named beside. Kafka's: the segment files of its own broker when the peers are
there, else computed from its record format; uncompressed, with key, value and time only.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa

from deltamq.jobs.flights.events import events_of, read_airports, read_flights
from deltamq.mq.partitioners import logical_partitions
from deltamq.mq.routing import new_route
from deltamq.tables.delta.stamped import ProducerStamp
from deltamq.tables.log.batch import Batch
from deltamq.tables.log.log import PartitionLog
from tests.bench.figure import Figure
from tests.bench.kafka.format import log_bytes
from tests.bench.log.append import open_logs
from tests.bench.peers import Peers
from tests.bench.registry import bench
from tests.bench.session import Session

_PARTITIONS: Final = 4
#: Messages of one request for one partition, as the SDK's batches under load.
_BATCH: Final = 500


def _events(share: float) -> list[pa.Table]:
    """The events of each partition, in order."""
    flights = read_flights()
    events = events_of(flights.slice(0, int(flights.num_rows * share)), read_airports()).combine_chunks()
    key = events["key"].combine_chunks().fill_null("")
    _, ends, text = key.buffers()
    places = logical_partitions(
        np.frombuffer(ends, dtype=np.int32)[: len(key) + 1], np.frombuffer(text, dtype=np.uint8)
    )
    partition = new_route("flights", _PARTITIONS, ["broker-a"]).table[places]
    return [events.filter(pa.array(partition == p)).combine_chunks() for p in range(_PARTITIONS)]


def _store(log: PartitionLog, events: pa.Table) -> None:
    rows = events.select(["key", "tag", "body"]).append_column("born_time", events["time"])
    for seq, batch in enumerate(rows.to_batches(max_chunksize=_BATCH)):
        log.append([Batch(batch, ProducerStamp("bench-producer", seq, None, batch.num_rows))])
        log.maintain()
    while log.maintain():
        pass


def _folder_bytes(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


@bench("stored.flights")
def flights(session: Session) -> Iterator[Figure]:
    """Ours and Kafka's bytes for each flight event."""
    parts = _events(session.effort.flights_share)
    count = sum(p.num_rows for p in parts)
    with open_logs(session.fresh("stored"), _PARTITIONS) as logs:
        for log, events in zip(logs, parts, strict=True):
            _store(log, events)
        data = sum(log.stats().bytes for log in logs)
        commits = sum(_folder_bytes(Path(log.location) / "_delta_log") for log in logs)
        files = sum(log.stats().files for log in logs)
        replaced = sum(_folder_bytes(Path(log.location)) for log in logs) - data - commits
    text = sum(events["body"].nbytes for events in parts) / count
    said = f"{count:,} flight events (JSON bodies of {text:.0f} B) in {_PARTITIONS} partitions, {_BATCH} an append"
    yield session.figure(
        "stored.flights.bytes",
        f"{said}: live data files for each message",
        "B/msg",
        [data / count],
        files=files,
        log_bytes_per_message=round(commits / count, 2),
        replaced_bytes_per_message=round(replaced / count, 2),
    )
    computed = sum(log_bytes(p["key"].combine_chunks(), p["body"].combine_chunks()) for p in parts)
    measured = _kafka_bytes(session.peers, session.fresh("kafka-input"), parts) if session.peers else None
    kafka = computed if measured is None else measured
    how = "computed from record format v2" if measured is None else "its segment files"
    yield session.figure(
        "stored.flights.kafka",
        f"the same events in Kafka, uncompressed, {how}",
        "B/msg",
        [kafka / count],
        computed=round(computed / count, 2),
    )
    yield session.figure(
        "stored.flights.ratio",
        f"DeltaMQ's data files to Kafka's ({how})",
        "x",
        [data / kafka],
        with_log=(data + commits) / kafka,
    )


def _kafka_bytes(peers: Peers, folder: Path, parts: list[pa.Table]) -> int:
    """Send the events to Kafka's own broker, and count the bytes of its segments."""
    lines = folder / "events.tsv"
    with lines.open("wb") as out:
        for events in parts:
            for key, body in zip(events["key"].to_pylist(), events["body"].to_pylist(), strict=True):
                out.write((key or "none").encode() + b"\t" + body + b"\n")
    with peers.kafka() as kafka, lines.open("rb") as source:
        kafka.make_topic("flights", _PARTITIONS)
        command = [*kafka.java, "org.apache.kafka.tools.ConsoleProducer", "--bootstrap-server", kafka.server]
        command += ["--topic", "flights", "--compression-codec", "none", "--batch-size", "65536"]
        command += ["--reader-property", "parse.key=true"]
        subprocess.run(command, stdin=source, env=peers.environment, check=True, capture_output=True)
        return sum(file.stat().st_size for file in kafka.data.glob("flights-*/*.log"))
