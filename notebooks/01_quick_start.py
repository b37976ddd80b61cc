# Databricks notebook source
# MAGIC %md
# MAGIC # Quick start
# MAGIC
# MAGIC A topic is a set of Delta tables, and a message is acknowledged when its Delta commit exists. So a message can
# MAGIC be queried as soon as it is sent: this notebook sends a few rides, queries them in the next cell, and lets a
# MAGIC group of consumers process them.
# MAGIC
# MAGIC It needs a service (`deltamq serve`) on the warehouse of the profile (`DELTAMQ_PROFILE`, else `local`). The job
# MAGIC `merge` runs here, unless `deltamq jobs run` runs it already.

# COMMAND ----------

from __future__ import annotations

import json
import threading
import time
import urllib.request
from collections.abc import Callable
from datetime import UTC, datetime

from pyspark.sql import functions as F

from deltamq import Admin, PopConsumer, Producer, PullConsumer
from deltamq.jobs.run.run_once import run_jobs
from deltamq.jobs.sql import read_topic, register_views, spark_session
from deltamq.tables.config import load

conf = load()
spark = spark_session("quick-start")
run = f"{time.time_ns():x}"
topic, group = f"rides-{run}", f"billing-{run}"

# COMMAND ----------

# MAGIC %md
# MAGIC ## Send
# MAGIC With the SDK: rides of a driver share a key, so they stay in order. The call returns when the ride is stored.

# COMMAND ----------

admin = Admin(conf.client.url)
admin.create_topic(topic, partitions=2)

with Producer(conf.client.url) as producer:
    for number in range(20):
        ride = {"ride": number, "driver": f"driver-{number % 3}", "euros": 5 + number}
        sent = producer.send(topic, json.dumps(ride), key=ride["driver"], tag="ride")
print(f"the last one is at offset {sent.offset} of {sent.partition}")

# COMMAND ----------

# MAGIC %md
# MAGIC Over REST, as the SDK does it. The answer says where each message was stored.

# COMMAND ----------

rides = [{"ride": number, "driver": "driver-9", "euros": 1} for number in (20, 21)]
messages = [{"key": ride["driver"], "tag": "ride", "body": json.dumps(ride)} for ride in rides]
request = urllib.request.Request(
    f"{conf.client.url}/v1/topics/{topic}/messages",
    data=json.dumps({"messages": messages}).encode(),
    headers={"Content-Type": "application/json"},
)
with urllib.request.urlopen(request) as answer:
    ranges = json.load(answer)["ranges"]
print(ranges)
assert sum(one["count"] for one in ranges) == 2
acknowledged = datetime.now(UTC)

# COMMAND ----------

# MAGIC %md
# MAGIC ## Query
# MAGIC There is no connector and no copy: `read_topic` is a DataFrame over the tables that hold the messages.

# COMMAND ----------

parsed = F.from_json(F.col("body").cast("string"), "ride INT, driver STRING, euros INT")
typed = (
    read_topic(spark, topic)
    .select("partition", "offset", "append_time", parsed.alias("parsed"))
    .select("partition", "offset", "append_time", "parsed.*")
)
typed.orderBy("ride").show(5, truncate=False)
assert typed.count() == 22, "all that was acknowledged, at once"

# COMMAND ----------

earned = {row.driver: row.euros for row in typed.groupBy("driver").agg(F.sum("euros").alias("euros")).collect()}
print(earned)
assert earned == {"driver-0": 98, "driver-1": 105, "driver-2": 87, "driver-9": 2}

# COMMAND ----------

# MAGIC %md
# MAGIC The topic as a Spark data source, with the options of Spark's Kafka source. Name the columns that you need.

# COMMAND ----------

keys = (
    spark.read.format("mq")
    .schema("key STRING, offset BIGINT")
    .option("topic", topic)
    .option("startingOffsets", "earliest")
    .load()
)
keys.groupBy("key").agg(F.count("*").alias("rides"), F.max("offset").alias("last_offset")).orderBy("key").show()
assert keys.count() == 22

# COMMAND ----------

# MAGIC %md
# MAGIC Every message has the time of its commit. So a read can begin at a time, in SQL or by an offset.

# COMMAND ----------

first, last = typed.agg(F.min("append_time"), F.max("append_time")).first()
print(f"stored from {first} to {last}")
ends = {one.partition: one.max_offset for one in admin.get_topic(topic).partitions}
assert admin.offsets_at(topic, acknowledged) == ends, "nothing was stored after the last acknowledgement"

# COMMAND ----------

# MAGIC %md
# MAGIC ## Consume
# MAGIC Reading by offset does not affect other readers: each one has its own position.

# COMMAND ----------

with PullConsumer(conf.client.url, topic, start="first") as reader:
    read = []
    while len(read) < 22:
        read += reader.poll()
assert sorted(json.loads(message.text)["ride"] for message in read) == list(range(22))

# COMMAND ----------

# MAGIC %md
# MAGIC A group shares the work: each ride goes to one of its workers, and is done when that worker acknowledges it.

# COMMAND ----------

billed: list[int] = []
lock = threading.Lock()


def bill(message):
    with lock:
        billed.append(json.loads(message.body)["ride"])


def wait_until(what: str, seen: Callable[[], bool], timeout_s: float = 120) -> None:
    deadline = time.monotonic() + timeout_s
    while not seen():
        assert time.monotonic() < deadline, f"not seen: {what}"
        time.sleep(0.05)


admin.create_group(group)
with PopConsumer(conf.client.url, group, topic, bill) as workers:
    workers.start()
    wait_until("every ride on a bill", lambda: len(billed) >= 22)
assert sorted(billed) == list(range(22)), "each of them once"

# COMMAND ----------

# MAGIC %md
# MAGIC ## How far is the group?
# MAGIC The progress of groups is in tables, too. The job `merge` keeps them up to date, and `register_views` names
# MAGIC them.

# COMMAND ----------

run_jobs(spark, conf, "merge")
register_views(spark, conf)


def is_done() -> bool:
    """Return whether the tables show the group as done: the service stores offsets a few times a second."""
    run_jobs(spark, conf, "merge")
    return spark.sql(f"SELECT sum(lag) FROM mq_lag WHERE `group` = '{group}' AND NOT retry").first()[0] == 0


wait_until("a group that is done", is_done)
spark.sql(f"""
    SELECT partition, committed_offset, end_offset, lag
    FROM mq_lag WHERE `group` = '{group}' AND NOT retry ORDER BY partition
""").show(truncate=False)

# COMMAND ----------

account = spark.sql(f"""
    SELECT (SELECT sum(end_offset) FROM mq_partitions WHERE space = 'topics' AND topic = '{topic}') AS rides,
           (SELECT sum(lag) FROM mq_lag WHERE `group` = '{group}' AND NOT retry) AS left,
           (SELECT count(*) FROM mq_lost WHERE `group` = '{group}') AS lost
""").first()
print(account)
assert (account.rides, account.left, account.lost) == (22, 0, 0)
admin.close()
