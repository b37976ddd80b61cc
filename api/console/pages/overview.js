// What is wrong now comes first, each with what can be done about it; then how much goes through.
import { useEffect, useRef, useState } from "../vendor/hooks.js";
import { at, useLive, useMay } from "../api.js";
import { bytes, count, duration, localTime, plural, rate, sh, visible } from "../format.js";
import { spanOf, sumOf, useGroupsNow, useHistory } from "../now.js";
import { Command, Empty, Facts, html, Plot, Ranges, Sql, State, Table, Trouble } from "../parts.js";
import { to } from "../route.js";
import { GroupState } from "./groups.js";
import { Head } from "./head.js";

const LATE_MS = 60_000, GROWN_MS = 900_000, SOON_MS = 7 * 86_400_000, FULL = 0.1;

// Everything that is wrong: kind, what, and what can be done: an address, or a command.
function wrong({ cluster, ready, jobs, groups, growing, keys, silent, drift }) {
  const found = [];
  for (const one of cluster?.stopped ?? []) {
    found.push({ kind: "bad",
      what: html`${one.queue ?? one.partition} of ${visible(one.topic)} has
        stopped: <code>${one.code}</code> ${visible(one.detail)}`,
      href: one.space === "topics" ? to("topics", one.topic) : to("cluster"), todo: "deltamq verify" });
  }
  const stopped = ready?.stopped_partitions ?? 0;
  if (stopped > (cluster?.stopped ?? []).length) found.push({ kind: "bad",
    what: `${count(stopped)} partitions of this process have stopped`, todo: "deltamq verify" });
  const disk = cluster?.disk;
  if (disk && disk.free_bytes < FULL * disk.size_bytes) found.push({ kind: "bad",
    what: html`The disk is nearly full: ${bytes(disk.free_bytes)} of ${bytes(disk.size_bytes)} are free. Let the
      largest topics keep less, in their settings; the job retain removes the rest`,
    href: to("topics", { sort: "-bytes" }), todo: "deltamq topic retention" });
  for (const one of cluster?.missing_jobs ?? []) {
    found.push({ kind: "bad",
      what: html`No job <b>${one.job}</b> runs: ${one.means}${one.ok_at && ` (last at ${localTime(one.ok_at)})`}`,
      href: to("jobs"), todo: "deltamq jobs run" });
  }
  for (const one of cluster?.brokers ?? []) {
    if (!one.online) found.push({ kind: "bad",
      what: html`No process serves broker <b>${one.broker}</b>, with ${count(one.partitions)} partitions`,
      href: to("cluster"), todo: `deltamq serve --broker ${sh(one.broker)}` });
    else if (!one.readable
      || !one.writable) found.push({ kind: "warn",
        what: html`Broker <b>${one.broker}</b> is closed
          for ${[!one.readable && "reads", !one.writable && "writes"].filter(Boolean).join(" and ")}${one.reason
            && `: ${visible(one.reason)}`}`, href: to("cluster") });
  }
  for (const [job, ms] of silent) {
    found.push({ kind: "warn",
      what: html`Job <b>${job}</b> has not run again for ${duration(Math.floor(ms / 1000) * 1000)}`,
      href: to("jobs"), todo: "deltamq jobs run" });
  }
  for (const job of jobs?.jobs ?? []) {
    const failed = job.shards.filter(one => one.error),
      late = Math.max(0, ...job.shards.map(one => one.behind_ms ?? 0));
    if (job.ok === false
      || failed.length) found.push({ kind: "bad",
        what: html`Job <b>${job.name}</b> fails${job.failures > 1
          && ` (${count(job.failures)} times)`}: ${visible(failed[0]?.error ?? job.detail)}`, href: to("jobs") });
    else if (late > LATE_MS) found.push({ kind: "warn", what: html`Job <b>${job.name}</b> is ${duration(late)} behind`,
      href: to("jobs") });
  }
  for (const one of keys.filter(one => one.live && one.until_time
    && Date.parse(one.until_time) - Date.now() < SOON_MS)) {
    found.push({ kind: "warn",
      what: html`Key <code>${one.key_id}</code> of <b>${visible(one.principal)}</b> ends
        at ${localTime(one.until_time)}`,
      href: to("access", one.principal), todo: `deltamq auth key rotate ${sh(one.principal)}` });
  }
  if (drift.length) found.push({ kind: "warn",
    what: `${plural(drift.length, "thing differs", "things differ")} from the files that were applied`,
    href: to("settings", { tab: "files" }), todo: "deltamq describe --drift" });
  for (const one of groups) {
    const name = html`<b>${visible(one.group)}</b>`;
    if (one.error) found.push({ kind: "bad", what: html`Group ${name} cannot be shown: ${visible(one.error.message)}`,
      href: to("groups", one.group) });
    if (growing.has(one.group)) found.push({ kind: "warn",
      what: html`Dead letters of ${name} grow: ${count(growing.get(one.group))} more
        in ${duration(GROWN_MS)}, ${count(one.dead)} new`, href: to("groups", one.group, "dead-letters") });
    if (one.overdue) found.push({ kind: "bad",
      what: html`${count(one.overdue)} messages of ${name} are overdue: whoever held them did not answer in time`,
      href: to("groups", one.group, "in-flight") });
    if (one.paused) found.push({ kind: "warn",
      what: html`Group ${name} is paused${one.paused.by
        && ` by ${visible(one.paused.by)}`} since ${localTime(one.paused.since_time)}: ${visible(one.paused.reason)}`,
        href: to("groups", one.group) });
    if (one.isStuck) found.push({ kind: "warn",
      what: html`Group ${name} has ${count(one.lag)} messages to go and nobody takes any`,
      href: to("groups", one.group) });
  }
  return found;
}

