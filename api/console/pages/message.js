// One message: what it holds, and its whole life as one line of time.
import { useEffect, useState } from "../vendor/hooks.js";
import { at, get, getExactly, query as asked, useLive } from "../api.js";
import { BODY_SHOWN, bodyBytes, bodyText, bytes, duration, hex, isJson, NONE, prettyJson,
  visible } from "../format.js";
import { Ask, Copy, Facts, html, literal, Sql, State, Tabs, Time, Trouble, Waiting } from "../parts.js";
import { to } from "../route.js";
import { Head } from "./head.js";
import { sizeOf } from "./messages.js";
import { produce } from "./send.js";

const HEADERS_SHOWN = 200, VALUE_SHOWN = 4096;

export function Headers({ of }) {
  const [isAll, setAll] = useState(false), all = Object.entries(of ?? {});
  if (!all.length) return html`<p class="calm">No headers.</p>`;
  return html`<div class="rows" tabindex="0" role="region" aria-label="Headers"><table><caption
    class="unseen">Headers</caption><thead><tr><th scope="col">Header</th><th
    scope="col">Value</th></tr></thead><tbody>${
    (isAll ? all
      : all.slice(0, HEADERS_SHOWN)).map(([name, value]) =>
      html`<tr key=${name}><td class="name">${visible(name.slice(0, 256))}</td><td class="mono wrap">${value === null
        ? NONE : visible(isAll ? value : value.slice(0, VALUE_SHOWN))}${!isAll && value?.length > VALUE_SHOWN ? "…"
        : ""}</td></tr>`)}</tbody></table></div>
    ${!isAll && (all.length > HEADERS_SHOWN || all.some(([, value]) => value?.length > VALUE_SHOWN))
      && html`<button type="button" onClick=${() => setAll(true)}>Show all ${all.length} headers whole</button>`}`;
}

export function Body({ message, as, address }) {
  const [isAll, setAll] = useState(false);
  const size = sizeOf(message), isText = typeof message.body_base64 !== "string";
  const part = isAll || size <= BODY_SHOWN ? message : isText ? { body: message.body.slice(0, BODY_SHOWN) }
    : { body_base64: message.body_base64.slice(0, BODY_SHOWN / 3 * 4 & ~3) };
  const canJson = isText && isJson(message.body), how = as ?? (canJson ? "json" : isText ? "text" : "hex");
  const shown = how === "hex" ? hex(bodyBytes(part))
    : visible(how === "json" && canJson ? prettyJson(bodyText(part)) : bodyText(part), false);
  const left = size - (isAll ? size : Math.min(size, BODY_SHOWN));
  return html`<section class="card body"><div class="head"><h2>Body</h2><small>${bytes(size)}</small>
      <${Tabs} label="Body as"
        of=${[["json", "JSON", address("json")], ["text", "Text", address("text")], ["hex", "Hex", address("hex")]]}
        now=${how} /><${Copy} text=${isText ? message.body : message.body_base64}
        what=${isText ? "Copy" : "Copy as base64"} /></div>
    ${how === "json" && !canJson && html`<p class="calm">It is not JSON: shown as text.</p>`}
    <pre tabindex="0" role="region" aria-label="Body">${shown || " "}</pre>
    ${left > 0
      && html`<p><button type="button" onClick=${() => setAll(true)}>Show the
        other ${bytes(left)}</button></p>`}</section>`;
}

// The fields of a message of a topic with a schema.
function Fields({ topic, partition, number }) {
  const [found, setFound] = useState({});
  useEffect(() => {
    const abort = new AbortController();
    getExactly(at`v1/topics/${topic}/partitions/${partition}/messages`
      + asked({ offset: number, max_messages: 1, max_bytes: 1, typed: true }), { signal: abort.signal })
      .then(data => setFound({ one: data.messages[0] }), error => { if (!abort.signal.aborted) setFound({ error }); });
    return () => abort.abort();
  }, [topic, partition, number]);
  const { one, error } = found;
  return html`<section class="card"><h2>Fields</h2><${Trouble} error=${error} what="Its fields" />
    ${one && (one.value === undefined ? html`<p class="calm">It has no value.</p>`
      : html`<pre tabindex="0" role="region"
        aria-label="Fields">${visible(JSON.stringify(one.value, null, 2), false)}</pre>`)}
    ${one?.rescued !== undefined
      && html`<p>What does not fit: <code>${visible(JSON.stringify(one.rescued))}</code></p>`}</section>`;
}

const WORDS = { waiting: "waits to be delivered", held: "is held", overdue: "is overdue: it was not answered in time",
  retried: "waits to be delivered again", failed: "failed", done: "done", dead: "is dead" };
const KINDS = { held: "accent", overdue: "bad", failed: "warn", retried: "warn", done: "good", dead: "bad" };
// What happened to a message, in the order in which it did.
function life(message, deliveries) {
  const events = [];
  if (message.born_time) events.push({ time: message.born_time, what: "born, by the clock of its producer" });
  if (message.origin?.topic) events.push({ time: message.born_time,
    what: html`came
      from <a
        href=${to("topics", message.origin.topic, "messages", message.origin.partition,
          String(message.origin.offset))}>${visible(message.origin.partition)} at ${message.origin.offset}</a>` });
  events.push({ time: message.append_time, what: html`stored in ${visible(message.partition)} at ${message.offset}`,
    kind: "accent" });
  if (message.deliver_time) events.push({ time: message.deliver_time, what: "its deliver time" });
  deliveries.forEach((one, i) => {
    // of an end whose time is not kept, it is known that it came before what the group did next
    const next = deliveries.slice(i).find(later => later.group === one.group && later.time);
    events.push({ time: one.time, before: next?.time, kind: KINDS[one.state], what: html`<${Delivery} one=${one} />` });
  });
  const when = one => Date.parse(one.time ?? one.before ?? "") || Infinity;
  return events.map((one, i) => ({ ...one, i })).sort((a, b) => when(a) - when(b) || a.i - b.i);
}

