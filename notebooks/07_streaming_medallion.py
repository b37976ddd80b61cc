# Databricks notebook source
# MAGIC %md
# MAGIC # Bronze, silver and gold in a stream
# MAGIC
# MAGIC Shops send their sales. The topic is the bronze layer: its partitions are Delta tables, and a sale is in them as
# MAGIC soon as it is acknowledged. One streaming query types the sales into a silver table and sets aside messages that
# MAGIC are not sales; a second one keeps the revenue of each shop and minute in a gold table. Both are stopped in the
# MAGIC middle and go on from their checkpoints, and in the end all three layers must agree.
# MAGIC
# MAGIC It needs a service (`deltamq serve`) on the warehouse of the profile (`DELTAMQ_PROFILE`, else `local`).

# COMMAND ----------

from __future__ import annotations

import json
import random
import time

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from deltamq import Admin, Producer
from deltamq.jobs.run.run_once import run_jobs
from deltamq.jobs.sql import register_views, spark_session
from deltamq.tables.config import load

conf = load()
spark = spark_session("streaming-medallion")
run = f"{time.time_ns():x}"
topic, group = f"sales-{run}", f"silver-{run}"
# the folder for the tables of this run and the checkpoints of its queries
lake = f"{conf.warehouse.uri.rstrip('/')}/spark/medallion-{run}"
SALE = "shop STRING, item STRING, amount DOUBLE, at TIMESTAMP"

# COMMAND ----------

# MAGIC %md
# MAGIC ## Bronze: sales arrive
# MAGIC Some tills are broken: about one message in twenty is not JSON, or has no amount.

# COMMAND ----------

with Admin(conf.client.url) as admin:
    admin.create_topic(topic, partitions=4)
    # the silver query commits its progress to this group, so the usual tools show its lag
    admin.create_group(group)

drawn = random.Random(17)
sent = {"good": 0, "bad": 0, "cents": 0}


def sell(count: int) -> None:
    """Send `count` messages of tills, and return when all are acknowledged."""
    with Producer(conf.client.url) as producer:
        for number in range(count):
            shop = f"shop-{drawn.randrange(12)}"
            if drawn.random() < 0.05:
                sent["bad"] += 1
                producer.send_soon(topic, drawn.choice(["Error 17", '{"shop": "?"}']), key=shop)
                continue
            cents = drawn.randrange(100, 10_000)
            sent["good"] += 1
            sent["cents"] += cents
            at = f"2026-03-01T10:{number * 5 // count:02d}:{drawn.randrange(60):02d}Z"
            sale = {"shop": shop, "item": f"item-{drawn.randrange(40)}", "amount": cents / 100, "at": at}
            producer.send_soon(topic, json.dumps(sale), key=shop)


sell(2_000)

# COMMAND ----------

# MAGIC %md
# MAGIC ## Silver: typed sales, and the rest
# MAGIC The progress of `readStream.format("mq")` is the log's offsets. With `group`, the query commits for a group
# MAGIC when a batch is done. A row that does not fit is not lost: it goes to a table of its own, with its place in the
# MAGIC topic.

# COMMAND ----------


def typed(messages: DataFrame) -> DataFrame:
    """Return the sales in messages, with their places; `sale` is null for other messages."""
    parsed = F.from_json(F.col("body").cast("string"), SALE)
    sale = F.when(parsed["amount"].isNotNull() & parsed["at"].isNotNull(), parsed)
    return messages.select(
        sale.alias("sale"), F.col("body").cast("string").alias("raw"), F.col("partition").alias("_partition"),
        F.col("offset").alias("_offset"),
    )  # fmt: skip


def store(batch: DataFrame, number: int) -> None:
    """Write a batch to both tables; Delta skips a batch that a table already has."""
    once = {"txnAppId": f"silver of {topic}", "txnVersion": number}
    good = batch.where("sale IS NOT NULL").select("sale.*", "_partition", "_offset")
    good.write.format("delta").mode("append").options(**once).save(f"{lake}/silver")
    bad = batch.where("sale IS NULL").select("raw", "_partition", "_offset")
    bad.write.format("delta").mode("append").options(**once).save(f"{lake}/quarantine")


