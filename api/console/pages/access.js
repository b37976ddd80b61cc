// Who may do what: principals with their keys, rules and quotas.
import { useState } from "../vendor/hooks.js";
import { at, query as asked, send, useLive, useMay } from "../api.js";
import { bytes, count, NONE, plural, visible } from "../format.js";
import { Ask, Copy, Empty, Facts, Field, Form, html, literal, Sql, State, Table, Tabs, Time, Trouble,
  Waiting } from "../parts.js";
import { ask, go, to } from "../route.js";
import { Head } from "./head.js";
import { utc } from "./messages.js";

const VERBS = { topic: ["publish", "subscribe", "describe", "create", "alter", "delete"],
  group: ["subscribe", "describe", "alter", "reset", "delete"], cluster: ["admin", "metrics", "audit"] };
const SOON_MS = 7 * 86_400_000;
const named = name => html`<a href=${to("access", name)}>${visible(name)}</a>`;
const persecond = (n, written) => n === null || n === undefined ? "no bound" : written(n) + "/s";

function Keys({ of, reload, withName }) {
  const end = one => one.until_time === null ? "never" : html`<${Time} at=${one.until_time} />`;
  const isSoon = one => one.until_time && one.live && Date.parse(one.until_time) - Date.now() < SOON_MS;
  const revoke = one => async () =>
    { await send("DELETE", at`v1/auth/keys/${one.key_id}`); reload(); return `Key ${one.key_id} is revoked.`; };
  return html`<${Table} id="keys" label="Keys" rows=${of} keyOf=${one => one.key_id} first="made"
    empty=${html`<${Empty}>No keys.<//>`} columns=${[
    { name: "key", head: "Key", cls: "name", cell: one => one.key_id, sort: one => one.key_id }, withName
      && { name: "principal", head: "Principal", cell: one => named(one.principal), sort: one => one.principal },
    { name: "state", head: "State", cell: one => !one.live ? html`<${State}>over<//>` : isSoon(one)
      ? html`<${State} kind="warn">ends soon<//>` : html`<${State} kind="good">live<//>` },
    { name: "made", head: "Made", cell: one => html`<${Time} at=${one.created_time} />`,
      sort: one => one.created_time }, { name: "until", head: "Ends", cell: end, sort: one => one.until_time },
    { name: "act", head: html`<span class="unseen">Change</span>`,
      cell: one =>
      html`<${Ask} cls="small" label="Revoke" title="Revoke a key" yes="Revoke 1 key" run=${revoke(one)}
        says=${html`<p>Whoever uses key ${one.key_id} of ${visible(one.principal)} is refused within seconds, also in
          what waits now.</p>`} />` }].filter(Boolean)}
    sql=${html`<${Sql} view="mq_state_keys" query=${"SELECT * FROM mq_state_keys" + (withName || !of.length ? ""
      : ` WHERE principal = ${literal(of[0].principal)}`)} />`} />`;
}

function Rules({ of, reload, withName }) {
  const remove = one => async () =>
    { await send("DELETE", at`v1/auth/acls/${one.acl_id}`); reload(); return "The rule is removed."; };
  const says = one => `${one.effect} ${one.verbs.join(", ")} on ${one.resource} ${visible(one.pattern)}`;
  return html`<${Table} id="rules" label="Rules" rows=${of} keyOf=${one => one.acl_id}
    empty=${html`<${Empty}>No rules: nothing is allowed.<//>`} columns=${[
    withName && { name: "principal", head: "Principal", cell: one => named(one.principal), sort: one => one.principal },
    { name: "effect", head: "Effect",
      cell: one => html`<${State} kind=${one.effect === "deny" ? "bad" : "good"}>${one.effect}<//>`,
      sort: one => one.effect }, { name: "verbs", head: "May", cell: one => one.verbs.join(", ") },
    { name: "resource", head: "On", cell: one => one.resource, sort: one => one.resource },
    { name: "pattern", head: "Names", cls: "name", cell: one => one.resource === "cluster" ? "" : visible(one.pattern),
      sort: one => one.pattern },
    { name: "matches", head: "Covers now", num: true, hint: "topics or groups that there are", sort: one => one.matches,
      cell: one => one.resource === "cluster" ? ""
        : html`<span title=${one.matched.map(visible).join(", ")}>${count(one.matches)}</span>` },
    { name: "act", head: html`<span class="unseen">Change</span>`,
      cell: one => html`<${Ask} cls="small" label="Remove" title="Remove a rule" yes="Remove 1 rule" run=${remove(one)}
        says=${html`<p>${visible(one.principal)}: ${says(one)}. It is removed for all processes within seconds.</p>`}
        />` }].filter(Boolean)}
        sql=${html`<${Sql} view="mq_access_history" query="SELECT * FROM mq_access_history WHERE until IS NULL" />`}
        />`;
}

function NewRule({ principal, reload }) {
  const [resource, setResource] = useState("topic");
  const add = async (given, form) => {
    const verbs = [...new FormData(form).getAll("verb")];
    if (!verbs.length) throw new Error("Choose at least one verb.");
    await send("POST", at`v1/auth/acls`, { principal, resource, pattern: resource === "cluster" ? "*" : given.pattern,
      verbs, effect: given.effect });
    reload();
    return "The rule holds.";
  };
  return html`<${Form} label="New rule" yes="Add" onSend=${add} cls="filter card"><${Field} label="Effect"><select
    name="effect"><option>allow</option><option>deny</option></select><//>
    <${Field} label="On"><select
      onChange=${event => setResource(event.target.value)}>${Object.keys(VERBS).map(one =>
        html`<option key=${one}>${one}</option>`)}</select><//>
    ${resource !== "cluster"
      && html`<${Field} label="Names" hint="one, or their beginning and *"><input name="pattern" required
        spellcheck=${false} placeholder="orders.*" /><//>`}
    <fieldset><legend>May</legend>${VERBS[resource].map(verb =>
      html`<label key=${verb}><input type="checkbox" name="verb" value=${verb} /> ${verb}</label>`)}</fieldset><//>`;
}

