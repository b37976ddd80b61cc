// Messages that wait for their time, the next due first; what is due and still there is late.
import { useEffect, useState } from "../vendor/hooks.js";
import { at, get, query as asked, send, useLive, useMay } from "../api.js";
import { ago, count, cut, duration, NONE, plural, preview, sh, visible } from "../format.js";
import { spanOf, sumOf, useHistory } from "../now.js";
import { Ask, Empty, Field, html, literal, Plot, Sql, State, Table, Time, Trouble, Waiting } from "../parts.js";
import { ask, to } from "../route.js";
import { Head } from "./head.js";

const PAGE = 200;

function Waits({ topic }) {
  const live = useLive(at`v1/topics/${topic}/delayed` + asked({ limit: PAGE }), 5000), may = useMay({ topic });
  const [more, setMore] = useState({ messages: [] });
  useEffect(() => setMore({ messages: [] }), [topic]);
  const cursor = more.cursor === undefined ? live.data?.cursor : more.cursor;
  const next = async () => { const page = await get(at`v1/topics/${topic}/delayed` + asked({ limit: PAGE, cursor }));
    setMore({ messages: [...more.messages, ...page.messages], cursor: page.cursor ?? null }); };
  if (!live.data) return html`<${Waiting} of=${live} what="What waits here" />`;
  const now = Date.parse(live.data.now_time),
    rows = [...live.data.messages,
      ...more.messages].map(one => ({ ...one, isLate: Date.parse(one.deliver_time) < now }));
  const late = rows.filter(one => one.isLate).length;
  const cancel = one => async () => { await send("DELETE", at`v1/topics/${topic}/delayed/${one.message_id}`);
    live.reload(); return `${visible(one.message_id)} is cancelled.`; };
  const columns = [
    { name: "due", head: "Due", cell: one => html`<${Time} at=${one.deliver_time} />` },
    { name: "in", head: "Due in", cell: one => one.isLate
      ? html`<${State} kind="bad">late by ${duration(now - Date.parse(one.deliver_time))}<//>`
      : html`<span class="calm">${ago(one.deliver_time, now)}</span>` },
    { name: "partition", head: "For partition", cls: "name", cell: one => visible(one.partition) },
    { name: "id", head: "Id", cls: "mono clip", cell: one => visible(cut(one.message_id ?? NONE, 60)) },
    { name: "sent", head: "Sent", cell: one => html`<${Time} at=${one.append_time} />` },
    { name: "key", head: "Key", cls: "mono clip", cell: one => one.key ? visible(cut(one.key, 60)) : NONE },
    { name: "body", head: "Body", cls: "mono clip", cell: one => preview(one) },
    may("topic", "publish")
      && { name: "act", head: html`<span class="unseen">Change</span>`, cell: one => one.message_id
        && html`<${Ask} cls="small" label="Cancel" title="Cancel a delayed message" yes="Cancel 1 message"
          run=${cancel(one)} says=${html`<p>1 message, due ${visible(one.deliver_time)}, is never delivered.</p>`}
          />` },
  ].filter(Boolean);
  return html`${late > 0
    && html`<p class="trouble" role="alert">${plural(late, "message")} on this page are late: the
      job <code>delay</code> brings them. <a href=${to("jobs")}>Is it running?</a></p>`}
    <${Trouble} error=${live.error} what="What waits here" />
    <${Table} label="Delayed messages" columns=${columns} rows=${rows} keyOf=${one => one.partition + one.offset}
      empty=${html`<${Empty} command=${`echo '{"body": "later", "delay_ms": 60000}' | deltamq produce ${sh(topic)}`}>No
        message of this topic waits for its time.<//>`} total=${`${count(rows.length)} shown`}
      sql=${html`<${Sql} view="mq_delayed" query=${"SELECT * FROM mq_delayed WHERE state <> 'cancelled' AND topic = "
        + `${literal(topic)} ORDER BY deliver_time`} />`} />
    ${cursor && html`<p><button type="button" onClick=${next}>More</button></p>`}`;
}

export function Delayed({ query }) {
  const names = useLive(at`v1/topics`, 60_000), listed = names.data?.topics ?? [], waiting = useHistory("delayed", {});
  const topic = query.topic ?? (listed.length === 1 ? listed[0] : "");
  return html`<${Head} title="Delayed" />
    ${waiting
      && html`<div class="plots"><${Plot} title="Messages of all topics that wait" series=${sumOf(waiting)}
        span=${spanOf()} /></div>`}
    <div class="filter"><${Field} label="Topic"><input list="topics" key=${topic} defaultValue=${topic}
      onChange=${event => ask({ topic: event.target.value }, true)} placeholder="a topic" spellcheck=${false} /><//>
      <datalist
        id="topics">${listed.slice(0, 1000).map(name => html`<option key=${name} value=${name} />`)}</datalist></div>
    <${Trouble} error=${names.error} what="The list of topics" />
    ${topic ? html`<${Waits} key=${topic} topic=${topic} />`
      : html`<${Empty}>Choose a topic to see what waits for its time there.<//>`}`;
}
