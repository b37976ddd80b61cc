-- The tables of the streams. `flights` are typed rows, one for each event; `hours` are sums of them.

-- name: hours
-- The sums of some flights by carrier and hour.
SELECT
  carrier,
  date_trunc('HOUR', time) AS hour,
  count(*) AS events,
  count_if(event = 'arrival') AS arrivals,
  count_if(event = 'departure') AS departures,
  count_if(event = 'cancellation') AS cancellations,
  coalesce(sum(CASE WHEN event = 'departure' THEN delay_min END), 0) AS delay_min
FROM ${flights}
GROUP BY carrier, date_trunc('HOUR', time)

-- name: create
CREATE TABLE IF NOT EXISTS delta.`${gold}` (
  carrier STRING,
  hour TIMESTAMP,
  events BIGINT,
  arrivals BIGINT,
  departures BIGINT,
  cancellations BIGINT,
  delay_min BIGINT
) USING delta

-- name: add
-- Adds the sums of a batch to the table; the batch's number is stored with them, so each batch counts once.
MERGE INTO delta.`${gold}` t
USING new_hours s ON t.carrier = s.carrier AND t.hour = s.hour
WHEN MATCHED THEN UPDATE SET
  events = t.events + s.events,
  arrivals = t.arrivals + s.arrivals,
  departures = t.departures + s.departures,
  cancellations = t.cancellations + s.cancellations,
  delay_min = t.delay_min + s.delay_min
WHEN NOT MATCHED THEN INSERT *

-- name: account
SELECT
  coalesce(sum(events), 0) AS events,
  coalesce(sum(arrivals), 0) AS arrivals,
  coalesce(sum(departures), 0) AS departures,
  coalesce(sum(cancellations), 0) AS cancellations,
  coalesce(sum(delay_min), 0) AS delay_min,
  count(DISTINCT carrier) AS carriers,
  count(*) AS carrier_hours,
  coalesce(sum(crc32(concat_ws(
    '|', carrier, date_format(hour, "yyyy-MM-dd'T'HH"), arrivals, departures, cancellations, delay_min
  ))), 0) AS hours_crc
FROM ${hours}
