// All topics: found by name, with what their partitions hold.
import { useEffect, useMemo } from "../vendor/hooks.js";
import { at, get, send, useLive, useMay } from "../api.js";
import { bytes, count, plural, rate, visible } from "../format.js";
import { useNewest } from "../now.js";
import { Dialog, Empty, Field, Form, html, Sql, State, Table, Time, useDetails, Waiting } from "../parts.js";
import { ask, go, to } from "../route.js";
import { Head } from "./head.js";

const SORTED_MAX = 300;
const sum = (of, key) => of.reduce((all, one) => one[key] === null ? all : all + one[key], 0);

export function topicNow(topic, { data, error }) {
  if (!data) return { topic, error };
  const parts = data.partitions, stopped = parts.filter(one => one.state !== "serving");
  return { topic, error, info: data, partitions: data.total_queues ?? parts.length, messages: sum(parts, "messages"),
    bytes: sum(parts, "bytes"), files: sum(parts, "files"),
    last: parts.map(one => one.last_append_time).filter(Boolean).sort().at(-1), stopped,
      closed: parts.filter(one => !one.readable || !one.writable) };
}
export const TopicState = ({ of }) => of.error ? html`<${State} kind="bad">${visible(of.error.message)}<//>`
  : of.stopped?.length
    ? html`<${State} kind="bad">${plural(of.stopped.length, "partition")} stopped: ${of.stopped[0].state}<//>`
  : of.closed?.length ? html`<${State} kind="warn">${plural(of.closed.length, "partition")} closed<//>` : null;

function NewTopic({ onClose }) {
  const create = async ({ topic, partitions, days, order_strategy }) => {
    await send("PUT", at`v1/topics/${topic}`,
      { partitions: Number(partitions), order_strategy,
        ...(days ? { retention_ms: Math.round(days * 86_400_000) } : {}) });
    onClose();
    go("topics", topic);
    return `Topic ${topic} is there.`;
  };
  return html`<${Dialog} title="New topic" onClose=${onClose}><${Form} label="New topic" yes="Create" onSend=${create}>
    <${Field} label="Name"><input name="topic" required maxlength="127" autocomplete="off" spellcheck=${false} autofocus
      /><//>
    <${Field} label="Partitions" hint="Their number can grow later, never shrink."><input name="partitions"
      type="number" min="1" max="1024" defaultValue="4" required /><//>
    <${Field} label="Keep messages for, in days" hint="Empty: as the service does by default."><input name="days"
      type="number" min="0.001" step="any" /><//>
    <${Field} label="Order when a partition is closed"><select name="order_strategy"><option
      value="best_tried">best_tried: send elsewhere</option><option value="strict">strict: wait</option></select><//>
  <//><//>`;
}

export function Topics({ query, cluster }) {
  const names = useLive(at`v1/topics`, 30_000), may = useMay({ topic: query.q || undefined });
  const details = useDetails(topic => at`v1/topics/${topic}`, get);
  const wanted = (query.q ?? "").toLowerCase(), listed = names.data?.topics;
  const shown = useMemo(() => (listed ?? []).filter(name => name.toLowerCase().includes(wanted)), [listed, wanted]);
  const rows = shown.map(name => topicNow(name, details.of(name)));
  const isByName = !query.sort || /^-?(topic|sent)$/.test(query.sort), sent = useNewest("sent", "topic");
  useEffect(() => { if (!isByName && shown.length <= SORTED_MAX) details.want(shown); }, [isByName, shown]);
  const column = (name, head, written) => ({ name, head, num: true, cell: one => one.info ? written(one[name]) : "",
    sort: one => one[name] });
  const columns = [
    { name: "topic", head: "Topic", cls: "name",
      cell: one => html`<a href=${to("topics", one.topic)}>${visible(one.topic)}</a>`, sort: one => one.topic },
    sent && { name: "sent", head: "Sent /s", num: true, cell: one => rate(sent[one.topic] ?? 0),
      sort: one => sent[one.topic] ?? 0 },
    column("partitions", "Partitions", count), column("messages", "Messages", count), column("bytes", "Stored", bytes),
      column("files", "Files", count),
    { ...column("last", "Last append", at => html`<${Time} at=${at} />`), num: false },
    { name: "state", head: "State", cell: one => html`<${TopicState} of=${one} />` },
  ].filter(Boolean);
  const mayMake = may("cluster", "admin") || may("topic", "create") || cluster.data?.auth === false;
  return html`<${Head} title="Topics">${mayMake
    ? html`<button type="button" class="solid" onClick=${() => ask({ new: 1 })}>New topic</button>` : null}<//>
    ${mayMake && query.new !== undefined && html`<${NewTopic} onClose=${() => ask({ new: undefined })} />`}
    <div class="filter"><${Field} label="Find"><input type="search" value=${query.q ?? ""}
      onInput=${event => ask({ q: event.target.value })} placeholder="part of a name" spellcheck=${false} /><//>
      <p class="count" role="status">${listed && (wanted ? `${count(shown.length)} of ${plural(listed.length, "topic")}`
        : plural(listed.length, "topic"))}</p></div>
    <${Waiting} of=${names} what="The list of topics" />
    ${!isByName && shown.length > SORTED_MAX
      && html`<p class="calm">Sorted are the topics that were seen so far. Find fewer than ${SORTED_MAX}, and all of
        them are.</p>`}
    ${listed
      && html`<${Table} label="Topics" columns=${columns} rows=${rows} keyOf=${one => one.topic} first="topic"
        onSeen=${isByName || shown.length > SORTED_MAX ? seen => details.want(seen.map(one => one.topic)) : undefined}
      empty=${wanted ? html`<${Empty}>No topic has this in its name.<//>`
        : html`<${Empty} command=${`echo '{"body": "hello"}' | deltamq produce orders`}>No topics yet. Produce to one,
          and it appears here.<//>`}
      sql=${html`<${Sql} view="mq_partitions"
        query=${"SELECT topic, sum(end_offset - min_offset) FROM mq_partitions WHERE space = 'topics' GROUP BY topic"}
        />`} />`}`;
}
