-- Spark's queries about the flights. `events` are the messages of the topic at one moment.

-- name: summary
-- The events by kind, aircraft and (for departures, whose bodies are parsed) carrier: one pass over the topic.
SELECT
  tag,
  key,
  flight.carrier AS carrier,
  count(*) AS messages,
  sum(flight.delay_min) AS delay_min
FROM (
  SELECT tag, key, CASE WHEN tag = 'departure' THEN from_json(CAST(body AS STRING), '${body_schema}') END AS flight
  FROM events
)
GROUP BY tag, key, carrier

-- name: seen
SELECT coalesce(sum(messages), 0) AS messages FROM summary

-- name: busiest
-- The aircraft that left New York most often.
SELECT key AS aircraft, sum(messages) AS departures
FROM summary
WHERE tag = 'departure'
GROUP BY key
ORDER BY departures DESC, aircraft
LIMIT ${limit}

-- name: delays
-- The carriers that left latest, on average.
SELECT carrier, round(sum(delay_min) / sum(messages), 1) AS delay_min
FROM summary
WHERE tag = 'departure'
GROUP BY carrier
ORDER BY delay_min DESC, carrier
LIMIT ${limit}

-- name: fingerprints
-- Each message as the account needs it: the checksum of its body, computed from the stored bytes.
SELECT partition, offset, key, tag, crc32(body) AS crc FROM events

-- name: kinds
SELECT tag, count(*) AS messages FROM fingerprints GROUP BY tag

-- name: partitions
SELECT
  partition,
  count(*) AS messages,
  count(DISTINCT offset) = count(*) AND min(offset) = 0 AND max(offset) + 1 = count(*) AS dense
FROM fingerprints
GROUP BY partition

-- name: checksum
SELECT sum(crc) AS bodies_crc FROM fingerprints

-- name: sequences
-- Each aircraft's events in the order of their offsets, as one digest, and the number of partitions that they are in.
SELECT
  key,
  sha2(array_join(transform(array_sort(collect_list(struct(partition, offset, crc))), event -> event.crc), ','), 256)
    AS digest,
  count(DISTINCT partition) AS partitions
FROM fingerprints
WHERE key IS NOT NULL
GROUP BY key
