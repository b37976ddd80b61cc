// What the process that answers runs with, and which of it is not the default.
import { at, useLive } from "../api.js";
import { plural, visible } from "../format.js";
import { Command, Field, html, State, Table, Trouble } from "../parts.js";
import { ask } from "../route.js";
import { Head } from "./head.js";

const text = value => value === null || value === undefined || value === "" ? "–" : typeof value === "string"
  ? visible(value) : visible(JSON.stringify(value));

export function Settings({ query }) {
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
  return html`<${Head} title="Settings" />
    ${isAbsent ? html`<p class="calm">This release does not show its settings.</p>`
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
        empty=${html`<p class="calm">Every setting has its default.</p>`} /><p><${Command} text="deltamq settings"
        /></p>`}`;
}
