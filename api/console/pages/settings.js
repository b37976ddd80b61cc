// What the process that answers runs with that is not the default, and what differs from files that were applied.
import { at, useLive, useMay } from "../api.js";
import { count, plural, visible } from "../format.js";
import { Empty, Field, html, Rest, State, Table, Tabs, Time, Trouble, Waiting } from "../parts.js";
import { ask, to } from "../route.js";
import { Head } from "./head.js";

const text = value => value === null || value === undefined || value === "" ? "–" : typeof value === "string"
  ? visible(value) : visible(JSON.stringify(value));

const STATES = { missing: "bad", changed: "warn", extra: "warn" };

// Where a thing that was applied is shown.
function place({ kind, name }) {
  if (kind === "topic") return to("topics", name, "settings");
  return kind === "group" ? to("groups", name, "settings") : to("access", name.split("/")[0]);
}

function Drift() {
  const live = useLive(at`v1/applied`, 30_000), applied = live.data;
  const rows = (applied?.differences ?? []).flatMap(one => (Object.keys(one.fields).length
    ? Object.entries(one.fields) : [["", { applied: null, present: null }]]).map(([field, its]) =>
    ({ ...one, field, ...its })));
  const columns = [{ name: "kind", head: "What", cell: one => one.kind, sort: one => one.kind },
    { name: "name", head: "Name", cls: "name", cell: one => html`<a href=${place(one)}>${visible(one.name)}</a>`,
      sort: one => one.name },
    { name: "state", head: "State", cell: one => html`<${State} kind=${STATES[one.state]}>${one.state}<//>`,
      sort: one => one.state },
    { name: "field", head: "Field", cls: "name", cell: one => one.field },
    { name: "applied", head: "Applied", cls: "mono wrap", cell: one => text(one.applied) },
    { name: "present", head: "Now", cls: "mono wrap", cell: one => text(one.present) }];
  if (!applied) return html`<${Waiting} of=${live} what="What was applied from files" />`;
  if (!applied.applied_time) return html`<${Empty} command="deltamq apply PATH --plan">Nothing was applied from files
    yet.<//>`;
  return html`<p>Topics, groups and principals that were applied from files: ${count(applied.names)}, last
      at <${Time} at=${applied.applied_time} />${applied.applied_by
        && ` by ${visible(applied.applied_by)}`}. What is in no file is not compared.</p>
    <${Table} label="What differs" columns=${columns} rows=${rows} keyOf=${one => one.kind + one.name + one.field}
      first="kind" empty=${html`<p class="calm">Nothing differs from what was applied.</p>`}
      total=${rows.length ? plural(applied.differences.length, "difference") : undefined}
      sql=${html`<${Rest} call="GET /v1/applied" command="deltamq describe --drift" />`} />`;
}

export function Settings({ query }) {
  const may = useMay(), tab = query.tab ?? "";
  return html`<${Head} title="Settings" />
    ${may("cluster", "admin") && html`<${Tabs} label="Parts of the settings" now=${tab}
      of=${[["", "This process", to("settings")],
        ["files", "Applied from files", to("settings", { tab: "files" })]]} />`}
    ${tab === "files" ? html`<${Drift} />` : html`<${Process} query=${query} />`}`;
}

function Process({ query }) {
  const live = useLive(at`v1/settings`, 60_000), isAbsent = live.error?.status === 404,
    words = (query.q ?? "").toLowerCase();
  const rows = (live.data?.settings ?? []).filter(one => (query.all || one.differs || words)
    && one.name.toLowerCase().includes(words));
  const columns = [{ name: "name", head: "Setting", cls: "name", cell: one => one.name, sort: one => one.name },
    { name: "value", head: "Value", cls: "mono wrap", cell: one => text(one.value) },
    { name: "default", head: "Default", cls: "mono wrap", cell: one => text(one.default) },
    { name: "source", head: "From", cell: one => visible(one.source), sort: one => one.source },
    { name: "differs", head: "State", cell: one => one.differs ? html`<${State} kind="accent">differs<//>` : "",
      sort: one => !one.differs }];
  return html`${isAbsent ? html`<p class="calm">This release does not show its settings.</p>`
      : html`<${Trouble} error=${live.error} what="What this process runs with" />`}
    ${live.data
      && html`<div class="filter"><${Field} label="Find"><input type="search" value=${query.q ?? ""}
        onInput=${event => ask({ q: event.target.value })} spellcheck=${false} /><//>
        <label><input type="checkbox" checked=${!!query.all}
          onChange=${event => ask({ all: event.target.checked ? 1 : undefined })} /> also those with their
          default</label>
        <p class="count" role="status">${plural(live.data.settings.filter(one => one.differs).length,
          "setting")} of ${live.data.settings.length} differ from the default</p></div>
      <${Table} label="Settings" columns=${columns} rows=${rows} keyOf=${one => one.name} first="name"
        empty=${html`<p class="calm">Every setting has its default.</p>`}
        sql=${html`<${Rest} call="GET /v1/settings" command="deltamq settings" />`} />`}`;
}
