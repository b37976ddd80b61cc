# Databricks notebook source
# MAGIC %md
# MAGIC # Lag and dead letters
# MAGIC
# MAGIC Sensors send readings in waves, and a group checks them more slowly than they come. Is it falling behind, in
# MAGIC which partitions, and which readings can it not process? All of that is in tables, so a query and a plot show
# MAGIC it.
# MAGIC
# MAGIC It needs a service (`deltamq serve`) on the warehouse of the profile (`DELTAMQ_PROFILE`, else `local`) and
# MAGIC matplotlib. A notebook shows the plots; run as a script it saves them in the folder `NOTEBOOK_PLOTS`, else
# MAGIC `plots`. The jobs `revive` and `merge` run here, unless `deltamq jobs run` runs them already.

# COMMAND ----------

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path

import matplotlib.pyplot as plt
from matplotlib.figure import Figure

from deltamq import Admin, PopClient, Producer
from deltamq.jobs.run.run_once import run_jobs
from deltamq.jobs.sql import register_views, spark_session
from deltamq.tables.config import load

conf = load()
spark = spark_session("lag-and-dead-letters")
run = f"{time.time_ns():x}"
topic, group = f"readings-{run}", f"checks-{run}"


def show(figure: Figure, name: str) -> None:
    """Show a plot in a notebook, else save it."""
    if plt.get_backend().lower() != "agg":
        plt.show()
        return
    folder = Path(os.environ.get("NOTEBOOK_PLOTS", "plots"))
    folder.mkdir(parents=True, exist_ok=True)
    figure.savefig(folder / f"{name}.png", dpi=120, bbox_inches="tight")
    print(f"saved {folder / name}.png")


def wait_until(what: str, seen: Callable[[], object], timeout_s: float = 300) -> None:
    """Run the jobs as a schedule would until `seen` is true."""
    deadline = time.monotonic() + timeout_s
    while not seen():
        assert time.monotonic() < deadline, f"not seen: {what}"
        run_jobs(spark, conf, "revive", "merge")


# COMMAND ----------

# MAGIC %md
# MAGIC ## Waves
# MAGIC Some readings make no sense: a sensor without a name, a temperature below zero kelvin, a broken line.

# COMMAND ----------

admin = Admin(conf.client.url)
admin.create_topic(topic, partitions=3)
admin.create_group(group)
client = PopClient(conf.client.url, group)


def reading(number: int) -> str:
    if number % 10 == 3:
        return '{"sensor": "s-'
    sensor = "" if number % 20 == 7 else f"s-{number % 5}"
    return json.dumps({"sensor": sensor, "kelvin": -1 if number % 25 == 1 else 290 + number % 7})


def wave(start: int, count: int) -> None:
    """Send `count` readings; keyed by sensor they go to different partitions."""
    with Producer(conf.client.url) as producer:
        for number in range(start, start + count):
            producer.send_soon(topic, reading(number), key=f"s-{number % 5}")


# COMMAND ----------

# MAGIC %md
# MAGIC The check takes a given number of readings. It sends the ones that it cannot use to the dead letters, with a
# MAGIC reason.

# COMMAND ----------


def verdict(body: bytes) -> str | None:
    """Return what is wrong with a reading; None if nothing is."""
    try:
        found = json.loads(body)
    except ValueError:
        return "not JSON"
    if not found["sensor"]:
        return "no sensor"
    return "below zero kelvin" if found["kelvin"] < 0 else None


def check(count: int) -> None:
    while count > 0:
        popped = client.pop(topic, min(count, 32), wait_ms=1_000).messages
        reasons = {message.handle: verdict(message.body) for message in popped}
        client.ack([handle for handle, reason in reasons.items() if reason is None])
        for wrong in set(reasons.values()) - {None}:
            client.dead([handle for handle, reason in reasons.items() if reason == wrong], wrong)
        count -= len(popped)


# COMMAND ----------

# MAGIC %md
# MAGIC ## Lag, measured as it grows
# MAGIC `mq_lag` has a row for each group and partition. We query it after each wave, and once more when the group has
# MAGIC caught up.

# COMMAND ----------

