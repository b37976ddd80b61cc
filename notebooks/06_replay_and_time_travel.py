# Databricks notebook source
# MAGIC %md
# MAGIC # Replay and time travel
# MAGIC
# MAGIC The stock of a shop is computed from a topic of movements. On one day the code had a mistake: it refused
# MAGIC returns. This notebook reads the topic as it was on that day, sends the dead letters back once the mistake is
# MAGIC fixed, and lets a group read everything again from a point in time.
# MAGIC
# MAGIC It needs a service (`deltamq serve`) on the warehouse of the profile (`DELTAMQ_PROFILE`, else `local`). The jobs
# MAGIC `revive` and `merge` run here, unless `deltamq jobs run` runs them already.

# COMMAND ----------

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime

from deltamq import Admin, PopConsumer, Producer, Result
from deltamq.jobs.run.run_once import run_jobs
from deltamq.jobs.sql import read_topic, register_views, spark_session
from deltamq.tables.config import load

conf = load()
spark = spark_session("replay-and-time-travel")
run = f"{time.time_ns():x}"
topic, group = f"stock-{run}", f"account-{run}"
admin = Admin(conf.client.url)
admin.create_topic(topic, partitions=2)
admin.create_group(group, max_attempts=2)

# COMMAND ----------

# MAGIC %md
# MAGIC ## Two days
# MAGIC Sales and returns of forty items, on one day and on the next.

# COMMAND ----------


def send(day: str, count: int) -> None:
    with Producer(conf.client.url) as producer:
        for number in range(count):
            kind = "return" if number % 10 == 0 else "sale"
            movement = {"day": day, "item": f"item-{number % 40}", "kind": kind, "pieces": 1 + number % 3}
            producer.send_soon(topic, json.dumps(movement), key=movement["item"], tag=kind)


send("monday", 400)
monday_night = datetime.now(UTC)
send("tuesday", 200)

# COMMAND ----------

# MAGIC %md
# MAGIC ## Time travel
# MAGIC `asOfTime` reads the topic as it was at a moment, the same in all partitions; `asOfOffset` as it was at an
# MAGIC offset. Later messages never change the answer, and a state of which retention has removed messages is refused.

# COMMAND ----------

DAY = "get_json_object(CAST(body AS STRING), '$.day')"
spark.read.format("mq").option("topic", topic).option(
    "asOfTime", monday_night.isoformat()
).load().createOrReplaceTempView("monday")
read_topic(spark, topic).createOrReplaceTempView("now")
spark.sql(f"SELECT {DAY} AS day, tag, count(*) AS movements FROM monday GROUP BY ALL ORDER BY ALL").show()
spark.sql(f"SELECT {DAY} AS day, tag, count(*) AS movements FROM now GROUP BY ALL ORDER BY ALL").show()
assert spark.table("monday").count() == 400
assert spark.table("now").count() == 600

partitions = [found.partition for found in admin.get_topic(topic).partitions]
early = json.dumps({topic: dict.fromkeys(partitions, 10)})
assert read_topic(spark, topic, asOfOffset=early).count() == 10 * len(partitions)

# COMMAND ----------

# MAGIC %md
# MAGIC ## The mistake
# MAGIC The group refuses returns. After two attempts they are dead letters, in a table with the reason.

# COMMAND ----------

heard: list[dict] = []
lock = threading.Lock()


def refuse_returns(message):
    movement = json.loads(message.body)
    if movement["kind"] == "return":
        return Result.RETRY(delay_ms=0)
    with lock:
        heard.append(movement)


def hear_all(message):
    with lock:
        heard.append(json.loads(message.body))


def run_until(what: str, handler: Callable, seen: Callable[[], bool], timeout_s: float = 300) -> None:
    """Consume, and run the jobs as a schedule would, until `seen` is true."""
    deadline = time.monotonic() + timeout_s
    with PopConsumer(conf.client.url, group, topic, handler) as consumer:
        consumer.start()
        while not seen():
            assert time.monotonic() < deadline, f"not seen: {what}"
            run_jobs(spark, conf, "revive", "merge")


def count(query: str) -> int:
    return spark.sql(query).first()[0] or 0


run_jobs(spark, conf, "merge")
register_views(spark, conf)
dead = f"SELECT count(*) FROM mq_dead_letters WHERE `group` = '{group}'"
lag = f"SELECT sum(lag) FROM mq_lag WHERE `group` = '{group}'"
run_until("the returns among the dead letters", refuse_returns, lambda: count(dead) == 60)
spark.sql(f"""
    SELECT reason, tag, attempts, count(*) AS messages FROM mq_dead_letters WHERE `group` = '{group}' GROUP BY ALL
""").show(truncate=False)
assert len(heard) == 540

# COMMAND ----------

# MAGIC %md
# MAGIC ## Replay
# MAGIC The mistake is fixed. The dead letters go back to this group alone (`to="retry"`); other groups of the topic
# MAGIC do not get them. A repeated replay sends nothing twice.

# COMMAND ----------

print(admin.replay_dead_letters(group, to="retry"))
again = admin.replay_dead_letters(group, to="retry")
run_until("all movements", hear_all, lambda: len(heard) >= 600)
pieces = sum((1 if one["kind"] == "return" else -1) * one["pieces"] for one in heard)
print(f"{len(heard)} movements, stock {pieces:+d}")
assert len(heard) == 600

# COMMAND ----------

# MAGIC %md
# MAGIC ## Reset
# MAGIC The results of Tuesday are lost. The group is reset to Monday night: that begins a new epoch, in which
# MAGIC everything that clients of the previous epoch still hold is void.

# COMMAND ----------

heard.clear()
print(admin.reset_offsets(group, topic, monday_night, keep_retries=False))
run_until("Tuesday once more", hear_all, lambda: len(heard) >= 200)
assert {one["day"] for one in heard} == {"tuesday"}

# COMMAND ----------

# MAGIC %md
# MAGIC ## The account
# MAGIC The movements that the group got, beside the same sum in SQL over the topic's tables.

# COMMAND ----------

stock = """
    SELECT sum(if(tag = 'return', 1, -1) * CAST(get_json_object(CAST(body AS STRING), '$.pieces') AS INT))
    FROM now
"""
in_sql = count(stock) - count(stock.replace("FROM now", "FROM monday"))
in_group = sum((1 if one["kind"] == "return" else -1) * one["pieces"] for one in heard)
print(f"Tuesday moved the stock by {in_sql:+d}")
assert in_sql == in_group
run_until("a group that is done", hear_all, lambda: count(lag) == 0)
lost = count(f"SELECT count(*) FROM mq_lost WHERE `group` = '{group}'")
print(f"left={count(lag)}, lost={lost}")
assert lost == 0
