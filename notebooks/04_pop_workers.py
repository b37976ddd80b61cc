# Databricks notebook source
# MAGIC %md
# MAGIC # Workers that die
# MAGIC
# MAGIC Workers resize images. Each takes images from the queue (a *pop*), and no other worker gets those for the
# MAGIC *invisible time*. A worker that is done acknowledges; if a worker dies, the job `revive` delivers what it held
# MAGIC once more. An image that fails too often becomes a dead letter. We kill a worker and follow its images in SQL.
# MAGIC
# MAGIC It needs a service (`deltamq serve`) on the warehouse of the profile (`DELTAMQ_PROFILE`, else `local`). The jobs
# MAGIC `revive` and `merge` run here, unless `deltamq jobs run` runs them already.

# COMMAND ----------

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable

from deltamq import Admin, PopConsumer, Producer
from deltamq.jobs.run.run_once import run_jobs
from deltamq.jobs.sql import register_views, spark_session
from deltamq.tables.config import load

conf = load()
spark = spark_session("pop-workers")
run = f"{time.time_ns():x}"
topic, group = f"images-{run}", f"resizers-{run}"
# the shortest time that the service allows; in production it is longer than the work takes
invisible_ms = conf.queue.invisible_ms_min

# COMMAND ----------

# MAGIC %md
# MAGIC ## Forty images
# MAGIC An image is delivered at most three times, and again immediately after a failure. Two of the files are broken.

# COMMAND ----------

BROKEN = {7, 23}
admin = Admin(conf.client.url)
admin.create_topic(topic, partitions=2)
admin.create_group(group, max_attempts=3, retry_policy={"fixed_ms": 0}, invisible_ms=invisible_ms)

with Producer(conf.client.url) as producer:
    for number in range(40):
        producer.send(topic, json.dumps({"image": number, "broken": number in BROKEN}))

# COMMAND ----------

# MAGIC %md
# MAGIC ## A worker takes twelve and is killed
# MAGIC A process of its own, which gets the signal that no program can catch. It has acknowledged nothing.

# COMMAND ----------

DOOMED = """
import json, os, signal, sys
from deltamq import PopClient

url, group, topic = sys.argv[1:]
client, taken = PopClient(url, group, client_id="doomed"), []
while len(taken) < 12:
    taken += client.pop(topic, 12 - len(taken), wait_ms=1_000).messages
print(*(json.loads(message.body)["image"] for message in taken), flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
command = [sys.executable, "-c", DOOMED, conf.client.url, group, topic]
killed = subprocess.run(command, stdout=subprocess.PIPE, text=True)
taken = {int(number) for number in killed.stdout.split()}
print(f"ended with {killed.returncode}, holding {sorted(taken)}")
assert killed.returncode == -9 and len(taken) == 12

# COMMAND ----------

# MAGIC %md
# MAGIC ## What it held, in SQL
# MAGIC Each pop is a *checkpoint* in the table `state/pop_checkpoints`, with its messages and the time of their
# MAGIC redelivery. The job `merge` brings the table up to date. A pop with a longer invisible time stays in the
# MAGIC service's memory for the first seconds, since most are acknowledged before anything has to be stored.

# COMMAND ----------


def wait_until(what: str, seen: Callable[[], object], *jobs: str, timeout_s: float = 300) -> None:
    """Run the jobs as a schedule would until `seen` is true."""
    deadline = time.monotonic() + timeout_s
    while not seen():
        assert time.monotonic() < deadline, f"not seen: {what}"
        if jobs:
            run_jobs(spark, conf, *jobs)
        else:
            time.sleep(0.05)


def count(query: str) -> int:
    return spark.sql(query).first()[0] or 0


run_jobs(spark, conf, "merge")
register_views(spark, conf)
in_flight = f"SELECT sum(in_flight) FROM mq_state_pop_checkpoints WHERE `group` = '{group}'"
wait_until("the pops of the dead worker", lambda: count(in_flight) == 12, "merge")
spark.sql(f"""
    SELECT partition, start_offset, num, in_flight, pop_time, revive_time
    FROM mq_state_pop_checkpoints WHERE `group` = '{group}' AND in_flight > 0 ORDER BY partition, start_offset
