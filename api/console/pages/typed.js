// A topic whose messages have a schema: the schema's versions, the newest value of a key, and what did not fit.
import { useEffect, useState } from "../vendor/hooks.js";
import { at, get, getExactly, query as asked, send, useLive } from "../api.js";
import { cut, isJson, NONE, plural, prettyJson, preview, sh, visible } from "../format.js";
import { Ask, Command, Copy, Empty, Facts, Field, Form, html, literal, Sql, State, Table, Time, Trouble,
  Waiting } from "../parts.js";
import { ask, to } from "../route.js";
import { byPartition, keyOf } from "./letters.js";
import { Body, Headers } from "./message.js";

const PAGE = 100;
const MODES = { reject: "is refused", quarantine: "goes into quarantine", rescue: "is delivered with what fits" };

// The name of a view of a topic (jobs/read/identifiers.py).
const viewOf = (kind, topic) => `mq_${kind}_` + topic.replace(/_/g, "__").replace(/[^A-Za-z0-9_]/g, one =>
  [...new TextEncoder().encode(one)].map(byte => "_" + byte.toString(16).padStart(2, "0")).join(""));

// The newest value of a key.
function Newest({ topic, query }) {
  const key = query.key, [answer, setAnswer] = useState({});
  useEffect(() => {
    const abort = new AbortController();
    setAnswer({});
    if (key === undefined) return undefined;
    getExactly(at`v1/topics/${topic}/latest/${key}`, { signal: abort.signal }).then(data => setAnswer({ data }),
      error => { if (error.name !== "AbortError") setAnswer({ error }); });
    return () => abort.abort();
  }, [topic, key]);
  const { data, error } = answer, isNone = error?.code === "key_not_found";
  return html`<section class="card"><h2>The newest value of a key</h2>
    <${Form} label="A key" yes="Look up" onSend=${given => { ask({ key: given.key }, true); }} cls="filter" key=${key}>
      <${Field} label="Key"><input name="key" defaultValue=${key ?? ""} maxlength="4096" required
        spellcheck=${false} /><//><//>
    ${isNone ? html`<p class="calm">No message has this key, or the newest one has no value.</p>`
      : html`<${Trouble} error=${error} what="This key" />`}
    ${data
      && html`<p><a href=${to("topics", topic, "messages", data.partition, String(data.offset))}>${
        `${visible(data.partition)} at ${data.offset}`}</a>, <${Time} at=${data.append_time} since /></p>
        <pre tabindex="0" role="region"
          aria-label="Value">${visible(JSON.stringify(data.value, null, 2), false)}</pre>`}
    <${Sql} view=${viewOf("latest", topic)}
      query=${`SELECT * FROM ${viewOf("latest", topic)} WHERE mq_key = ${literal(key ?? "KEY")}`} /></section>`;
}

export function Schema({ info, query }) {
  const { schema } = info, versions = useLive(at`schemas/subjects/${schema.subject}/versions`, 15_000);
  const config = useLive(at`schemas/config/${schema.subject}` + asked({ defaultToGlobal: "true" }), 60_000);
  const wanted = query.version ?? schema.version, shown = useLive(wanted
    && at`schemas/subjects/${schema.subject}/versions/${wanted}`, 0);
  const text = shown.data?.schema ?? "", written = isJson(text) ? prettyJson(text) : text;
  return html`<${Facts}
    of=${[["Written in", schema.format], ["Subject", html`<code>${visible(schema.subject)}</code>`],
      schema.message && ["Message", html`<code>${visible(schema.message)}</code>`],
      ["Framing", schema.wire === "confluent" ? "Confluent's header" : "none"],
      ["What does not fit", MODES[schema.on_invalid]],
      schema.unwrap && ["Columns of", "the row behind a change (Debezium)"],
      ["Compatibility", config.data?.compatibilityLevel ?? config.data?.compatibility ?? NONE]]} />
    <${Waiting} of=${versions} what="The versions" />
    ${versions.data && html`<p class="ways" role="group" aria-label="Versions">${versions.data.map(one =>
      html`<button type="button" key=${one} class="small" aria-pressed=${String(one) === String(wanted)}
        onClick=${() => ask({ version: one }, true)}>${one}</button>`)}</p>`}
    <${Trouble} error=${shown.error} what="This version" />
    ${shown.data
      && html`<section class="card body"><div class="head"><h2>Version ${shown.data.version}</h2><small>id
        ${" "}${shown.data.id}</small><${Copy} text=${text} /></div>
        <pre tabindex="0" role="region" aria-label="Schema">${visible(written, false)}</pre>
        ${shown.data.references?.length > 0
          && html`<p>It refers to ${shown.data.references.map(one =>
            `${visible(one.subject)} ${one.version}`).join(", ")}.</p>`}</section>`}
    <p>Register the next one:</p>
    <${Command} text=${`deltamq schema register ${sh(schema.subject)} FILE`} />
    <${Newest} topic=${info.topic} query=${query} />`;
}

// Send a request to all pages of what it is about.
async function through(method, path, body) {
  let done = 0, failed = 0, why, cursor;
  do {
    const told = await send(method, path, { ...body, ...(cursor ? { cursor } : {}) });
    [done, failed, why, cursor] = [done + told.done, failed + told.failed_total, why ?? told.failed[0], told.cursor];
  } while (cursor);
  return { done, failed, why };
}

