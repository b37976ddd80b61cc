# Databricks notebook source
# MAGIC %md
# MAGIC # An ordered pipeline
# MAGIC
# MAGIC Orders are created, paid, packed, shipped and delivered, and each step is a message with the order's number as
# MAGIC its key. Two consumers book the steps. No step is ever booked before an earlier one: not when a step fails, not
# MAGIC when a broker is killed in the middle, and not when the topic gets more partitions while it is in use.
# MAGIC
# MAGIC It needs a service (`deltamq serve`) on the warehouse of the profile (`DELTAMQ_PROFILE`, else `local`), and
# MAGIC starts a second one on this machine, in order to kill it. The job `merge` runs here, unless `deltamq jobs run`
# MAGIC runs it already.

# COMMAND ----------

from __future__ import annotations

import atexit
import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable

from deltamq import Admin, OrderlyConsumer, Producer, Suspend, Verdict
from deltamq.jobs.run.run_once import run_jobs
from deltamq.jobs.sql import register_views, spark_session
from deltamq.tables.config import load

conf = load()
spark = spark_session("ordered-pipeline")
run = f"{time.time_ns():x}"
topic, group = f"orders-{run}", f"ledger-{run}"
STEPS = ("created", "paid", "packed", "shipped", "delivered")
ORDERS = [f"order-{number:03d}" for number in range(200)]

# COMMAND ----------

# MAGIC %md
# MAGIC ## Two processes, one warehouse
# MAGIC A service process hosts brokers; processes share nothing but the warehouse. Ours hosts `broker-c`.

# COMMAND ----------

admin = Admin(conf.client.url)


def start_broker() -> subprocess.Popen[str]:
    """Start `deltamq serve --broker broker-c` on a free port; return when it serves."""
    command = [sys.executable, "-m", "deltamq.mq.client.cli", "serve", "--broker", "broker-c", "--port", "0"]
    process = subprocess.Popen([*command, "--warehouse", conf.warehouse.uri], stdout=subprocess.PIPE, text=True)
    atexit.register(process.kill)
    line = process.stdout.readline()
    assert line.startswith("serving "), line
    return process


def wait_until(what: str, seen: Callable[[], object], timeout_s: float = 300) -> None:
    deadline = time.monotonic() + timeout_s
    while not seen():
        assert time.monotonic() < deadline, f"not seen: {what}"
        time.sleep(0.1)


def address_of(broker: str) -> str | None:
    """Return the address at which the broker is served now."""
    return next((one.address for one in admin.cluster().brokers if one.broker == broker and one.online), None)


def show_brokers() -> None:
    for one in admin.cluster().brokers:
        print(f"{one.broker:10} {one.address or 'nobody':28} epoch {one.epoch}")


broker = start_broker()
wait_until("broker-c among the others", lambda: address_of("broker-c") not in (None, address_of("broker-a")))
show_brokers()

# COMMAND ----------

# MAGIC %md
# MAGIC ## Topic, group, consumers
# MAGIC `strict` keeps the order of each key in every case, and repeats a failed message in its place. An `exclusive`
# MAGIC group gives each partition to one client at a time.

# COMMAND ----------

made = admin.create_topic(topic, partitions=6, order_strategy="strict")
admin.create_group(group, consume_strategy="exclusive", consume_from="first")
print(*(one.partition for one in made.partitions), sep="\n")
assert any(one.broker == "broker-c" for one in made.partitions)

# COMMAND ----------

# MAGIC %md
# MAGIC The listener books a step. A card is declined now and then: then it returns `Suspend`, and gets the same message
# MAGIC again before any other of that partition.

# COMMAND ----------

ledger: dict[str, int] = {}
out_of_order: list[str] = []
declined: set[str] = set()
heard_again = 0
lock = threading.Lock()


def book(message):
    global heard_again
    event = json.loads(message.body)
    order, step = event["order"], STEPS.index(event["step"])
    with lock:
        if step == 1 and order.endswith("7") and order not in declined:
            declined.add(order)
            return Suspend(100)
        booked = ledger.get(order, -1)
        if step > booked + 1:
            out_of_order.append(f"{order}: {STEPS[step]} after {STEPS[booked] if booked >= 0 else 'nothing'}")
        heard_again += step <= booked
        ledger[order] = max(step, booked)
    return Verdict.SUCCESS


consumers = [OrderlyConsumer(conf.client.url, group, topic, book) for _ in range(2)]
for consumer in consumers:
    consumer.start()
wait_until("partitions at both", lambda: [len(one.partitions()) for one in consumers] == [3, 3])
for consumer in consumers:
    print(consumer.client_id, *(name for _, name in consumer.partitions()))

# COMMAND ----------

# MAGIC %md
# MAGIC ## A broker is killed in the middle
# MAGIC `kill -9`, while events are produced and booked. The other process takes over its partitions: at once on the
# MAGIC same machine and disk, after the lease (10 seconds) elsewhere. Producer and consumers wait for that, and go on.

# COMMAND ----------

producer = Producer(conf.client.url)
producing: list[threading.Thread] = []


