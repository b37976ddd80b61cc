// Processes and brokers: who serves what, since which epoch; what is closed or stopped; draining; upgrades.
import { useState } from "../vendor/hooks.js";
import { at, send, useLive, useMay } from "../api.js";
import { count, plural, rate, visible } from "../format.js";
import { Ask, Command, Facts, Field, Form, html, Rest, Sql, State, Table, Time, Waiting } from "../parts.js";
import { to } from "../route.js";
import { Head } from "./head.js";
import { utc } from "./messages.js";

function Drain({ broker, reload }) {
  const close = async ({ reads, reason, until }) =>
    { await send("PUT", at`v1/brokers/${broker}`,
      { writable: false, readable: !reads, reason, ...(until ? { until: utc(until) } : {}) }); reload();
      return `${broker} is closed.`; };
  return html`<${Form} label=${`Close ${broker}`} yes="Close" onSend=${close}
    cls="filter card"><p><b>Close ${visible(broker)} for writes.</b> Messages go to other brokers; keys of strict topics
    wait. What is there stays and is read.</p>
    <${Field} label="Why"><input name="reason" maxlength="255" required autofocus /><//><${Field}
      label="Until, empty: until it is opened"><input name="until" type="datetime-local" step="1" /><//>
    <label><input type="checkbox" name="reads" /> for reads, too</label><//>`;
}

function Upgrade({ may }) {
  const live = useLive(at`v1/cluster/upgrade`, 60_000), it = live.data;
  if (!it) return html`<${Waiting} of=${live} what="What an upgrade would do" />`;
  const run = async () => { await send("POST", at`v1/cluster/upgrade`); live.reload(); return "The features are on."; };
  const list = (title, of, kind) => of.length > 0
    && html`<h3>${title}</h3><ul
      class="list">${of.map(one =>
        html`<li key=${one.feature}><${State} kind=${kind}>${one.feature}<//> ${one.says}${one.lacking?.length > 0
          && ` unknown to ${one.lacking.join(", ")}`}</li>`)}</ul>`;
  return html`${list("On", it.on, "good")}${list("Ready to be switched on", it.ready,
    "accent")}${list("Waiting for processes that do not know them", it.waiting, "warn")}
    ${!it.on.length && !it.ready.length && !it.waiting.length
      && html`<p class="calm">There is nothing that not every release knows.</p>`}
    ${it.ready.length > 0 && may("cluster", "admin")
      && html`<${Ask} label="Upgrade" title="Switch features on"
        yes=${`Switch on ${plural(it.ready.length, "feature")}`} run=${run}
        says=${html`<p>${it.ready.map(one => one.feature).join(", ")}: releases that do not know them cannot be started
          on this warehouse any more.</p>`} />`}`;
}

// What this process asks of its object store, and what that costs; of a disk there is nothing to say.
function storeFacts(store) {
  if (!store) return [];
  const calls = store.recent.reduce((sum, one) => sum + one.requests, 0) / Math.max(1, store.recent_seconds);
  const dollars = store.dollars_a_month?.toFixed(2);
  const price = dollars === undefined ? "" : `, $${dollars} a month (${store.prices})`;
  return [["Calls of the store", `${rate(calls)} a second by this process${price}`]];
}