""").show(truncate=False)

# COMMAND ----------

# MAGIC %md
# MAGIC ## The others continue
# MAGIC Two workers take the rest. The twelve are invisible to them.

# COMMAND ----------

resized: Counter[int] = Counter()
again: set[int] = set()
lock = threading.Lock()


def resize(message):
    image = json.loads(message.body)
    if image["broken"]:
        raise ValueError("not an image")
    with lock:
        resized[image["image"]] += 1
        if message.delivery_attempt > 1:
            again.add(image["image"])


workers = [PopConsumer(conf.client.url, group, topic, resize, concurrency=4) for _ in range(2)]
for worker in workers:
    worker.start()
others = set(range(40)) - taken - BROKEN
wait_until("the images that nobody else held", lambda: others <= resized.keys())
print(f"{len(resized)} images are done; of the dead worker's, {len(taken & resized.keys())}")

# COMMAND ----------

# MAGIC %md
# MAGIC ## Revive
# MAGIC When the invisible time is over, the job `revive` appends copies of what was not acknowledged to the group's
# MAGIC retry topic, which the workers read as well. On a schedule it runs every second; here we run it by hand. It may
# MAGIC be killed and repeated: a copy is named after the offset of its message, and stored once.

# COMMAND ----------

good = set(range(40)) - BROKEN
wait_until("all good images", lambda: good <= resized.keys(), "revive")
print(f"delivered a second time: {sorted(again)}")
assert taken - BROKEN <= again, "what the dead worker held was delivered again"
assert set(resized.values()) == {1}, "and no image was resized twice"

# COMMAND ----------

# MAGIC %md
# MAGIC The broken files failed three times. They are dead letters of the group, with the number of deliveries.

# COMMAND ----------

dead = f"SELECT count(*) FROM mq_dead_letters WHERE `group` = '{group}'"
wait_until("both dead letters", lambda: count(dead) == len(BROKEN), "revive")
letters = spark.sql(f"""
    SELECT get_json_object(CAST(body AS STRING), '$.image') AS image, reason, attempts, origin_partition, origin_offset
    FROM mq_dead_letters WHERE `group` = '{group}' ORDER BY image
""")
letters.show(truncate=False)
assert {int(row.image) for row in letters.collect()} == BROKEN

# COMMAND ----------

# MAGIC %md
# MAGIC **Retries** by attempt, and those of them that still wait.

# COMMAND ----------

lag = f"SELECT sum(lag) FROM mq_lag WHERE `group` = '{group}'"
wait_until("a group that is done", lambda: count(in_flight) == 0 and count(lag) == 0, "revive", "merge")
for worker in workers:
    worker.close()
retries = spark.sql(f"SELECT attempt, messages, waiting FROM mq_retries WHERE `group` = '{group}' ORDER BY attempt")
retries.show()
assert {row.waiting for row in retries.collect()} == {0}

# COMMAND ----------

# MAGIC %md
# MAGIC ## The account
# MAGIC Every image was resized once, or is a dead letter.

# COMMAND ----------

account = spark.sql(f"""
    SELECT (SELECT sum(end_offset) FROM mq_partitions WHERE space = 'topics' AND topic = '{topic}') AS images,
           (SELECT count(DISTINCT message_id) FROM mq_dead_letters WHERE `group` = '{group}') AS dead,
           (SELECT sum(lag) FROM mq_lag WHERE `group` = '{group}') AS left,
           (SELECT count(*) FROM mq_lost WHERE `group` = '{group}') AS lost
""").first()
print(account)
assert account.images == len(resized) + account.dead
assert (account.left, account.lost) == (0, 0)
admin.close()
