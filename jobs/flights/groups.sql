-- Spark's queries about the groups that consume the flights, on the views of `jobs.sql.views`. This run adds the views
-- `consuming` (its groups, each with its topic) and `messages` (those of the topic).

-- name: lanes
-- The progress of each group in each partition, as merged: messages that it has not committed, and messages of stored
-- checkpoints that are in flight or wait for redelivery.
SELECT group, retry, partition, committed_offset, end_offset, lag, in_flight
FROM mq_lag JOIN consuming USING (group, topic)
ORDER BY group, partition

-- name: consumed
-- Messages below the committed offset; those that are dead letters were not acknowledged.
SELECT done.group, count(*) AS messages, count_if(dead.origin_offset IS NULL) AS acknowledged
FROM (
  SELECT mine.group, messages.partition, messages.offset
  FROM messages
  JOIN (SELECT * FROM mq_lag JOIN consuming USING (group, topic) WHERE NOT retry) mine
  ON mine.partition = messages.partition AND messages.offset < mine.committed_offset
) done
LEFT JOIN (
  SELECT DISTINCT group, origin_partition, origin_offset FROM mq_dead_letters JOIN consuming USING (group, topic)
) dead
ON dead.group = done.group AND dead.origin_partition = done.partition AND dead.origin_offset = done.offset
GROUP BY done.group

-- name: retried
-- Deliveries after the first: each is a message of the group's retry partitions.
SELECT group, sum(messages) AS messages FROM mq_retries JOIN consuming USING (group, topic) GROUP BY group

-- name: dead
SELECT
  group,
  count(*) AS messages,
  count(DISTINCT origin_partition, origin_offset) AS origins,
  sum(crc32(body)) AS bodies_crc
FROM mq_dead_letters JOIN consuming USING (group, topic)
GROUP BY group
