"""What DeltaMQ is asked to reach on two cores, with an fsync before every acknowledgement unless the name says async.

The peers' figures behind some bounds were measured on such a machine; `make bench PEERS=DIR` measures them anew and
prints the ratios, which count more than these absolute bounds.
"""

from __future__ import annotations

from typing import Final

from tests.bench.figure import Target, at_least, at_most

__all__ = ["TARGETS"]

TARGETS: Final[dict[str, Target]] = {
    "append.100000.sync.rate": at_least(1_500_000, "1.5 M msg/s a core, fsynced"),
    "append.100000.sync.per_cpu": at_least(1_500_000, "1.5 M msg/s a core, fsynced"),
    "rest.arrow.100B.rate": at_least(1_000_000, "1.5 x Kafka's 690 k"),
    "rest.arrow.1KiB.mb": at_least(200, "1.5 x Kafka's 133 MB/s"),
    "rest.ndjson.100B.rate": at_least(200_000, "200 k msg/s"),
    "rest.json100.100B.rate": at_least(254_000, "RocketMQ batched"),
    "rest.sync1.sync.p50": at_most(2.0, "a lone producer, fsynced"),
    "rest.sync1.sync.p99": at_most(8.0, "a lone producer, fsynced"),
    "rest.sync1.async.p50": at_most(0.8, "a lone producer, async"),
    "rest.sync16.sync.rate": at_least(4_700, "RocketMQ with 16 clients"),
    "fetch.rest.tail.rate": at_least(3_400_000, "Kafka's consumer"),
    "fetch.rest.history.rate": at_least(3_400_000, "Kafka's consumer"),
    "fetch.rest.tail1000.p50": at_most(3.0, "1,000 messages from the tail"),
    "fetch.rest.random1000.p50": at_most(30.0, "1,000 messages from anywhere"),
    "auth.beside.produce.ratio": at_least(0.95, "at most 5 % less with keys and 100 rules"),
    "auth.beside.fetch.ratio": at_least(0.95, "at most 5 % less with keys and 100 rules"),
    "auth.beside.pop.ratio": at_least(0.95, "at most 5 % less with keys and 100 rules"),
    "auth.beside.check.new": at_most(20, "microseconds of a check that is not remembered"),
    "auth.start.cpu": at_most(0.2, "1,000 principals and 10,000 rules"),
    "auth.start.memory": at_most(20, "1,000 principals and 10,000 rules"),
    "filter.log.ratio": at_least(0.5, "a header is searched at half the speed of a tag"),
    "pop.json32.rate": at_least(100_000, "RocketMQ's POP: 57 k msg/s"),
    "pop.arrow500.rate": at_least(500_000, "Kafka's share groups: 475 k msg/s"),
    "pop.stored32.rate": at_least(60_000, "60 k msg/s with checkpoints stored"),
    "pop.held32.rate": at_least(60_000, "60 k msg/s with a million in flight"),
    "pop.receive.p50": at_most(1.0, "RocketMQ's POP: 1.0 ms"),
    "order.handover.p99": at_most(500, "a partition rests half a second while it is handed over"),
    "loop.send.ratio": at_most(1.1, "one awaiting client, beside one with a thread"),
    "loop.handlers.rate": at_least(8_000, "1,000 handlers that each sleep 100 ms"),
    "order.keys.ratio": at_least(6, "eight listeners of 10 ms in one partition"),
    "cluster.missed.took": at_most(1_000, "serving again, where nobody waits for a lease"),
    "cluster.produce.ratio": at_least(1.6, "a second process, where the cores allow it"),
    **{
        f"console.{page}.took": at_most(300, "a page of the console with 3,000 topics and 1,000 groups")
        for page in (
            *("overview", "topics", "topic", "messages", "groups", "group", "inflight", "retries"),
            *("jobs", "cluster", "settings"),
        )
    },
    "console.open.cpu": at_most(2, "percent of a core for an open console"),
    "console.tails.ratio": at_least(0.5, "a hundred tails do a sender no harm"),
    "console.tails.rss": at_most(300, "what is not read is dropped, or waits in the log"),
    "flat.commit.ratio": at_most(1.2, "a late commit costs what an early one costs"),
    "flat.open.last": at_most(2_000, "opening a partition of 1e6 commits"),
    "flat.fetch.last": at_most(30.0, "1,000 messages from anywhere in 1e8"),
    "stored.flights.ratio": at_most(0.5, "half of Kafka's uncompressed bytes"),
    "revive.storm.32.took": at_most(60, "1,000,000 messages in a minute"),
    "revive.spark.storm.took": at_most(30, "1,000,000 messages in half a minute"),
    "revive.spark.late.revive.p99": at_most(4_000, "a run a second, with 1,000,000 in flight"),
    "revive.spark.cold.took": at_most(25, "a task of cron, or of Databricks"),
    "revive.spark.driver.growth": at_most(100, "what is in flight is not in the driver"),
    "late.revive.p99": at_most(2_000, "RocketMQ takes 2.05 to 3.6 s"),
    "late.delay.p99": at_most(2_000, "as a message whose consumer died"),
    "merge.steady.took": at_most(10, "keeps up with 20 k CK/ACK records a second"),
    "merge.backlog.rate": at_least(63_000, "as fast as on the driver, before tasks did it"),
    "merge.cores.ratio": at_least(1.6, "a second core"),
    "merge.idle.took": at_most(50, "a run without news, 12,000 partitions"),
    "compact.rate": at_least(100, "100 MB/s"),
    "compact.files": at_most(90, "10 GB of a partition lie in about 80 files"),
    "verify.401.took": at_most(20, "one Delta DataFrame for each partition took 237 s"),
    "verify.12001.took": at_most(120, "3,000 topics; it ran out of memory after 34 minutes"),
    **{
        f"catalog.{query}.{way}.ratio": at_most(most, said)
        for query in ("count", "filter", "offsets", "columns")
        for way, most, said in (
            ("view", 1.1, "views that Spark plans natively"),
            ("read_topic", 1.1, "Delta tables below"),
            ("mq", 1.3, "the columns are named"),
        )
    },
    "stream.rate.rows": at_least(2_000_000, "whole rows; 1.5 x Spark's Kafka source"),
    "stream.kafka.ratio": at_least(1.5, "beside Spark's Kafka source"),
    "stream.rate.columns": at_least(4_000_000, "two columns"),
    "stream.latency.p50": at_most(170, "as Spark's Kafka source: 159 ms"),
    "stream.latency.p99": at_most(500, "Spark's Kafka source: 592 ms"),
    "stream.latency.idle": at_most(5, "an idle stream"),
    "stream.plan.p50": at_most(20, "100 partitions, whatever the length of the log"),
    "stream.resume.took": at_most(3_000, "goes on after 1,000,000 commits"),
    "sink.rows.rate": at_least(700_000, "exactly once, with reading; Spark's Kafka sink: 630 k, at least once"),
    "sink.small.took": at_most(200, "a batch of 100 rows; Spark's Delta sink: 980 ms"),
    "static.beside.send": at_most(1.1, "10 % more than on a plain topic"),
    "static.beside.send100": at_most(1.1, "10 % more than on a plain topic"),
    "static.beside.fetch": at_most(1.1, "10 % more than on a plain topic"),
    "static.beside.pop": at_most(1.1, "10 % more than on a plain topic"),
    "static.segments.fetch100": at_most(1.2, "100 segments as fast as one"),
    "static.remap.available.worst": at_most(50, "no failed send, and none that waits"),
    "static.remap.strict.pause": at_most(500, "a short stop"),
    "start.metadata.snapshots": at_most(200, "a start that does not grow with the age of the warehouse"),
    "many.start": at_most(2.0, "a restart with 12,001 partitions"),
    "many.idle.cpu": at_most(3.0, "3 % of a core with 12,001 idle partitions"),
    "many.idle.rss": at_most(300, "300 MiB with 12,001 idle partitions"),
    "many.metrics.took": at_most(100, "a scrape with 3,000 topics"),
    "many.metrics.bytes": at_most(1_000, "a scrape with 3,000 topics"),
    "many.topics.took": at_most(100, "a list of 3,000 topics"),
    "many.topics.bytes": at_most(1_000, "a list of 3,000 topics"),
    "memory.growth": at_most(5.0, "flat under load"),
}