def start_silver():
    source = spark.readStream.format("mq").options(topic=topic, startingOffsets="earliest", group=group)
    writer = typed(source.load()).writeStream.foreachBatch(store)
    return writer.option("checkpointLocation", f"{lake}/checkpoints/silver").queryName(f"silver {run}").start()


silver = start_silver()
silver.processAllAvailable()
print(f"silver: {spark.read.format('delta').load(f'{lake}/silver').count():,} of {sent['good']:,} sales")

# COMMAND ----------

# MAGIC %md
# MAGIC ## Gold: revenue by shop and minute
# MAGIC The silver table is the source of the next stream. A MERGE for each batch updates the sums and stores the
# MAGIC batch's number in the same commit: a batch that is repeated after a crash counts once.

# COMMAND ----------

spark.sql(f"CREATE TABLE delta.`{lake}/gold` (shop STRING, minute TIMESTAMP, sales BIGINT, cents BIGINT) USING delta")


def add_up(batch: DataFrame, number: int) -> None:
    session = batch.sparkSession
    session.conf.set("spark.databricks.delta.write.txnAppId", f"gold of {topic}")
    session.conf.set("spark.databricks.delta.write.txnVersion", number)
    sums = batch.groupBy("shop", F.date_trunc("minute", "at").alias("minute")).agg(
        F.count("*").alias("sales"), F.sum(F.round(F.col("amount") * 100).cast("bigint")).alias("cents")
    )
    sums.createOrReplaceTempView("new_sums")
    session.sql(f"""
        MERGE INTO delta.`{lake}/gold` t USING new_sums s ON t.shop = s.shop AND t.minute = s.minute
        WHEN MATCHED THEN UPDATE SET sales = t.sales + s.sales, cents = t.cents + s.cents
        WHEN NOT MATCHED THEN INSERT *
    """)


def start_gold():
    source = spark.readStream.format("delta").load(f"{lake}/silver")
    writer = source.writeStream.foreachBatch(add_up).option("checkpointLocation", f"{lake}/checkpoints/gold")
    return writer.queryName(f"gold {run}").start()


gold = start_gold()
sell(2_000)
silver.processAllAvailable()
gold.processAllAvailable()

# COMMAND ----------

# MAGIC %md
# MAGIC ## How far is it?
# MAGIC A query's progress has the offsets of the log, and how far they are behind its end.

# COMMAND ----------

source = silver.lastProgress["sources"][0]
print(source["description"])
print("from", source["startOffset"], "to", source["endOffset"])

# COMMAND ----------

# MAGIC %md
# MAGIC ## Stop, and go on
# MAGIC Sales continue while no query runs. A query that starts again on its checkpoint reads exactly what it has not
# MAGIC read.

# COMMAND ----------

silver.stop()
gold.stop()
sell(1_000)

silver, gold = start_silver(), start_gold()
silver.processAllAvailable()
gold.processAllAvailable()

# COMMAND ----------

# MAGIC %md
# MAGIC **Lag** of the silver query, in the same view as that of every other group.

# COMMAND ----------

run_jobs(spark, conf, "merge")
register_views(spark, conf)
spark.sql(f"""
    SELECT partition, committed_offset, end_offset, lag FROM mq_lag WHERE `group` = '{group}' ORDER BY partition
""").show(truncate=False)

# COMMAND ----------

# MAGIC %md
# MAGIC ## The account
# MAGIC What the shops sent, what is typed or set aside, and what is summed up: equal to the cent.

# COMMAND ----------

silver.stop()
gold.stop()
bronze = spark.read.format("mq").option("topic", topic).load().count()
sales = spark.read.format("delta").load(f"{lake}/silver")
aside = spark.read.format("delta").load(f"{lake}/quarantine")
sums = spark.read.format("delta").load(f"{lake}/gold").agg(F.sum("sales"), F.sum("cents")).first()
spark.read.format("delta").load(f"{lake}/gold").orderBy(F.desc("cents")).show(5)
print(f"bronze={bronze}, silver={sales.count()}, aside={aside.count()}, gold={sums[0]}, cents={sums[1]}")
assert bronze == sent["good"] + sent["bad"] == 5_000
assert (sales.count(), aside.count()) == (sent["good"], sent["bad"])
assert sales.select("_partition", "_offset").distinct().count() == sent["good"]
assert tuple(sums) == (sent["good"], sent["cents"])
print("left=0, lost=0")
