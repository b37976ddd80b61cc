// How groups and topics are now and were before: from the service's history where it keeps one, else asked one by one.
import { useEffect, useMemo, useState } from "./vendor/hooks.js";
import { at, get, query, useLive } from "./api.js";
import { useDetails } from "./parts.js";

export const RANGES = { "15m": 900_000, "1h": 3_600_000, "6h": 21_600_000, "1d": 86_400_000 };
// Up to this many groups are asked one by one; of more, the history says how they are, and the worst are asked.
const GROUPS_ASKED = 60, WORST_ASKED = 12, OVERDUE_ASKED = 8;
// A group of which nobody has named itself, and that has taken nothing for so long, is consumed by nobody.
const IDLE_MS = 60_000;
// The clocks of browser and service may differ by this much.
const CLOCKS_MS = 5000;
// Times between samples, and between two looks at very many of them.
const SAMPLE_MS = 15_000, ASKED_MS = 10_000, MANY = 100;
// Whether this service keeps a history; one that does not is asked once.
let isKept = true;

export const spanOf = range => Object.hasOwn(RANGES, range ?? "") ? RANGES[range] : RANGES["1h"];

// The series of a metric over a span, [{labels, points: [[ms, value]]}]; null without a history. `isMany`: of very many
// things, which are asked for seldom, in long steps.
export function useHistory(metric, labels = {}, range = "1h", isMany = false) {
  const span = spanOf(range), step = Math.ceil(span / (isMany ? 12 : 240) / SAMPLE_MS) * SAMPLE_MS, everyMs = isMany
    ? 60_000 : SAMPLE_MS;
  const [from, setFrom] = useState(() => Date.now() - span);
  useEffect(() => {
    setFrom(Date.now() - span);
    const timer = setInterval(() => setFrom(Date.now() - span), Math.max(60_000, span / 60));
    return () => clearInterval(timer);
  }, [span]);
  return useSeries(metric && { metric, ...labels, from_time: new Date(from).toISOString(), step_ms: step }, everyMs);
}
function useSeries(asked, everyMs) {
  const { data, error } = useLive(asked && isKept ? at`v1/history` + query(asked) : null, everyMs);
  if (error?.status === 404) isKept = false;
  // what was there stays until the next range is there
  const [last, setLast] = useState(null);
  useEffect(() => { if (data) setLast(data); }, [data]);
  return useMemo(() => last
    && last.series.map(one =>
      ({ labels: one.labels, points: one.points.map(([time, value]) => [Date.parse(time), value]) })), [last]);
}

// The lines of a plot: named by their labels, the largest first.
export const topOf = series =>
  series.map(one => ({ name: Object.values(one.labels).join(" ") || "all", points: one.points }))
  .sort((a, b) => (b.points.at(-1)?.[1] ?? 0) - (a.points.at(-1)?.[1] ?? 0));
// One line for all series together.
export function sumOf(series) {
  const sums = new Map();
  for (const one of series) for (const [time, value] of one.points) sums.set(time, (sums.get(time) ?? 0) + value);
  return [{ name: "all", points: [...sums].sort(([a], [b]) => a - b) }];
}

// The newest value of a metric by one label, {name: value}; null if it is not asked for, or there is no history.
export function useNewest(metric, label, { topic, isAsked = true } = {}) {
  const [from, setFrom] = useState(() => Date.now() - 4 * SAMPLE_MS);
  useEffect(() => {
    const timer = setInterval(() => setFrom(Date.now() - 4 * SAMPLE_MS), 60_000);
    return () => clearInterval(timer);
  }, []);
  const asked = { metric, topic, from_time: new Date(from).toISOString(), step_ms: SAMPLE_MS };
  const series = useSeries(isAsked ? asked : null, SAMPLE_MS);
  return useMemo(() => {
    if (!isAsked || !series) return null;
    const values = {};
    for (const { labels, points } of series) {
      const name = labels[label];
      if (name && points.length) values[name] = (values[name] ?? 0) + points.at(-1)[1];
    }
    return values;
  }, [isAsked, series]);
}

