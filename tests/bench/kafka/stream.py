"""A stream of whole rows beside Spark's own Kafka source on Kafka: the same query, in a Spark of its own for each.

python -m tests.bench.kafka.stream mq WAREHOUSE MESSAGES FOLDER     messages a second of some runs, as JSON
python -m tests.bench.kafka.stream kafka SERVER MESSAGES FOLDER     the same of Spark's Kafka source
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np

from tests.bench.figure import Figure
from tests.bench.jobs.stream import WARMUP_QUERIES, FilledTopic, query_s, stream_of
from tests.bench.peers import Kafka
from tests.bench.registry import bench
from tests.bench.session import Session

__all__: list[str] = []

_TOPIC: Final = "orders"
_PARTITIONS: Final = 4
_BODY_BYTES: Final = 100
_RUNS: Final = 5


@bench("stream.kafka")
def beside_kafka(session: Session) -> Iterator[Figure]:
    """Whole rows a second of ours and of Spark's Kafka source, one after the other."""
    if session.peers is None or not session.effort.spark:
        session.say("no stream.kafka figures: they need Spark and the peers (PEERS=DIR)")
        return
    messages = session.effort.history_messages
    topic = FilledTopic(session.fresh("beside-kafka"), _PARTITIONS)
    topic.fill(messages)
    topic.close()
    ours = _rates("mq", topic.uri, messages, session.fresh("ours"))
    with session.peers.kafka() as kafka:
        kafka.make_topic(_TOPIC, _PARTITIONS)
        _produce(kafka, messages)
        theirs = _rates("kafka", kafka.server, messages, session.fresh("theirs"))
    yield session.figure("stream.kafka.ours", "a stream of whole rows, in a process of its own", "msg/s", ours)
    yield session.figure("stream.kafka.theirs", "the same from Kafka by Spark's Kafka source", "msg/s", theirs)
    ratio = float(np.median(ours) / np.median(theirs))
    yield session.figure("stream.kafka.ratio", "ours to Spark's Kafka source", "x", [ratio])


def _produce(kafka: Kafka, messages: int) -> None:
    command = [*kafka.java, "org.apache.kafka.tools.ProducerPerformance", "--topic", _TOPIC]
    command += ["--num-records", str(messages), "--record-size", str(_BODY_BYTES), "--throughput", "-1"]
    command += ["--bootstrap-server", kafka.server, "--command-property", "acks=all", "batch.size=65536", "linger.ms=5"]
    subprocess.run(command, env=kafka.environment, check=True, capture_output=True)


def _rates(source: str, place: str, messages: int, folder: Path) -> list[float]:
    command = [sys.executable, "-m", "tests.bench.kafka.stream", source, place, str(messages), str(folder)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE)
    rates: list[float] = json.loads(done.stdout.splitlines()[-1])
    return rates


def _kafka_stream(spark: Any, server: str) -> Any:
    options = {"kafka.bootstrap.servers": server, "subscribe": _TOPIC, "startingOffsets": "earliest"}
    return spark.readStream.format("kafka").options(**options).load()


def main(source: str, place: str, messages: int, folder: Path) -> None:
    """Warm up, then measure some queries."""
    import pyspark

    from deltamq.jobs.spark.session import spark_session

    of_kafka: dict[str, Any] = {
        "spark.jars.packages": f"org.apache.spark:spark-sql-kafka-0-10_2.13:{pyspark.__version__}"
    }
    spark = spark_session("stream-beside", warehouse=folder, **(of_kafka if source == "kafka" else {}))
    frame = _kafka_stream(spark, place) if source == "kafka" else stream_of(spark, place)
    took = [query_s(frame, Path(tempfile.mkdtemp(dir=folder)), messages) for _ in range(WARMUP_QUERIES + _RUNS)]
    spark.stop()
    print(json.dumps([messages / one for one in took[WARMUP_QUERIES:]]), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), Path(sys.argv[4]))