export function Cluster({ cluster }) {
  const may = useMay(), it = cluster.data, [closing, setClosing] = useState(null);
  const open = one => async () => { await send("PUT", at`v1/brokers/${one.broker}`, {}); cluster.reload();
    return `${one.broker} takes messages again.`; };
  const brokers = [
    { name: "broker", head: "Broker", cls: "name", cell: one => visible(one.broker), sort: one => one.broker },
    { name: "state", head: "State", cell: one => !one.online ? html`<${State} kind="bad">no process<//>` : one.readable
      && one.writable ? html`<${State} kind="good">serving<//>`
      : html`<span><${State} kind="warn">closed for ${one.readable ? "writes" : one.writable ? "reads"
        : "reads and writes"}<//> ${visible(one.reason ?? "")}${one.until
        && html` until <${Time} at=${one.until} />`}</span>` },
    { name: "partitions", head: "Partitions", num: true, cell: one => count(one.partitions),
      sort: one => one.partitions },
      { name: "epoch", head: "Epoch", num: true, hint: "of its lease: each owner has a higher one",
        cell: one => count(one.epoch), sort: one => one.epoch },
    { name: "roles", head: "Roles", cell: one => one.roles.join(", ") },
    { name: "address", head: "Served at", cls: "name", cell: one => one.address },
    may("cluster", "admin") && { name: "act", head: html`<span class="unseen">Change</span>`, cell: one => one.readable
      && one.writable ? html`<button type="button" class="small" onClick=${() => setClosing(one.broker)}>Drain</button>`
      : html`<${Ask} cls="small" isDanger=${false} label="Open" title="Open the broker" run=${open(one)}
        says=${html`<p>${visible(one.broker)} may be read and written to
          again: ${plural(one.partitions, "partition")}.</p>`} />` },
  ].filter(Boolean);
  const hosts = [{ name: "address", head: "Address", cls: "name", cell: one => one.address, sort: one => one.address },
    { name: "brokers", head: "Its brokers", cell: one => one.brokers.join(", ") },
    { name: "load", head: "Requests /s", num: true, cell: one => count(one.load), sort: one => one.load },
    { name: "auth", head: "Asks for keys", cell: one => one.auth ? "yes" : "no" },
    { name: "host", head: "Process", cls: "name",
      cell: one => html`${one.host}${one.host === it.meta?.host ? html` <${State} kind="accent">meta<//>` : ""}` }];
  const source = html`<${Rest} call="GET /v1/cluster" command="deltamq cluster" />`;
  const done = async () => { setClosing(null); await cluster.reload(); };
  return html`<${Head} title="Cluster" /><${Waiting} of=${cluster} what="The cluster" />${it && html`
    <${Facts}
      of=${[["Version", it.version], ["Warehouse", html`<code>${visible(it.warehouse)}</code>`],
        ["Route epoch", count(it.routes_epoch)], ["Topics", count(it.topics)],
        ["Asks for keys", it.auth ? "yes" : "no"], ...storeFacts(it.store),
        ["Meta role", it.meta ? html`${it.meta.address}, epoch ${it.meta.epoch}`
          : html`<${State} kind="bad">nobody<//>`]]} />
    ${it.stopped.length > 0
      && html`<section><h2>Stopped</h2><${Table} id="stopped" label="Stopped partitions"
        columns=${[{ name: "partition", head: "Partition", cls: "name", cell: one => one.space === "topics"
          ? html`<a href=${to("topics", one.topic)}>${visible(one.queue ?? one.partition)}</a>`
          : visible(one.partition) }, { name: "space", head: "Of", cell: one => one.space },
          { name: "code", head: "Code", cell: one => html`<${State} kind="bad">${one.code}<//>` },
          { name: "detail", head: "What is wrong", cls: "wrap", cell: one => visible(one.detail) }]} rows=${it.stopped}
          keyOf=${one => one.space + one.partition} sql=${source} /><${Command} text="deltamq verify" /></section>`}
    <h2>Brokers</h2><${Table} label="Brokers" columns=${brokers} rows=${it.brokers} keyOf=${one => one.broker}
      first="broker" sql=${html`<${Sql} view="mq_brokers" query="SELECT * FROM mq_brokers" />`} />
    ${closing && html`<${Drain} broker=${closing} reload=${done} />`}
    <h2>Processes</h2><${Table} id="hosts" label="Processes" columns=${hosts} rows=${it.hosts} keyOf=${one => one.host}
      first="address" sql=${source} />
    <h2>Upgrade</h2><${Upgrade} may=${may} />`}`;
}