// What the newest samples say of each group, of one topic or all; null if they are not asked for.
function useSampled(isAsked, topic) {
  const lag = useNewest("lag", "group", { topic, isAsked }),
    inFlight = useNewest("in_flight", "group", { topic, isAsked });
  const clients = useNewest("clients", "group", { isAsked }), dead = useNewest("dead_letters", "group", { isAsked });
  return useMemo(() => lag && Object.fromEntries(Object.keys(lag).map(group =>
    [group, { group, lag: lag[group], inFlight: inFlight?.[group], clients: clients?.[group], dead: dead?.[group]
      ?? 0 }])),
  [lag, inFlight, clients, dead]);
}

// One group by its two answers: `GET /v1/groups/{group}`, and the counts of its dead letters, null if they are not
// shown.
export function groupNow(group, { data, error }) {
  if (!data) return { group, error };
  const [info, counts] = data,
    partitions = [...info.topics, ...info.members.flatMap(one => one.topics)].flatMap(one => one.partitions);
  const sum = key => partitions.reduce((all, one) => all + (one[key] ?? 0), 0);
  const lag = sum("lag"), inFlight = sum("in_flight"), clients = info.clients.filter(one => one.online).length
    + info.members.length;
  const isConsumed = partitions.some(one => Date.parse(one.last_consume_time) > Date.now() - IDLE_MS);
  return { group, info, lag, inFlight, dead: counts?.new ?? null, clients, error, strategy: info.consume_strategy,
    paused: info.paused,
    retries: partitions.filter(one => one.retry).reduce((all, one) => all + (one.lag ?? 0), 0),
    topics: info.topics.map(one => one.topic), isStuck: lag > 0 && inFlight === 0 && clients === 0 && !info.paused
      && !isConsumed };
}
const pathOf = group => [at`v1/groups/${group}`, at`v1/groups/${group}/dead-letters/counts`];
const load = async ([info, counts]) => Promise.all([get(info), get(counts).catch(() => null)]);
export const useGroupDetails = () => useDetails(pathOf, load);

// How many messages of each group were not answered in time, by the oldest of those in flight.
function useOverdue(groups) {
  const names = groups.filter(one => one.inFlight > 0).sort((a, b) => b.inFlight - a.inFlight).slice(0,
    OVERDUE_ASKED).map(one => one.group);
  const details = useDetails(group => at`v1/groups/${group}/in-flight` + query({ limit: 100 }), get, { oldMs: 10_000 }),
    now = Date.now() - CLOCKS_MS;
  useEffect(() => details.want(names), [names.join("\n")]);
  return group => details.of(group).data?.messages.filter(one => Date.parse(one.visible_time) < now).length ?? 0;
}

// The groups, of one topic or all: their names, and what is known of each.
export function useGroupsNow(topic) {
  const names = useLive(at`v1/groups`, 30_000), listed = names.data?.groups,
    isMany = (listed?.length ?? 0) > GROUPS_ASKED;
  const sampled = useSampled(isMany, topic), lagOf = one => one.lag ?? 0;
  const asked = useMemo(() => !isMany ? listed ?? []
    : Object.values(sampled ?? {}).sort((a, b) => lagOf(b) - lagOf(a)).slice(0, WORST_ASKED).map(one => one.group),
    [listed, isMany, sampled]);
  const details = useDetails(pathOf, load, { oldMs: Math.max(ASKED_MS, asked.length * 500) });
  useEffect(() => details.want(asked), [asked.join("\n")]);
  const known = asked.map(name => groupNow(name, details.of(name))).filter(one => one.info || one.error),
    overdue = useOverdue(known);
  const full = known.map(one => ({ ...one, overdue: overdue(one.group) })),
    byName = new Map(full.map(one => [one.group, one]));
  const groups = isMany ? Object.values(sampled ?? {}).map(one => byName.get(one.group) ?? one) : full;
  return { names: listed, error: names.error, groups, isMany: (listed?.length ?? 0) > MANY, isKnown: isMany
    ? sampled !== null : listed !== undefined && full.length === listed.length,
    top: [...groups].sort((a, b) => lagOf(b) - lagOf(a)).slice(0, WORST_ASKED) };
}