export function Quarantine({ info, query, may, reload }) {
  const code = query.code, topic = info.topic, about = JSON.stringify([topic, code]);
  const [page, setPage] = useState({ messages: [] }), [chosen, setChosen] = useState(new Set()),
    [version, setVersion] = useState(0), [shownKey, show] = useState(null);
  const load = async (cursor, before, signal) => {
    try {
      let data, messages = before;
      // a page may have nothing, and a place where to go on
      do {
        data = await get(at`v1/topics/${topic}/quarantine` + asked({ code, limit: PAGE, cursor }), { signal });
        messages = [...messages, ...data.messages];
        cursor = data.cursor;
      } while (cursor && messages.length === before.length);
      setPage({ messages, cursor, isRead: true });
    } catch (error) { if (error.name !== "AbortError") setPage({ messages: before, error }); }
  };
  useEffect(() => {
    const abort = new AbortController();
    setChosen(new Set());
    load(undefined, [], abort.signal);
    return () => abort.abort();
  }, [about, version]);
  const { messages, cursor, error } = page, picked = messages.filter(one => chosen.has(keyOf(one)));
  const isAll = picked.length === 0, path = at`v1/topics/${topic}/quarantine`;
  const which = isAll ? code ? { code } : {} : { offsets: byPartition(picked) };
  const told = ({ done, failed, why }, what) => `${plural(done, "message")} ${what}.${failed
    ? ` ${plural(failed, "message")} stay: ${why.code}.` : ""}`;
  const after = news => { setVersion(version + 1); reload(); return news; };
  const replay = async () => after(told(await through("POST", path + "/replay", which), "sent again"));
  const remove = async () => after(told(await through("DELETE", path,
    isAll && !code ? { all: true } : which), "deleted"));
  const toggle = one => { const next = new Set(chosen); if (!next.delete(keyOf(one))) next.add(keyOf(one));
    setChosen(next); };
  const columns = [
    (may("topic", "publish") || may("topic", "alter")) && { name: "pick",
      head: html`<span class="unseen">Choose</span>`,
      cell: one => html`<input type="checkbox" aria-label=${`Choose ${one.partition} ${one.offset}`}
        checked=${chosen.has(keyOf(one))} onChange=${() => toggle(one)} />` },
    { name: "time", head: "Stored", cell: one => html`<button type="button" class="link"
      aria-expanded=${shownKey === keyOf(one)}
      onClick=${() => show(shownKey === keyOf(one) ? null : keyOf(one))}><${Time}
      at=${one.append_time} /></button>` },
    { name: "code", head: "Why", cell: one => html`<button type="button" class="link"
      onClick=${() => ask({ code: one.invalid.code }, true)}><${State} kind="warn">${one.invalid.code}<//></button>` },
    { name: "field", head: "Field", cls: "name", cell: one => one.invalid.field ? visible(one.invalid.field) : NONE },
    { name: "reason", head: "Reason", cls: "clip", cell: one => visible(one.invalid.reason ?? "") },
    { name: "place", head: "At", cls: "name", cell: one => `${visible(one.partition)} ${one.offset}` },
    { name: "key", head: "Key", cls: "mono clip", cell: one => one.key ? visible(cut(one.key, 60)) : NONE },
    { name: "body", head: "Body", cls: "mono clip wide", cell: one => preview(one) },
  ].filter(Boolean);
  const shown = messages.find(one => keyOf(one) === shownKey), what = isAll ? code ? `all with ${code}` : "all"
    : "chosen", number = isAll ? messages.length : picked.length;
  // of what is on later pages, it is known only that there is more
  const many = (isAll && cursor ? "more than " : "") + plural(number, isAll ? "message" : "chosen message");
  return html`<p>Stored as they came; no group is handed them. When the schema or the producer is mended, send them
      again: the newest schema decodes them, and what fits is appended once.</p>
    ${code && html`<p>Only <b>${visible(code)}</b> <button type="button"
      onClick=${() => ask({ code: undefined }, true)}>All</button></p>`}
    ${messages.length > 0
      && html`<div class="buttons" role="group" aria-label="Change the quarantine"><b>${isAll ? what : many}:</b>
      ${may("topic", "publish")
        && html`<${Ask} label="Send again" isDanger=${false} title="Send messages again" run=${replay}
          yes=${`Send ${many} again`} says=${html`<p>Of ${many} (${what}), those that fit the newest schema
            of ${visible(topic)} now are appended again, and groups get them; the rest stays.</p>`} />`}
      ${may("topic", "alter")
        && html`<${Ask} label="Delete" title="Delete messages in quarantine" run=${remove}
          yes=${`Delete ${many}`} says=${html`<p>${many} (${what}): shown no more, and nothing sends them again.
            Their partition keeps them until its retention.</p>`} />`}</div>`}
    <${Trouble} error=${error} what="The quarantine" />
    <${Table} label="Messages in quarantine" columns=${columns} rows=${messages} keyOf=${keyOf}
      empty=${page.isRead ? html`<${Empty}>Nothing is in quarantine.<//>`
        : html`<p class="calm">${error ? "" : "Loading …"}</p>`}
      total=${messages.length ? `${plural(messages.length, "message")}${cursor ? ", and more" : ""}` : undefined}
      sql=${html`<${Sql} view=${viewOf("quarantine", topic)}
        query=${`SELECT * FROM ${viewOf("quarantine", topic)}`} />`} />
    ${cursor && html`<p><button type="button" onClick=${() => load(cursor, messages)}>More</button></p>`}
    ${shown
      && html`<section class="card" aria-label="A message in quarantine"><div
        class="head"><h2>${visible(shown.partition)} at ${shown.offset}</h2><button type="button"
        onClick=${() => show(null)}>Close</button></div><p>${visible(shown.invalid.field ?? "")}
        ${" "}${visible(shown.invalid.reason ?? "")}</p><${Headers} of=${shown.headers} /><${Body} key=${shownKey}
        message=${shown} as=${query.as} address=${as => to("topics", topic, "quarantine", { ...query, as })}
        /></section>`}`;
}