// Jobs that run every few seconds and whose last run has been the same for longer: how long, by this page's own
// clock, which need not agree with the service's.
const SILENT_MS = 9500, OFTEN_S = 5;
function useSilent(jobs) {
  const seen = useRef(new Map()), [, redraw] = useState(0);
  useEffect(() => {
    const timer = setInterval(() => redraw(n => n + 1), 3000), again = () => seen.current.clear();
    document.addEventListener("visibilitychange", again);
    return () => { clearInterval(timer); document.removeEventListener("visibilitychange", again); };
  }, []);
  const now = performance.now(), silent = new Map();
  for (const job of jobs ?? []) {
    const text = `${job.started_at} ${job.running_since}`, before = seen.current.get(job.name);
    if (before?.text !== text) seen.current.set(job.name, { text, at: now });
    else if (job.every_s !== null && job.every_s <= OFTEN_S && !job.missing && !job.running_since) {
      const ms = now - before.at;
      if (ms > Math.max(SILENT_MS, 5000 * job.every_s + 2000 * job.seconds)) silent.set(job.name, ms);
    }
  }
  return silent;
}

// How many more new dead letters each group has now than a while ago, or than none if it was made since. A group whose
// lag was sampled before its dead letters had none then.
function grown(dead, lag, groups) {
  const since = Date.now() - GROWN_MS, more = new Map();
  const first = series => new Map((series ?? []).map(({ labels, points }) =>
    [labels.group, points.find(([time]) => time >= since)]));
  const before = first(dead), sampled = first(lag);
  for (const one of groups) {
    const [at, number] = before.get(one.group) ?? [Infinity, Infinity], known = sampled.get(one.group)?.[0] ?? Infinity;
    const was = Date.parse(one.info?.created_time) > since || known < at ? 0 : number;
    if (one.dead > was) more.set(one.group, one.dead - was);
  }
  return more;
}

const Problems = ({ found }) => html`<section class="problems" aria-labelledby="wrong" aria-live="polite">
  <h2 id="wrong">Wrong now</h2>
  ${found.length ? html`<ul>${found.map((one, i) => html`<li key=${i} class=${one.kind}><span>${one.what}</span>
    <span class="todo">${one.href && html`<a href=${one.href}>Look</a>`}${one.todo
      && html`<${Command} text=${one.todo} />`}</span></li>`)}</ul>`
    : html`<p class="fine"><${State} kind="good">Nothing<//> that this page can see is wrong.</p>`}</section>`;

