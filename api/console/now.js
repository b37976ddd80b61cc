// How groups and topics are now and were before: from the service's history where it keeps one, else asked one by one.
import { useEffect, useMemo, useState } from "./vendor/hooks.js";
import { at, get, query, useLive } from "./api.js";
import { useDetails } from "./parts.js";

export const RANGES = { "15m": 900_000, "1h": 3_600_000, "6h": 21_600_000, "1d": 86_400_000 };
const GROUPS_ASKED = 100, OVERDUE_ASKED = 8;
// The clocks of browser and service may differ by this much.
const CLOCKS_MS = 5000;
// Whether this service keeps a history; one that does not is asked once.
let isKept = true;

const moment = time => typeof time === "number" ? time : Date.parse(time);

// The series of a metric, [{labels, points: [[ms, value]]}]; null without a history.
export function useHistory(metric, labels = {}, range = "1h", everyMs = 15_000) {
  const span = RANGES[range] ?? RANGES["1h"], [from, setFrom] = useState(() => Date.now() - span);
  useEffect(() => {
    setFrom(Date.now() - span);
    const timer = setInterval(() => setFrom(Date.now() - span), span / 20);
    return () => clearInterval(timer);
  }, [span]);
  const path = isKept ? at`v1/history` + query({ metric, ...labels, from_time: new Date(from).toISOString(), step_ms: Math.max(15_000, Math.round(span / 240)) }) : null;
  const { data, error } = useLive(path, everyMs);
  if (error?.status === 404) isKept = false;
  const [last, setLast] = useState(null);
  useEffect(() => { if (data) setLast(data); }, [data]);
  return useMemo(() => last && last.series.map(one => ({ labels: one.labels, points: one.points.map(([time, value]) => [moment(time), value]) })), [last]);
}

export const lastOf = one => one.points.at(-1)?.[1] ?? null;
// The lines of a plot: named by their labels, the largest first.
export const topOf = series => series.map(one => ({ name: Object.values(one.labels).join(" ") || "all", points: one.points }))
  .sort((a, b) => (b.points.at(-1)?.[1] ?? 0) - (a.points.at(-1)?.[1] ?? 0));

// One group by its two answers: `GET /v1/groups/{group}`, and the counts of its dead letters, null if they are not shown.
export function groupNow(group, { data, error }) {
  if (!data) return { group, error };
  const [info, counts] = data, partitions = [...info.topics, ...info.members.flatMap(one => one.topics)].flatMap(one => one.partitions);
  const sum = key => partitions.reduce((all, one) => all + (one[key] ?? 0), 0);
  const lag = sum("lag"), inFlight = sum("in_flight"), clients = info.clients.filter(one => one.online).length + info.members.length;
  return { group, info, lag, inFlight, dead: counts?.new ?? null, clients, error, strategy: info.consume_strategy, paused: info.paused,
    retries: partitions.filter(one => one.retry).reduce((all, one) => all + (one.lag ?? 0), 0),
    topics: info.topics.map(one => one.topic), isStuck: lag > 0 && inFlight === 0 && clients === 0 && !info.paused };
}
const pathOf = group => [at`v1/groups/${group}`, at`v1/groups/${group}/dead-letters/counts`];
const load = async ([info, counts]) => Promise.all([get(info), get(counts).catch(() => null)]);
export const useGroupDetails = () => useDetails(pathOf, load);

// How many messages of each group were not answered in time, by the oldest of those in flight.
function useOverdue(groups) {
  const names = groups.filter(one => one.inFlight > 0).sort((a, b) => b.inFlight - a.inFlight).slice(0, OVERDUE_ASKED).map(one => one.group);
  const details = useDetails(group => at`v1/groups/${group}/in-flight` + query({ limit: 100 }), get, { oldMs: 10_000 }), now = Date.now() - CLOCKS_MS;
  useEffect(() => details.want(names), [names.join("\n")]);
  return group => details.of(group).data?.messages.filter(one => Date.parse(one.visible_time) < now).length ?? 0;
}

// The groups: their names, and what is known of each.
export function useGroupsNow() {
  const names = useLive(at`v1/groups`, 30_000), listed = names.data?.groups;
  const asked = listed?.slice(0, GROUPS_ASKED) ?? [];
  const details = useDetails(pathOf, load, { oldMs: Math.max(15_000, asked.length * 500) });
  useEffect(() => details.want(asked), [listed]);
  const known = asked.map(name => groupNow(name, details.of(name))).filter(one => one.info || one.error), overdue = useOverdue(known);
  const groups = known.map(one => ({ ...one, overdue: overdue(one.group) }));
  return { names: listed, error: names.error, groups, isKnown: listed !== undefined && groups.length === asked.length,
    top: [...groups].sort((a, b) => (b.lag ?? 0) - (a.lag ?? 0)).slice(0, 12) };
}