function NewKey({ principal, reload }) {
  const [made, setMade] = useState(null);
  const make = async ({ until, overlap }) => {
    const ends = { ...(until ? { until: utc(until) } : {}), ...(overlap ? { overlap_ms: overlap * 3_600_000 } : {}) };
    setMade(await send("POST", at`v1/auth/keys`, { principal, ...ends }));
    reload();
  };
  return html`<${Form} label="New key" yes="Make a key" onSend=${make} cls="filter card"><${Field}
    label="Ends, empty: never"><input name="until" type="datetime-local" /><//>
    <${Field} label="The present key ends in, hours" hint="Empty: it stays."><input name="overlap" type="number"
      min="0" step="any" /><//><//>
    ${made
      && html`<div class="card" role="status"><p>Key of ${visible(made.principal)}. It is shown now and never
        again:</p><p class="command"><code>${made.key}</code><${Copy} text=${made.key} /></p></div>`}`;
}

function Principal({ name }) {
  const live = useLive(at`v1/auth/principals/${name}`, 10_000), quotas = useLive(at`v1/auth/quotas`, 30_000),
    it = live.data;
  const quota = quotas.data?.quotas.find(one => one.principal === name);
  const able = async () => { if (it.disabled_time) await send("POST", at`v1/auth/principals/${name}/enable`);
    else await send("POST", at`v1/auth/principals/${name}/disable`); live.reload();
    return `${name} is ${it.disabled_time ? "enabled" : "disabled"}.`; };
  const remove = async () => { await send("DELETE", at`v1/auth/principals/${name}`); go("access");
    return `${name} is removed.`; };
  const bound = async given =>
    { await send("PUT", at`v1/auth/quotas/${name}`,
      Object.fromEntries(Object.entries(given).filter(([, value]) => value).map(([key, value]) => [key,
        Number(value)]))); quotas.reload(); return "The quota holds."; };
  return html`<${Head} title=${name} above=${[["Access", to("access")]]}>${it
    && html`${it.disabled_time && html`<${State} kind="warn">disabled<//>`}
      <${Ask} label=${it.disabled_time ? "Enable" : "Disable"} isDanger=${!it.disabled_time}
        title=${it.disabled_time ? "Enable" : "Disable"} run=${able}
        says=${html`<p>${plural(it.keys.filter(one => one.live).length,
          "live key")} of ${visible(name)} ${it.disabled_time ? "work again, with all rules as they were"
          : "are refused until it is enabled; keys and rules stay"}.</p>`} />
      <${Ask} label="Remove" title="Remove a principal" typed=${name} run=${remove}
        says=${html`<p>${plural(it.keys.length, "key")} and ${plural(it.acls.length, "rule")} go with it.</p>`} />`}<//>
    <${Waiting} of=${live} what="This principal" />${it && html`
    <${Facts}
      of=${[["Note", visible(it.note) || NONE], ["Made", html`<${Time} at=${it.created_time} />`],
        ["Requests", persecond(quota?.requests_per_s, count)], ["In", persecond(quota?.bytes_in_per_s, bytes)],
        ["Out", persecond(quota?.bytes_out_per_s, bytes)]]} />
    <h2>Rules</h2><${Rules} of=${it.acls} reload=${live.reload} /><${NewRule} principal=${name} reload=${live.reload} />
    <h2>Keys</h2><${Keys} of=${it.keys} reload=${live.reload} /><${NewKey} principal=${name} reload=${live.reload} />
    <h2>Quota of each process</h2><${Form} label="Quota" yes="Set" onSend=${bound} cls="filter card"
      key=${JSON.stringify(quota)}>${[["requests_per_s", "Requests a second"], ["bytes_in_per_s", "Bytes in a second"],
        ["bytes_out_per_s", "Bytes out a second"]].map(([field, text]) =>
        html`<${Field} key=${field} label=${text} hint="Empty: no bound."><input name=${field} type="number" min="1"
          defaultValue=${quota?.[field] ?? ""} /><//>`)}<//>`}`;
}

