# Databricks notebook source
# MAGIC %md
# MAGIC # The queue in SQL
# MAGIC
# MAGIC A group of workers takes payments from a queue. Some payments fail and are tried again, some cannot succeed, and
# MAGIC one worker keeps what it took. Everything that the queue knows about them is a table: this notebook queries
# MAGIC lag, messages in flight, retries, dead letters and losses with SQL alone.
# MAGIC
# MAGIC It needs a service (`deltamq serve`) on the warehouse of the profile (`DELTAMQ_PROFILE`, else `local`). The jobs
# MAGIC `revive` and `merge` run here, unless `deltamq jobs run` runs them already.

# COMMAND ----------

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable

from deltamq import Admin, PopConsumer, Producer, Result
from deltamq.jobs.run.run_once import run_jobs
from deltamq.jobs.sql import register_views, spark_session
from deltamq.tables.config import load

conf = load()
spark = spark_session("queue-in-sql")
run = f"{time.time_ns():x}"
topic, group = f"payments-{run}", f"billing-{run}"

# COMMAND ----------

# MAGIC %md
# MAGIC ## A small real run
# MAGIC Sixty payments. A payment is delivered at most twice; then it is a dead letter.

# COMMAND ----------

with Admin(conf.client.url) as admin:
    admin.create_topic(topic, partitions=2)
    admin.create_group(group, max_attempts=2)

with Producer(conf.client.url) as producer:
    for number in range(60):
        card = ("visa", "amex", "none")[number % 3] if number < 30 else "visa"
        producer.send(topic, json.dumps({"payment": number, "card": card}), key=f"customer-{number % 7}")

# COMMAND ----------

# MAGIC %md
# MAGIC One worker charges cards. `amex` does not work today (retry), `none` is not a card at all (a dead letter at
# MAGIC once). Another worker takes eight payments and keeps them until we let go.

# COMMAND ----------

let_go = threading.Event()
held: list[str] = []


def think(message):
    held.append(message.message_id)
    let_go.wait()


def charge(message):
    card = json.loads(message.body)["card"]
    if card == "none":
        return Result.DEAD("there is no card")
    return Result.RETRY(delay_ms=0) if card == "amex" else Result.OK


def wait_until(what: str, seen: Callable[[], bool], timeout_s: float = 300) -> None:
    """Run the jobs as a schedule would until `seen` is true."""
    deadline = time.monotonic() + timeout_s
    while not seen():
        assert time.monotonic() < deadline, f"not seen: {what}"
        run_jobs(spark, conf, "revive", "merge")


def count(query: str) -> int:
    return spark.sql(query).first()[0] or 0


thinker = PopConsumer(conf.client.url, group, topic, think, concurrency=8)
thinker.start()
wait_until("eight payments in one worker's hands", lambda: len(held) == 8)

worker = PopConsumer(conf.client.url, group, topic, charge)
worker.start()

# COMMAND ----------

# MAGIC %md
# MAGIC ## The views
# MAGIC `register_views` makes temporary views over the state tables, which the job `merge` keeps up to date, and over
# MAGIC the groups' own logs. (What the service still matches in memory, for at most ten seconds, is not in any table
# MAGIC yet.)

# COMMAND ----------

run_jobs(spark, conf, "merge")
register_views(spark, conf)
spark.sql("SHOW VIEWS LIKE 'mq_*'").select("viewName").show(truncate=False)

# COMMAND ----------

# MAGIC %md
# MAGIC **In flight**: popped and not acknowledged; with the time of the pop, the end of the lease, and the attempt.

# COMMAND ----------

in_flight = f"SELECT count(*) FROM mq_in_flight WHERE `group` = '{group}'"
wait_until("what the thinker holds", lambda: count(in_flight) >= len(held))
spark.sql(f"""
    SELECT partition, offset, attempt, pop_time, revive_time, overdue
    FROM mq_in_flight WHERE `group` = '{group}' ORDER BY partition, offset
""").show(truncate=False)

# COMMAND ----------

# MAGIC %md
# MAGIC **Dead letters**: the reason, the number of deliveries, and the origin.

# COMMAND ----------

dead = f"SELECT count(*) FROM mq_dead_letters WHERE `group` = '{group}'"
wait_until("the dead letters", lambda: count(dead) >= 20 - len(held))
spark.sql(f"""
    SELECT reason, attempts, origin_partition, count(*) AS messages, min(CAST(body AS STRING)) AS one_of_them
    FROM mq_dead_letters WHERE `group` = '{group}' GROUP BY ALL ORDER BY ALL
""").show(truncate=False)

# COMMAND ----------

# MAGIC %md
# MAGIC **Retries by attempt**: messages that were delivered again, and those of them that still wait.

# COMMAND ----------

retries = f"SELECT topic, attempt, messages, waiting, oldest FROM mq_retries WHERE `group` = '{group}' ORDER BY attempt"
spark.sql(retries).show(truncate=False)

# COMMAND ----------

# MAGIC %md
# MAGIC **Lag**: what the group has not committed, by partition. The second worker's payments hold it up: we let go.

# COMMAND ----------

let_go.set()
lag = f"SELECT sum(lag) FROM mq_lag WHERE `group` = '{group}'"
wait_until("a group that is done", lambda: count(in_flight) == 0 and count(lag) == 0)
thinker.close()
worker.close()
spark.sql(f"""
    SELECT partition, retry, committed_offset, end_offset, lag, in_flight
    FROM mq_lag WHERE `group` = '{group}' ORDER BY retry, partition
""").show(truncate=False)

# COMMAND ----------

# MAGIC %md
# MAGIC **Lost**: messages that retention removed before the group could read them. There should be none.

# COMMAND ----------

spark.sql(f"SELECT * FROM mq_lost WHERE `group` = '{group}'").show()

# COMMAND ----------

# MAGIC %md
# MAGIC ## The account
# MAGIC Every payment was charged or is a dead letter: none is left over, and none was processed twice.

# COMMAND ----------

account = spark.sql(f"""
    SELECT (SELECT sum(end_offset) FROM mq_partitions WHERE space = 'topics' AND topic = '{topic}') AS payments,
           (SELECT count(*) FROM mq_dead_letters WHERE `group` = '{group}') AS dead,
           (SELECT count(DISTINCT message_id) FROM mq_dead_letters WHERE `group` = '{group}') AS dead_once,
           (SELECT sum(lag) FROM mq_lag WHERE `group` = '{group}') AS left,
           (SELECT count(*) FROM mq_lost WHERE `group` = '{group}') AS lost
""").first()
print(account)
assert account.payments == 60
assert account.dead == account.dead_once
assert (account.left, account.lost) == (0, 0)
