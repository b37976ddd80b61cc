"""From an acknowledgement to the row in a typed table: ours, and Kafka with `from_avro` and a sink in Spark beside it.

python -m tests.bench.kafka.freshness SERVER TABLE     such a stream into the table, until the input ends
"""

from __future__ import annotations

import io
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import fastavro
import numpy as np
from confluent_kafka import Producer
from confluent_kafka.schema_registry import Schema, SchemaRegistryClient
from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError

from tests.bench.figure import Figure
from tests.bench.kafka.door import QUIET, kafka_service
from tests.bench.registry import bench
from tests.bench.session import Session

_TOPIC: Final = "orders"
_AVRO: Final = json.dumps(
    {"type": "record", "name": "Order", "fields": [{"name": "id", "type": "long"}, {"name": "amount", "type": "long"}]}
)
#: Magic 0 and the schema's id, before each body.
_HEADER_BYTES: Final = 5
_MESSAGES: Final = 60
_WARMUP_MESSAGES: Final = 5
_LOOK_EVERY_S: Final = 0.002
_LIMIT_S: Final = 120.0


@bench("typed.freshness")
def freshness(session: Session) -> Iterator[Figure]:
    """How long a reader of the table waits for a message that is acknowledged; each waits for the one before."""
    with kafka_service(session, "freshness") as (service, address):
        with SchemaRegistryClient({"url": "http://{}:{}/schemas".format(*service.address)}) as registry:
            header = b"\0" + registry.register_schema(f"{_TOPIC}-value", Schema(_AVRO, "AVRO")).to_bytes(4)
        schema = {"format": "avro", "wire": "confluent"}
        service.call("PUT", f"/v1/topics/{_TOPIC}", {"partitions": 1, "schema": schema})
        (partition,) = service.call("GET", f"/v1/topics/{_TOPIC}")["partitions"]
        ours = _waits(address, header, lambda: _ids(partition["location"], "value"))
    said = "from an acknowledgement to the row in the typed table, as a reader sees it"
    yield session.figure("typed.freshness.ours", said, "ms", ours)
    if session.peers is None or not session.effort.spark:
        session.say("no typed.freshness.theirs: it needs Spark and the peers (PEERS=DIR)")
        return
    table = session.fresh("freshness-theirs") / "orders"
    with session.peers.kafka() as kafka:
        kafka.make_topic(_TOPIC, 1)
        command = [sys.executable, "-m", "tests.bench.kafka.freshness", kafka.server, str(table)]
        with subprocess.Popen(command, stdin=subprocess.PIPE) as stream:
            theirs = _waits(kafka.server, b"\0\0\0\0\1", lambda: _ids(str(table), None))
            stream.communicate()
    said = "the same of Kafka, Spark's from_avro and its Delta sink, without a trigger's pause"
    yield session.figure("typed.freshness.theirs", said, "ms", theirs)


def _waits(server: str, header: bytes, ids: Callable[[], set[int]]) -> list[float]:
    """Send messages one by one; return the milliseconds from each acknowledgement until its id is in the table."""
    producer = Producer({"bootstrap.servers": server, **QUIET, "acks": "all", "linger.ms": 0})
    waits = []
    for number in range(_WARMUP_MESSAGES + _MESSAGES):
        producer.produce(_TOPIC, header + _encoded(number))
        if producer.flush(_LIMIT_S):
            raise TimeoutError(f"{server} did not acknowledge message {number}")
        acknowledged = time.perf_counter()
        while number not in ids():
            if time.perf_counter() - acknowledged > _LIMIT_S:
                raise TimeoutError(f"message {number} is not in the table after {_LIMIT_S:.0f} s")
            time.sleep(_LOOK_EVERY_S)
        waits.append((time.perf_counter() - acknowledged) * 1_000)
        # Messages come at any time of a batch, not always behind the one that stored the last.
        time.sleep(np.random.default_rng(number).uniform(0, 1))
    return waits[_WARMUP_MESSAGES:]


def _encoded(number: int) -> bytes:
    body = io.BytesIO()
    fastavro.schemaless_writer(body, json.loads(_AVRO), {"id": number, "amount": number * 7})
    return body.getvalue()


def _ids(table: str, struct: str | None) -> set[int]:
    """Return the ids in the newest version of a table; an empty set before there is one."""
    try:
        rows = DeltaTable(table).to_pyarrow_table(columns=[struct or "id"])
    except TableNotFoundError:
        return set()
    column = rows.column(0).combine_chunks()
    return set((column.field("id") if struct else column).to_pylist())


def main(server: str, table: str) -> None:
    """Run the stream until standard input ends."""
    import pyspark
    from pyspark.sql.avro.functions import from_avro
    from pyspark.sql.functions import expr

    from deltamq.jobs.spark.session import spark_session

    source = f"org.apache.spark:spark-sql-kafka-0-10_2.13:{pyspark.__version__}"
    jars: dict[str, Any] = {"spark.jars.packages": source}
    spark = spark_session("freshness", warehouse=Path(table).parent, **jars)
    options = {"kafka.bootstrap.servers": server, "subscribe": _TOPIC, "startingOffsets": "earliest"}
    rows = spark.readStream.format("kafka").options(**options).load()
    body = expr(f"substring(value, {_HEADER_BYTES + 1})")
    orders = rows.select(from_avro(body, _AVRO).alias("order")).select("order.*")
    query = orders.writeStream.format("delta").option("checkpointLocation", f"{table}.checkpoint").start(table)
    sys.stdin.read()
    query.stop()
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