run_jobs(spark, conf, "merge")
register_views(spark, conf)
LAG = f"SELECT partition, lag FROM mq_lag WHERE `group` = '{group}' AND NOT retry ORDER BY partition"


def lag_of(messages: int) -> dict[str, int]:
    """Return the lag of each partition, once the state tables show `messages` in total."""
    found: dict[str, int] = {}

    def is_there() -> bool:
        found.update({row.partition: row.lag for row in spark.sql(LAG).collect()})
        return sum(found.values()) == messages

    wait_until(f"a lag of {messages}", is_there)
    return dict(found)


sent = done = 0
steps: list[dict[str, int]] = []
for sending, checking in ((300, 100), (300, 150), (200, 150), (0, 400)):
    wave(sent, sending)
    check(checking)
    sent, done = sent + sending, done + checking
    steps.append(lag_of(sent - done))
    print(f"{sent} sent, {done} checked: {steps[-1]}")

# COMMAND ----------

partitions = sorted(steps[0])
figure, axes = plt.subplots(figsize=(7, 3.5))
axes.stackplot(range(1, len(steps) + 1), [[step[name] for step in steps] for name in partitions], labels=partitions)
axes.set(title="Lag of the checks", xlabel="wave", ylabel="messages", xticks=range(1, len(steps) + 1))
axes.legend(title="partition", fontsize="small")
show(figure, "lag")

# COMMAND ----------

# MAGIC %md
# MAGIC The upper edge of the plot is the total lag: 200, then 350, then 400 readings behind, then none.

# COMMAND ----------

upper = axes.collections[-1].get_paths()[0].vertices
edge = [int(max(y for x, y in upper if x == at)) for at in range(1, len(steps) + 1)]
print(edge)
assert edge == [200, 350, 400, 0] == [sum(step.values()) for step in steps]

# COMMAND ----------

# MAGIC %md
# MAGIC ## What the group could not process
# MAGIC A dead letter keeps the message, the reason, and its origin. The job `revive` appends it.

# COMMAND ----------

wrong = [verdict(reading(number).encode()) for number in range(sent)]
LETTERS = f"SELECT count(*) FROM mq_dead_letters WHERE `group` = '{group}'"
wait_until("all dead letters", lambda: spark.sql(LETTERS).first()[0] == sent - wrong.count(None))
dead = spark.sql(f"""
    SELECT reason, count(*) AS letters, count(DISTINCT origin_partition) AS partitions, min(dead_time) AS since,
           min(CAST(body AS STRING)) AS one_of_them
    FROM mq_dead_letters WHERE `group` = '{group}' GROUP BY reason ORDER BY letters DESC, reason
""")
dead.show(truncate=False)
reasons = {row.reason: row.letters for row in dead.collect()}
assert reasons == {reason: wrong.count(reason) for reason in set(wrong) - {None}}

# COMMAND ----------

by_partition = spark.sql(f"""
    SELECT origin_partition, reason, count(*) AS letters
    FROM mq_dead_letters WHERE `group` = '{group}' GROUP BY ALL ORDER BY ALL
""").toPandas()
table = by_partition.pivot(index="origin_partition", columns="reason", values="letters").fillna(0)
figure, axes = plt.subplots(figsize=(7, 3.5))
table.plot.barh(stacked=True, ax=axes)
axes.set(title="Dead letters of the checks", xlabel="messages", ylabel="")
show(figure, "dead-letters")
drawn = sum(bar.get_width() for bars in axes.containers for bar in bars)
assert drawn == sum(reasons.values()), "every dead letter is in the plot"

# COMMAND ----------

# MAGIC %md
# MAGIC ## The account
# MAGIC Nothing is left over, and nothing was lost before the group could read it.

# COMMAND ----------

account = spark.sql(f"""
    SELECT (SELECT sum(end_offset) FROM mq_partitions WHERE space = 'topics' AND topic = '{topic}') AS readings,
           (SELECT count(*) FROM mq_dead_letters WHERE `group` = '{group}') AS dead,
           (SELECT sum(lag) FROM mq_lag WHERE `group` = '{group}') AS left,
           (SELECT count(*) FROM mq_lost WHERE `group` = '{group}') AS lost
""").first()
print(account)
assert account.readings == sent
assert (account.left, account.lost) == (0, 0)
client.close()
admin.close()
