-- What Spark is asked about the flights. `events` is the topic at one moment: offset, key, tag, body, partition.

-- name: departures
-- Each departure with what its body says.
SELECT
  key,
  from_json(CAST(body AS STRING), '${body_schema}') AS flight
FROM events
WHERE tag = 'departure'

-- name: seen
-- How many events the topic holds.
SELECT count(*) AS messages FROM events

-- name: busiest
-- The aircraft that left New York most often.
SELECT key AS aircraft, count(*) AS departures
FROM events
WHERE tag = 'departure'
GROUP BY key
ORDER BY departures DESC, aircraft
LIMIT ${limit}

-- name: delays
-- The carriers that left latest, on average.
SELECT flight.carrier AS carrier, round(avg(flight.delay_min), 1) AS delay_min, count(*) AS departures
FROM departures
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
  count(DISTINCT offset) AS distinct_offsets,
  min(offset) AS first_offset,
  max(offset) + 1 AS end_offset
FROM fingerprints
GROUP BY partition

-- name: checksum
SELECT sum(crc) AS bodies_crc FROM fingerprints

-- name: sequences
-- Each aircraft's events in the order of their offsets, as one digest, and in how many partitions they are.
SELECT
  key,
  sha2(array_join(transform(array_sort(collect_list(struct(partition, offset, crc))), event -> event.crc), ','), 256)
    AS digest,
  count(DISTINCT partition) AS partitions
FROM fingerprints
WHERE key IS NOT NULL
GROUP BY key
