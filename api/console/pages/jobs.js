// The jobs beside the service: what each does, who runs its shards, how its last runs went, and how far behind it is.
import { at, useLive } from "../api.js";
import { count, duration, NONE, plural, visible } from "../format.js";
import { Command, Empty, html, Rest, Sql, State, Table, Time, Waiting } from "../parts.js";
import { Head } from "./head.js";

const late = job => Math.max(0, ...job.shards.map(one => one.behind_ms ?? 0));
function state(job) {
  if (job.missing) return html`<${State} kind="bad">does not run<//>`;
  if (job.ok === false || job.shards.some(one => one.error)) return html`<${State} kind="bad">fails<//>`;
  if (job.running_since) return html`<${State} kind="accent">runs now<//>`;
  return job.ok === null ? html`<${State}>never ran<//>` : html`<${State} kind="good">fine<//>`;
}

export function Jobs() {
  const live = useLive(at`v1/jobs`, 5000), jobs = live.data?.jobs ?? [];
  const shards = jobs.flatMap(job => job.shards.map(one => ({ ...one, job: job.name })));
  const columns = [
    { name: "name", head: "Job", cls: "name", cell: one => one.name, sort: one => one.name },
    { name: "state", head: "State", cell: state },
    { name: "ran", head: "Last run", cell: one => html`<${Time} at=${one.started_at} />`, sort: one => one.started_at },
    { name: "took", head: "Took", num: true, cell: one => one.seconds === null ? NONE : duration(one.seconds * 1000),
      sort: one => one.seconds },
    { name: "well", head: "Last good run", cell: one => html`<${Time} at=${one.ok_at} since />` },
    { name: "every", head: "Every", num: true, cell: one => one.every_s === null ? NONE
      : duration(one.every_s * 1000) },
    { name: "behind", head: "Behind", num: true, cell: one => one.shards.length ? duration(late(one)) : NONE,
      sort: late }, { name: "failures", head: "Failures", num: true, cell: one => count(one.failures),
      sort: one => one.failures },
    { name: "engine", head: "Engine", cell: one => one.engine ?? NONE },
    { name: "did", head: "Did", cls: "clip wide", cell: one => one.detail ? visible(one.detail)
      : Object.entries(one.facts).map(([name, value]) =>
        `${name} ${typeof value === "number" ? count(value) : visible(value)}`).join(", ") || NONE },
  ];
  const ofShards = [{ name: "job", head: "Job", cls: "name", cell: one => one.job, sort: one => one.job },
    { name: "shard", head: "Shard", cls: "name", cell: one => visible(one.shard), sort: one => one.shard },
    { name: "owner", head: "Owner", cls: "mono clip", cell: one => visible(one.owner), sort: one => one.owner },
    { name: "ran", head: "Last run", cell: one => html`<${Time} at=${one.last_run_time} />`,
      sort: one => one.last_run_time },
      { name: "behind", head: "Behind", num: true, cell: one => duration(one.behind_ms), sort: one => one.behind_ms },
      { name: "error", head: "Error", cls: "wrap", cell: one => one.error
        ? html`<${State} kind="bad">${visible(one.error)}<//>` : "" }];
  const missing = jobs.filter(one => one.missing);
  return html`<${Head} title="Jobs" /><${Waiting} of=${live} what="The list of jobs" />
    ${missing.length > 0
      && html`<section class="problems" aria-label="Missing jobs"
        aria-live="polite"><ul>${missing.map(one => html`<li key=${one.name} class="bad"><span><b>${one.name}</b> runs
          nowhere: ${one.missing}.</span><span class="todo"><${Command} text="deltamq jobs run"
            /></span></li>`)}</ul></section>`}
    ${live.data
      && html`<${Table} label="Jobs" columns=${columns} rows=${jobs} keyOf=${one => one.name} first="name"
        empty=${html`<${Empty} command="deltamq jobs run">No job has run in this warehouse.<//>`}
        sql=${html`<${Rest} call="GET /v1/jobs" command="deltamq jobs list" />`} />
      <h2>Shards</h2><${Table} id="shards" label="Shards" columns=${ofShards} rows=${shards}
        keyOf=${one => one.job + "\n" + one.shard} first="job" empty=${html`<${Empty}>No shard of a job has run.<//>`}
        total=${shards.length ? plural(shards.length, "shard") : undefined}
        sql=${html`<${Sql} view="job_shards" query="SELECT * FROM job_shards" />`} />`}`;
}
