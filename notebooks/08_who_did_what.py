# Databricks notebook source
# MAGIC %md
# MAGIC # Who did what
# MAGIC
# MAGIC A topic holds salaries. Administrators give access to it and take it away, and somebody tries to read it who
# MAGIC may not. Afterwards an auditor asks, with SQL alone: who did what, what was refused, and who could read the
# MAGIC topic at a given time?
# MAGIC
# MAGIC It needs a service with authentication on the warehouse of the profile (`DELTAMQ_PROFILE`, else `local`), and
# MAGIC an administrator's key in `DELTAMQ_CLIENT_TOKEN`: `deltamq auth init`, then
# MAGIC `DELTAMQ_SERVICE_AUTH=true deltamq serve`.

# COMMAND ----------

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta

from deltamq import Admin, Forbidden, Producer, PullConsumer
from deltamq.jobs.sql import register_views, spark_session
from deltamq.tables.config import load

conf = load()
spark = spark_session("who-did-what")
run = f"{time.time_ns():x}"
topic, ada, ben, eve = f"salaries-{run}", f"ada-{run}", f"ben-{run}", f"eve-{run}"

# COMMAND ----------

# MAGIC %md
# MAGIC ## What happens
# MAGIC The administrator makes the topic, and lets Ada manage it. Ada lets nobody in: only the administrator can. Ben
# MAGIC may read for a while. Eve may read no topic at all, and tries.

# COMMAND ----------

admin = Admin(conf.client.url)


def member(name: str, resource: str, pattern: str, *verbs: str) -> str:
    """Make a principal with one rule, and return its key."""
    admin.put_principal(name)
    admin.add_acl(name, resource, list(verbs), pattern=pattern)
    return admin.create_key(name).key


admin.create_topic(topic, partitions=1)
with Producer(conf.client.url) as producer:
    producer.send(topic, "Ben: 5000")
key_of_ada = member(ada, "topic", topic, "alter", "delete")
key_of_eve = member(eve, "group", f"{run}-*", "subscribe")
admin.put_principal(ben)
before_ben = datetime.now(UTC) - timedelta(milliseconds=1)  # times are stored in whole milliseconds, cut
rule = admin.add_acl(ben, "topic", ["subscribe"], pattern="salaries-*")
while_ben = datetime.now(UTC)
with Admin(conf.client.url, token=key_of_ada) as manager:
    manager.create_topic(topic, retention_ms=3_600_000)
admin.remove_acl(rule.acl_id)
after_ben = datetime.now(UTC)

# COMMAND ----------

# MAGIC %md
# MAGIC Eve tries to read, and to change what she may do.

# COMMAND ----------

tried = 0
for _ in range(3):
    try:
        with PullConsumer(conf.client.url, topic, token=key_of_eve) as consumer:
            consumer.poll()
    except Forbidden:
        tried += 1
try:
    with Admin(conf.client.url, token=key_of_eve) as curious:
        curious.add_acl(eve, "topic", ["subscribe"], pattern="*")
except Forbidden:
    tried += 1
print(f"Eve was refused {tried} times")
assert tried == 4

# COMMAND ----------

# MAGIC %md
# MAGIC ## Who did what
# MAGIC `mq_audit` has each administrative act once. It was recorded before it was confirmed, so what somebody was told
# MAGIC is done is here.

# COMMAND ----------

register_views(spark, conf)
acts = spark.sql(f"""
    SELECT time, principal, address, call, name, outcome, before, after
    FROM mq_audit WHERE concat_ws(' ', name, asked) LIKE '%{run}%' ORDER BY time
""")
acts.select("time", "principal", "call", "name", "outcome").show(50, truncate=40)
done = [(row.call, row.outcome) for row in acts.collect()]
assert ("PUT /v1/topics/{topic}", "done") in done

# COMMAND ----------

# MAGIC %md
# MAGIC What did Ada change? The audit shows the state before and after.

# COMMAND ----------

changed = spark.sql(f"""
    SELECT call, from_json(before, 'MAP<STRING, STRING>')['topic/{topic}'] AS before,
           from_json(after, 'MAP<STRING, STRING>')['topic/{topic}'] AS after
    FROM mq_audit WHERE principal = '{ada}'
""")
(by_ada,) = changed.selectExpr(
    "call",
    "get_json_object(before, '$.settings.retention_ms') AS before_ms",
    "get_json_object(after, '$.settings.retention_ms') AS after_ms",
).collect()
print(by_ada)
assert by_ada.after_ms == "3600000" != by_ada.before_ms

# COMMAND ----------

# MAGIC %md
# MAGIC ## What was refused
# MAGIC Refusals are counted by minute and stored when it is over, so we wait for the end of this one.

# COMMAND ----------

deadline = time.monotonic() + 120
REFUSED = f"SELECT call, status, code, sum(count) AS times FROM mq_refusals WHERE principal = '{eve}' GROUP BY ALL"
refused = spark.sql(REFUSED)
while sum(row.times for row in refused.collect()) < tried:
    assert time.monotonic() < deadline, "the refusals are not there"
    time.sleep(2)
    refused = spark.sql(REFUSED)
refused.show(truncate=False)
assert {row.status for row in refused.collect()} == {403}

# COMMAND ----------

# MAGIC %md
# MAGIC ## Who could read the topic at a time
# MAGIC `mq_access_history` has each rule with the time for which a principal had it. Any rule that denies wins.

# COMMAND ----------


def readers(moment: datetime) -> set[str]:
    """Return who of this story could read the topic at this moment."""
    at = f"TIMESTAMP '{moment.isoformat()}'"
    found = spark.sql(f"""
        SELECT principal FROM mq_access_history
        WHERE since <= {at} AND (until IS NULL OR until > {at}) AND principal LIKE '%{run}'
          AND resource = 'topic' AND array_contains(verbs, 'subscribe')
          AND (pattern = '{topic}' OR (endswith(pattern, '*') AND startswith('{topic}', rtrim('*', pattern))))
        GROUP BY principal HAVING count_if(effect = 'deny') = 0
    """)
    return {row.principal for row in found.collect()}


for when, moment in (("before", before_ben), ("while", while_ben), ("after", after_ben)):
    print(f"{when} Ben had the rule: {sorted(readers(moment))}")
assert [readers(moment) for moment in (before_ben, while_ben, after_ben)] == [set(), {ben}, set()]

# COMMAND ----------

# MAGIC %md
# MAGIC ## The account
# MAGIC No act is left without an outcome, and none that was confirmed is lost.

# COMMAND ----------

confirmed = 1 + 3 + 3 + 2 + 1 + 1  # the topic, Ada, Eve, Ben, what Ada changed, what Ben lost
account = spark.sql(f"""
    SELECT count(*) AS acts, count_if(outcome = 'unknown') AS left, {confirmed} - count_if(outcome = 'done') AS lost
    FROM mq_audit WHERE concat_ws(' ', name, asked, before) LIKE '%{run}%'
""").first()
print(account)
assert (account.left, account.lost) == (0, 0)
admin.close()