function Delivery({ one }) {
  const attempt = one.attempt > 0 ? `, attempt ${one.attempt}` : "";
  const when = { held: "until", failed: "comes again" }[one.state] ?? "due";
  const until = one.due_time && html`, ${when} <${Time} at=${one.due_time} />`;
  const letter = html`<a href=${to("groups", one.group, "dead-letters")}>${visible(one.moved_to)}</a>`;
  return html`<a href=${to("groups", one.group)}>${visible(one.group)}</a>${attempt}: <${State}
    kind=${KINDS[one.state] ?? "soft"}>${WORDS[one.state] ?? one.state}<//>${
    one.client_id && html` by <code>${visible(one.client_id)}</code>`}${until}${
    one.reason && html`: ${visible(one.reason)}`}${
    one.moved_to && html`, ${one.state === "dead" ? letter : html`copy at <code>${visible(one.moved_to)}</code>`}`}`;
}

function Life({ message, deliveries }) {
  const events = life(message, deliveries);
  let before = null;
  return html`<ol class="life">${events.map(one => {
    const now = Date.parse(one.time ?? ""), gap = before !== null && now - before > 0 ? "+" + duration(now - before)
      : "";
    before = Number.isNaN(now) ? before : now;
    return html`<li key=${one.i} class=${one.kind ?? "soft"}><span class="when"><${Time} at=${one.time} millis
      /><small>${gap}</small></span><span>${one.what}</span></li>`;
  })}</ol>`;
}

export function Message({ topic, partition, number, query, may, isTyped }) {
  const [found, setFound] = useState({});
  useEffect(() => {
    const abort = new AbortController();
    get(at`v1/topics/${topic}/partitions/${partition}/messages`
      + asked({ offset: number, max_messages: 1, max_bytes: 1 }), { signal: abort.signal })
      .then(data => setFound({ data }), error => { if (!abort.signal.aborted) setFound({ error }); });
    return () => abort.abort();
  }, [topic, partition, number]);
  const lives = useLive(at`v1/topics/${topic}/partitions/${partition}/messages/${number}/deliveries`, 5000);
  const got = found.data?.messages[0], message = got && String(got.offset) === number ? { ...got, partition } : null;
  const above = [["Topics", to("topics")], [topic, to("topics", topic)],
    [partition, to("topics", topic, "messages", { partition, offset: number })]];
  const address = as => to("topics", topic, "messages", partition, number, { as });
  const beside = by => to("topics", topic, "messages", partition, String(BigInt(number) + by), { as: query.as });
  const again = async () => {
    const { body, body_base64, key, tag } = message,
      headers = Object.fromEntries(Object.entries(message.headers ?? {}).filter(([name, value]) => value !== null
        && !name.startsWith("mq-")));
    const sent = await produce(topic,
      { ...(body_base64 === undefined || body_base64 === null ? { body } : { body_base64 }), ...(key ? { key } : {}),
        ...(tag ? { tag } : {}), ...(Object.keys(headers).length ? { headers } : {}) });
    return `Sent again: ${sent.partition} at ${sent.base_offset}.`;
  };
  return html`<${Head} title=${`Message ${number}`} above=${above}>
      ${message && may("topic", "publish")
        && html`<${Ask} label="Send again" isDanger=${false} title="Send again" yes="Send 1 message" run=${again}
          says=${html`<p>1 message with the same key, tag, headers and body goes to ${visible(topic)}, as a new one:
            every group that consumes the topic gets it.</p>`} />`}
      ${number !== "0" && html`<a class="button" href=${beside(-1n)}>Earlier</a>`}<a class="button"
        href=${beside(1n)}>Later</a><//>
    ${!found.error && !found.data && html`<p class="calm">Loading …</p>`}
    <${Trouble} error=${found.error} what="This message" />
    ${found.data && !message
      && html`<p class="calm">No message has offset ${number}: the partition
        has ${found.data.min_offset} to ${found.data.max_offset - 1}${got
          ? html`, and the next one
            is <a href=${to("topics", topic, "messages", partition, String(got.offset))}>${got.offset}</a>` : ""}.</p>`}
    ${message
      && html`<${Facts}
        of=${[["Key", message.key === undefined || message.key === null ? NONE
          : html`<code>${visible(message.key)}</code>`], ["Tag", message.tag ? visible(message.tag) : NONE],
          ["Id", message.message_id && html`<code>${visible(message.message_id)}</code>`],
        ["Stored", html`<${Time} at=${message.append_time} millis />`],
        ["Producer", message.producer_id
          && html`<code>${visible(message.producer_id)} #${message.producer_seq}</code>`],
        message.reconsume_times > 0 && ["Delivered again", `${message.reconsume_times} times`]]} />
      <div class="columns"><section class="card"><h2>Its life</h2><${Waiting} of=${lives} what="What groups did with it"
        />
        <${Life} message=${message} deliveries=${lives.data?.deliveries ?? []} />
        ${lives.data && !lives.data.deliveries.length && html`<p class="calm">No group has begun here.</p>`}
        <${Sql} view="mq_in_flight"
          query=${`SELECT * FROM mq_in_flight WHERE topic = ${literal(topic)} AND partition = ${literal(partition)} AND
            offset = ${number}`} /></section>
      <section class="card"><h2>Headers</h2><${Headers} of=${message.headers} /></section></div>
      ${isTyped && html`<${Fields} topic=${topic} partition=${partition} number=${number} />`}
      <${Body} message=${message} as=${query.as} address=${address} />`}`;
}