export function Overview({ cluster, query }) {
  const ready = useLive(at`readyz`, 10_000), jobs = useLive(at`v1/jobs`, 3000), silent = useSilent(jobs.data?.jobs),
    now = useGroupsNow(), may = useMay();
  const many = now.isMany || cluster.data?.topics > 200, range = query.range, asked = cluster.data
    ? metric => useHistory(metric, {}, range, many) : () => useHistory(null);
  const [sent, sentBytes, consumed, lag, dead, delayed] = ["sent", "sent_bytes", "consumed", "lag", "dead_letters",
    "delayed"].map(asked);
  const keys = useLive(may("cluster", "admin") && cluster.data?.auth ? at`v1/auth/keys` : null, 60_000),
    applied = useLive(may("cluster", "admin") ? at`v1/applied` : null, 60_000);
  const it = cluster.data, sum = (of, key) => of.reduce((all, one) => all + (one[key] ?? 0), 0);
  const found = wrong({ cluster: it, ready: ready.data, jobs: jobs.data, groups: now.groups,
    growing: grown(dead, lag, now.groups), keys: keys.data?.keys ?? [], silent,
    drift: applied.data?.differences ?? [] });
  const columns = [
    { name: "group", head: "Group", cell: one => html`<a href=${to("groups", one.group)}>${visible(one.group)}</a>`,
      sort: one => one.group, cls: "name" },
    { name: "lag", head: "Lag", num: true, cell: one => count(one.lag), sort: one => one.lag },
    { name: "in_flight", head: "In flight", num: true, cell: one => count(one.inFlight), sort: one => one.inFlight },
    { name: "dead", head: "Dead, new", num: true, cell: one => one.dead
      ? html`<a href=${to("groups", one.group, "dead-letters")}>${count(one.dead)}</a>` : count(one.dead),
      sort: one => one.dead },
    { name: "clients", head: "Clients", num: true, cell: one => count(one.clients), sort: one => one.clients },
    { name: "state", head: "State", cell: one => one.error
      ? html`<${State} kind="bad">${visible(one.error.message)}<//>` : one.overdue
      ? html`<${State} kind="bad">${count(one.overdue)} overdue<//>` : html`<${GroupState} of=${one} />` },
  ];
  const plots = [["Messages sent a second", sent, rate], ["Bytes sent a second", sentBytes, bytes],
    ["Messages consumed a second", consumed, rate], ["Lag", lag, count], ["Dead letters, new", dead, count],
    ["Delayed messages", delayed, count]];
  return html`<${Head} title="Overview" />
    <${Problems} found=${found} />
    <${Facts} of=${[
      ["Topics", it && html`<a href=${to("topics")}>${count(it.topics)}</a>`],
      ["Groups", now.names && html`<a href=${to("groups")}>${count(now.names.length)}</a>`],
      ["Partitions", it && count(sum(it.brokers, "partitions"))],
      ["Lag", now.isKnown ? count(sum(now.groups, "lag")) : undefined, "messages that groups have not consumed"],
      ["In flight", now.isKnown ? count(sum(now.groups, "inFlight")) : undefined],
      ["Dead, new", now.isKnown ? count(sum(now.groups, "dead")) : undefined],
      ["Processes", it && count(it.hosts.length)], ["Requests a second", it && count(sum(it.hosts, "load"))],
    ]} />
    ${sent && html`<${Ranges} now=${range} />`}<div
      class="plots">${plots.map(([title, of, written]) =>
        of && html`<${Plot} key=${title} title=${title} series=${sumOf(of)} written=${written} span=${spanOf(range)}
          />`)}</div>
    <section><h2>Groups with most to do</h2>
      ${now.error ? html`<${Trouble} error=${now.error} what="The list of groups" />`
        : html`<${Table} label="Groups with most to do" columns=${columns} rows=${now.top} keyOf=${one => one.group}
          first="-lag"
        empty=${html`<${Empty} command="deltamq consume orders --group billing">No group consumes yet. A group is made
          when its first client asks for messages.<//>`}
        sql=${html`<${Sql} view="mq_lag"
          query=${`SELECT \`group\`, topic, sum(lag) AS lag, sum(in_flight) AS in_flight FROM mq_lag GROUP BY \`group\`,
            topic ORDER BY lag DESC`} />`} />`}</section>`;
}
