# Databricks notebook source
# MAGIC %md
# MAGIC # From a database to a table
# MAGIC
# MAGIC Debezium sends each change of a database's row as a message: the row before, the row after. A topic with a
# MAGIC schema and `unwrap: debezium` stores the row after as columns, in the commit that acknowledges the message. The
# MAGIC newest row of each key is then the table as the database has it, with no other process between.
# MAGIC
# MAGIC Here a few lines stand for the database and its connector; the page of typed topics has the settings of a real
# MAGIC one. The notebook needs a service (`deltamq serve`) on the warehouse of the profile. The job `latest` runs here.

# COMMAND ----------

from __future__ import annotations

import json
import time

from deltamq import Admin, Producer, Sent, TopicSchema
from deltamq.jobs.run.run_once import run_jobs
from deltamq.jobs.sql import register_views, spark_session
from deltamq.tables.config import load

conf = load()
spark = spark_session("database-to-table")
topic = f"orders{time.time_ns():x}"
admin = Admin(conf.client.url)

# COMMAND ----------

# MAGIC %md
# MAGIC ## The topic
# MAGIC Its schema is that of the envelope; columns are made of the field `after`.

# COMMAND ----------


def envelope(**columns: str) -> str:
    """Return the schema of changes of a table, whose columns have these types of JSON."""
    row = {
        "type": ["null", "object"],
        "properties": {name: {"type": ["null", kind]} for name, kind in columns.items()},
        # so that a later version may add a column
        "additionalProperties": False,
    }
    return json.dumps({"type": "object", "properties": {"op": {"type": "string"}, "before": row, "after": row}})


schema = TopicSchema(format="json", schema=envelope(id="integer", item="string", amount="number"), unwrap="debezium")
admin.create_topic(topic, partitions=2, schema=schema)

# COMMAND ----------

# MAGIC %md
# MAGIC ## Changes
# MAGIC Two rows are inserted, one of them is changed, the other deleted. Behind a deletion Debezium sends a message
# MAGIC without a body: a tombstone.

# COMMAND ----------

database: dict[int, dict[str, object]] = {}
acknowledged: list[Sent] = []


def change(producer: Producer, id: int, **columns: object) -> None:
    """Change a row of the database, or delete it if there are no columns, and send what Debezium would."""
    before = database.pop(id, None)
    after = {"id": id, **columns} if columns else None
    if after is not None:
        database[id] = after
    op = "d" if after is None else "c" if before is None else "u"
    key = json.dumps({"id": id}, separators=(",", ":"))
    acknowledged.append(producer.send(topic, json.dumps({"op": op, "before": before, "after": after}), key=key))
    if after is None:
        acknowledged.append(producer.send(topic, b"", key=key))


with Producer(conf.client.url) as producer:
    change(producer, 1, item="tea", amount=2.5)
    change(producer, 2, item="cups", amount=12.0)
    change(producer, 2, item="mugs", amount=14.0)
    change(producer, 1)
    change(producer, 3, item="pot", amount=30.0)

# COMMAND ----------

# MAGIC %md
# MAGIC ## The table
# MAGIC The view has what was acknowledged before the query, also before the job has run.

# COMMAND ----------

view = f"mq_latest_{topic}"
names = ["id", "item", "amount"]


def is_the_databases() -> bool:
    """Return whether the view has the rows of the database."""
    rows = spark.sql(f"SELECT {', '.join(names)} FROM {view}").collect()
    wanted = [{name: row.get(name) for name in names} for row in database.values()]
    return sorted((row.asDict() for row in rows), key=str) == sorted(wanted, key=str)


register_views(spark, conf)
spark.sql(f"SELECT * FROM {view} ORDER BY id").show(truncate=False)
assert is_the_databases()

# COMMAND ----------

# MAGIC %md
# MAGIC The job merges the newest rows into a table, so that a query reads the rest only.

# COMMAND ----------

facts = run_jobs(spark, conf, "latest")
print(facts)
register_views(spark, conf)
assert is_the_databases()

# COMMAND ----------

# MAGIC %md
# MAGIC One row, without Spark:

# COMMAND ----------

newest = admin.latest(topic, '{"id":2}')
assert newest is not None
print(newest.fields)
assert newest.fields == {"id": 2, "item": "mugs", "amount": 14.0}
assert admin.latest(topic, '{"id":1}') is None, "it was deleted"

# COMMAND ----------

# MAGIC %md
# MAGIC ## A new column
# MAGIC The table of the database gets a column: a new version of the schema. Nothing stops; the first commit with it
# MAGIC widens the table here.

# COMMAND ----------

wider = envelope(id="integer", item="string", amount="number", note="string")
admin.create_topic(topic, schema=TopicSchema(format="json", schema=wider, unwrap="debezium"))
with Producer(conf.client.url) as producer:
    change(producer, 4, item="knife", amount=3.0, note="sharp")
names.append("note")
register_views(spark, conf)
spark.sql(f"SELECT * FROM {view} ORDER BY id").show(truncate=False)
assert is_the_databases()

# COMMAND ----------

# MAGIC %md
# MAGIC Every change is still there, as columns: the history of a row is a query.

# COMMAND ----------

history = spark.sql(f"SELECT mq_offset, item, amount FROM mq_values_{topic} WHERE id = 2 ORDER BY mq_offset")
history.show()
assert [row["item"] for row in history.collect()] == ["cups", "mugs"]

# COMMAND ----------

# MAGIC %md
# MAGIC No row is left behind, and no change was lost.

# COMMAND ----------

left = len(database) - spark.table(view).count()
lost = len(acknowledged) - spark.read.format("mq").option("topic", topic).load().count()
print(f"left={left}, lost={lost}")
assert (left, lost) == (0, 0)
admin.close()
