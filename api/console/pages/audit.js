// Who did what, and what was refused to whom: found by principal and time at the service, by words among those.
import { useEffect, useMemo, useState } from "../vendor/hooks.js";
import { at, get, query as asked } from "../api.js";
import { count, NONE, plural, visible } from "../format.js";
import { Empty, Field, Form, html, Sql, State, Table, Tabs, Time, Trouble } from "../parts.js";
import { ask, to } from "../route.js";
import { Head } from "./head.js";
import { asField, utc } from "./messages.js";

const PAGE = 500, ROWS_MAX = 10_000;
const KINDS = { done: "good", refused: "warn", failed: "bad", unknown: "bad" };
const json = value => value === null || value === undefined ? NONE : visible(JSON.stringify(value, null, 2), false);

// All acts or refusals since a time, page by page; asked again only when the question changes.
function useRows(path, key, filter) {
  const [state, setState] = useState({ rows: [] }), about = JSON.stringify([path, filter]);
  useEffect(() => {
    const abort = new AbortController();
    (async () => {
      let rows = [], after;
      setState({ rows, isBusy: true });
      try {
        do {
          const page = await get(path + asked({ ...filter, limit: PAGE, after }), { signal: abort.signal });
          rows = [...rows, ...page[key]];
          after = page.next;
          setState({ rows, isBusy: after !== null && after !== undefined });
        } while (after !== null && after !== undefined && rows.length < ROWS_MAX);
        setState({ rows, isCut: rows.length >= ROWS_MAX });
      } catch (error) { if (!abort.signal.aborted) setState({ rows, error }); }
    })();
    return () => abort.abort();
  }, [about]);
  return state;
}

function Act({ act }) {
  return html`<section class="card" aria-label="An act"><div class="head"><h2>${visible(act.call)}</h2><button
    type="button" onClick=${() => ask({ act: undefined })}>Close</button></div>
    <p>${visible(act.principal)} from <code>${visible(act.address)}</code>, by
      process <code>${visible(act.process)}</code>: <${State} kind=${KINDS[act.outcome]}>${act.outcome}<//> ${act.code
        && html`<code>${act.code}</code>`} ${visible(act.detail ?? "")}</p>
    <div class="columns">${[["Asked", act.asked], ["Before", act.before],
      ["After", act.after]].map(([title, value]) =>
      html`<div key=${title}><h3>${title}</h3><pre tabindex="0" role="region"
        aria-label=${title}>${json(value)}</pre></div>`)}</div></section>`;
}

export function Audit({ query }) {
  const isRefusals = query.tab === "refusals", filter = { since: query.since, principal: query.principal };
  const acts = useRows(at`v1/audit`, "acts", filter), refusals = useRows(at`v1/audit/refusals`, "refusals", filter);
  const { rows, error, isBusy, isCut } = isRefusals ? refusals : acts,
    words = (query.q ?? "").toLowerCase().split(/\s+/).filter(Boolean);
  const shown =
    useMemo(() =>
      rows.filter(one =>
        { const text = JSON.stringify(one).toLowerCase(); return words.every(word => text.includes(word)); }),
        [rows, query.q]);
  const open = acts.rows.find(one => one.id === query.act);
  const linked = one => one.resource === "topic" || one.resource === "group"
    ? html`<a href=${to(one.resource + "s", one.name)}>${visible(one.name)}</a>` : visible(one.name);
  const who = { name: "principal", head: "Who", cell: one => visible(one.principal), sort: one => one.principal },
    call = { name: "call", head: "Call", cls: "name", cell: one => visible(one.call), sort: one => one.call };
  const columns = isRefusals
    ? [{ name: "time", head: "Minute", cell: one => html`<${Time} at=${one.minute} />`, sort: one => one.minute }, who,
      call, { name: "code", head: "Refused as", cell: one => html`<${State} kind="warn">${one.status} ${one.code}<//>`,
        sort: one => one.code }, { name: "count", head: "Times", num: true, cell: one => count(one.count),
        sort: one => one.count },
        { name: "address", head: "Last from", cls: "mono", cell: one => visible(one.address) }]
    : [{ name: "time", head: "When",
      cell: one => html`<a href=${to("audit", { ...query, act: one.id })}><${Time} at=${one.time} /></a>`,
      sort: one => one.time }, who, call,
      { name: "name", head: "On", cls: "clip", cell: linked, sort: one => one.name },
      { name: "outcome", head: "Outcome", cell: one => html`<${State} kind=${KINDS[one.outcome]}>${one.outcome}<//>`,
        sort: one => one.outcome }, { name: "address", head: "From", cls: "mono", cell: one => visible(one.address) }];
  const find = async given => { ask({ principal: given.principal, since: utc(given.since), act: undefined }, true); };
  return html`<${Head} title="Audit" /><${Tabs} label="Parts of the audit"
    of=${[["", "Acts", to("audit")], ["refusals", "Refusals", to("audit", { tab: "refusals" })]]} now=${query.tab ?? ""}
    />
    <${Form} label="What to show" yes="Show" onSend=${find} cls="filter" key=${JSON.stringify(filter)}><${Field}
      label="Principal"><input name="principal" defaultValue=${query.principal ?? ""} spellcheck=${false}
      /><//><${Field} label="Since"><input name="since" type="datetime-local" step="1"
      defaultValue=${asField(query.since)} /><//>
      <${Field} label="Words"><input type="search" value=${query.q ?? ""}
        onInput=${event => ask({ q: event.target.value })} placeholder="DELETE orders" spellcheck=${false} /><//><//>
    <${Trouble} error=${error} what="The audit" />
    ${!error
      && html`<p class="count" role="status">${isBusy ? "Reading: " : ""}${words.length ? `${count(shown.length)} of `
        : ""}${plural(rows.length, isRefusals ? "refusal" : "act")}${isCut
        ? ": the oldest of them; choose a time to see later ones" : ""}</p>`}
    ${!isRefusals && open && html`<${Act} act=${open} />`}
    ${!error && (rows.length > 0 || !isBusy)
      && html`<${Table} label=${isRefusals ? "Refusals" : "Acts"} columns=${columns} rows=${shown}
        keyOf=${one => one.id ?? one.minute + one.principal + one.call + one.code + one.process} first="-time"
        empty=${html`<${Empty}>Nothing was recorded${words.length || filter.since || filter.principal ? " like this"
          : ": acts are, with authentication, or with service.audit = always"}.<//>`}
      sql=${html`<${Sql} view=${isRefusals ? "mq_refusals" : "mq_audit"}
        query=${`SELECT * FROM ${isRefusals ? "mq_refusals ORDER BY minute" : "mq_audit ORDER BY time"} DESC`} />`}
        />`}`;
}