def produce(*steps: str) -> threading.Thread:
    """Send these steps of all orders, in a thread."""

    def send() -> None:
        for step in steps:
            for order in ORDERS:
                producer.send(topic, json.dumps({"order": order, "step": step}), key=order)

    producing.append(threading.Thread(target=send))
    producing[-1].start()
    return producing[-1]


def booked() -> int:
    """Return the number of booked steps."""
    with lock:
        return sum(step + 1 for step in ledger.values())


feed = produce("created", "paid")
wait_until("a good part of it", lambda: booked() > 100)
before = booked()
broker.kill()
broker.wait()
wait_until("a process that stands in for it", lambda: address_of("broker-c") == address_of("broker-a"))
show_brokers()
feed.join()
wait_until("two steps of each order", lambda: booked() == 2 * len(ORDERS))
print(f"{before} steps were booked when it was killed, {booked()} are now; out of order: {len(out_of_order)}")

# COMMAND ----------

# MAGIC %md
# MAGIC The process is started again and gets its broker back: the other process finishes what it has begun and hands
# MAGIC the broker over.

# COMMAND ----------

feed = produce("packed")
broker = start_broker()
wait_until("broker-c in its own process", lambda: address_of("broker-c") not in (None, address_of("broker-a")))
show_brokers()
feed.join()

# COMMAND ----------

# MAGIC %md
# MAGIC ## More partitions, while the topic is in use
# MAGIC An expansion moves keys to new partitions. A consumer gets the messages of a moved key only when its group has
# MAGIC finished with the partition where the key was before.

# COMMAND ----------

feed = produce("shipped", "delivered")
wait_until("some that are shipped", lambda: booked() > 3 * len(ORDERS) + 20)
expanded = admin.put_topic(topic, partitions=9)[0]
print(len(expanded.partitions), "partitions")
feed.join()
wait_until("all steps of all orders", lambda: booked() == len(STEPS) * len(ORDERS))
assert not out_of_order, out_of_order[:5]
assert len(declined) == len([order for order in ORDERS if order.endswith("7")])
print(f"{booked()} steps booked, none out of order; {heard_again} were heard again")

# COMMAND ----------

# MAGIC %md
# MAGIC ## All of it in tables
# MAGIC The owner of each partition, the progress in each, the moves of keys that the group has passed: `merge` keeps
# MAGIC the tables up to date.

# COMMAND ----------

run_jobs(spark, conf, "merge")
register_views(spark, conf)
spark.sql("SELECT broker, online, address, stand_in, epoch, partitions FROM mq_brokers ORDER BY broker").show(
    truncate=False
)
spark.sql(f"""
    SELECT client, size(partitions) AS partitions, lag, leaving
    FROM mq_clients WHERE `group` = '{group}' ORDER BY client
""").show(truncate=False)
spark.sql(f"""
    SELECT source, target, logical_partitions, end_offset, committed_offset, passed
    FROM mq_moves WHERE topic = '{topic}' ORDER BY source, target
""").show(truncate=False)

# COMMAND ----------

# MAGIC %md
# MAGIC The messages themselves, with the order of each key checked by SQL: within a partition, every step of an order
# MAGIC comes after the one before it, and if an order was in two partitions, one of them has the earlier steps.

# COMMAND ----------

spark.read.format("mq").option("topic", topic).load().selectExpr(
    "partition", "offset", "key", "from_json(CAST(body AS STRING), 'step STRING').step AS step"
).createOrReplaceTempView("events")
steps = ", ".join(f"'{step}'" for step in STEPS)
spark.sql(f"""
    SELECT key, partition, array_join(transform(array_sort(collect_list(struct(offset, step))), e -> e.step), ' → ')
           AS steps
    FROM events GROUP BY ALL ORDER BY key, min(array_position(array({steps}), step)) LIMIT 12
""").show(truncate=False)

# COMMAND ----------

# MAGIC %md
# MAGIC ## The account
# MAGIC Every step is stored once and in order, and the group has read all of them.

# COMMAND ----------

for consumer in consumers:
    assert consumer.close(), "everything was handed over"
producer.close()
run_jobs(spark, conf, "merge")
account = spark.sql(f"""
    WITH numbered AS (SELECT *, array_position(array({steps}), step) AS number FROM events),
    placed AS (
        SELECT key, number, lag(number) OVER (PARTITION BY key, partition ORDER BY offset) AS before FROM numbered
    ),
    spans AS (SELECT key, partition, min(number) AS low, max(number) AS high FROM numbered GROUP BY ALL)
    SELECT (SELECT count(*) FROM numbered) AS steps,
           (SELECT count(DISTINCT key, step) FROM numbered) AS different,
           (SELECT count(*) FROM placed WHERE number <= before)
           + (SELECT count(*) FROM spans a JOIN spans b ON a.key = b.key AND a.low < b.low AND a.high >= b.low)
           AS wrong,
           (SELECT sum(lag) FROM mq_lag WHERE `group` = '{group}') AS left,
           (SELECT count(*) FROM mq_lost WHERE `group` = '{group}') AS lost
""").first()
print(account)
assert account.steps == account.different == len(STEPS) * len(ORDERS)
assert (account.wrong, account.left, account.lost) == (0, 0, 0)
broker.terminate()
broker.wait()
admin.close()