// May somebody do something, and by which rules?
function Explain({ query }) {
  const resource = query.resource ?? "topic", isAsked = query.principal && query.verb
    && (query.name || resource === "cluster");
  const asks = { principal: query.principal, resource, verb: query.verb, name: query.name };
  const { data, error, reload } = useLive(isAsked ? at`v1/auth/explain` + asked(asks) : null, 60_000);
  const find = async given => { ask({ ...given, resource, tab: "explain" }, true); };
  return html`<${Form} label="May somebody do something?" yes="Ask" onSend=${find} cls="filter"
    key=${JSON.stringify(asks)}>
      <${Field} label="May"><input name="principal" required defaultValue=${query.principal ?? ""}
        placeholder="a principal" spellcheck=${false} /><//>
      <${Field} label="do"><select
        name="verb">${VERBS[resource].map(verb =>
          html`<option key=${verb} selected=${verb === query.verb}>${verb}</option>`)}</select><//>
      <${Field} label="on"><select
        onChange=${event => ask({ resource: event.target.value, verb: undefined })}>${Object.keys(VERBS).map(one =>
          html`<option key=${one} selected=${one === resource}>${one}</option>`)}</select><//>
      ${resource !== "cluster"
        && html`<${Field} label="named"><input name="name" required defaultValue=${query.name ?? ""} spellcheck=${false}
          /><//>`}<//>
    <${Trouble} error=${error} what="The answer" />
    ${data
      && html`<p role="status"><${State} kind=${data.allowed ? "good" : "bad"}>${data.allowed ? "Yes"
        : "No"}<//> ${data.disabled_time ? "It is disabled." : data.rules.length ? data.allowed
        ? "These rules allow it, and none denies it:" : "These rules deny it:" : "No rule allows it."}</p>
      ${data.rules.length > 0 && html`<${Rules} of=${data.rules} reload=${reload} />`}`}`;
}

// The rules and the keys of all, and a new principal.
export function Access({ path, query, cluster }) {
  const may = useMay(), isAdmin = may("cluster", "admin") && cluster.data?.auth === true, tab = query.tab ?? "",
    name = path[1];
  const principals = useLive(isAdmin && !name ? at`v1/auth/principals` : null, 15_000),
    keys = useLive(isAdmin && tab === "keys" ? at`v1/auth/keys` : null, 15_000);
  const rules = useLive(isAdmin && tab === "rules" ? at`v1/auth/acls` : null, 15_000),
    quotas = useLive(isAdmin && tab === "quotas" ? at`v1/auth/quotas` : null, 15_000);
  if (name && isAdmin) return html`<${Principal} key=${name} name=${name} />`;
  const disabled = new Set(principals.data?.disabled), link = (tab, text) => [tab, text, to("access", { tab })];
  const make = async given => { await send("PUT", at`v1/auth/principals/${given.principal}`, { note: given.note });
    go("access", given.principal); return `${given.principal} is there, and may do nothing yet.`; };
  if (cluster.data?.auth === false) return html`<${Head} title="Access" /><${Empty} command="deltamq auth init">This
    service asks nobody for a key: whoever reaches its port may do everything. Make the first administrator, then set
    service.auth.<//>`;
  if (!isAdmin) return html`<${Head} title="Access" /><p class="calm">Who may do what is shown to those
    with <code>admin</code> on the cluster. What you may do yourself:</p><${Mine} />`;
  return html`<${Head} title="Access" /><${Tabs} label="Parts of the page"
    of=${[link("", "Principals"), link("rules", "Rules"), link("keys", "Keys"), link("quotas", "Quotas"),
      link("explain", "Why?")]} now=${tab} />
    ${[principals, keys, rules,
      quotas].map((one, i) => html`<${Trouble} key=${i} error=${one.error} what="This list" />`)}
    ${tab === "" && principals.data
      && html`<div class="filter"><${Field} label="Find"><input type="search" value=${query.q ?? ""}
        onInput=${event => ask({ q: event.target.value })} /><//></div>
      <${Table} label="Principals"
        rows=${principals.data.principals.filter(one =>
          one.toLowerCase().includes((query.q ?? "").toLowerCase())).map(principal => ({ principal }))}
          keyOf=${one => one.principal} first="principal"
          columns=${[{ name: "principal", head: "Principal", cls: "name", cell: one => named(one.principal),
            sort: one => one.principal },
        { name: "state", head: "State", cell: one => disabled.has(one.principal)
          ? html`<${State} kind="warn">disabled<//>` : html`<${State} kind="good">enabled<//>` }]}
        sql=${html`<${Sql} view="mq_state_principals" query="SELECT * FROM mq_state_principals" />`} />
      <${Form} label="New principal" yes="Make a principal" onSend=${make} cls="filter card"><${Field}
        label="Name"><input name="principal" required maxlength="127" spellcheck=${false} autocomplete="off"
        /><//><${Field} label="Note" hint="Whom to ask about it."><input name="note" maxlength="1000" /><//><//>`}
    ${tab === "rules" && rules.data && html`<${Rules} of=${rules.data.acls} reload=${rules.reload} withName />`}
    ${tab === "keys" && keys.data && html`<${Keys} of=${keys.data.keys} reload=${keys.reload} withName />`}
    ${tab === "explain" && html`<${Explain} query=${query} />`}
    ${tab === "quotas" && quotas.data
      && html`<${Table} label="Quotas" rows=${quotas.data.quotas} keyOf=${one => one.principal} first="principal"
        empty=${html`<${Empty} command="deltamq auth quota set NAME">No principal has a quota.<//>`}
        columns=${[{ name: "principal", head: "Principal", cell: one => named(one.principal),
          sort: one => one.principal },
      ...[["requests_per_s", "Requests", count], ["bytes_in_per_s", "In", bytes],
        ["bytes_out_per_s", "Out", bytes]].map(([field, head, written]) =>
        ({ name: field, head, num: true, cell: one => persecond(one[field], written), sort: one => one[field] }))]}
        sql=${html`<${Sql} view="mq_state_quotas" query="SELECT * FROM mq_state_quotas" />`} />`}`;
}

// May I do this to a topic or group of this name?
function Mine() {
  const [names, setNames] = useState({}), { data, error } = useLive(at`v1/auth/may` + asked(names), 60_000);
  return html`<div class="filter"><${Field} label="Topic"><input
    onChange=${event => setNames({ ...names, topic: event.target.value })} spellcheck=${false} /><//><${Field}
    label="Group"><input onChange=${event => setNames({ ...names, group: event.target.value })} spellcheck=${false}
    /><//></div>
    <${Trouble} error=${error} what="What you may do" />${data
      && html`<${Facts}
        of=${[["You are", visible(data.principal ?? "anybody")],
          ...["cluster", "topic",
            "group"].map(one =>
            [`On ${one === "cluster" ? "the cluster" : names[one] ? `${one} ${visible(names[one])}` : `every ${one}`}`,
              data[one].join(", ") || "nothing"])]} />`}`;
}
