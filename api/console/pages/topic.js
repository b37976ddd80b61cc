// One topic: its partitions, messages, groups, settings and exports, each at an address of its own.
import { useEffect, useRef, useState } from "../vendor/hooks.js";
import { at, get, query as asked, send, useLive, useMay } from "../api.js";
import { bytes, count, duration, plural, rate, sh, visible } from "../format.js";
import { spanOf, topOf, useGroupsNow, useHistory } from "../now.js";
import { Ask, Command, Empty, Facts, Field, Form, html, literal, Nothing, Plot, Rest, Sql, State, Sure, Table, Tabs,
  Time, Trouble, Waiting } from "../parts.js";
import { go, to } from "../route.js";
import { Head } from "./head.js";
import { Message } from "./message.js";
import { Messages } from "./messages.js";
import { Send } from "./send.js";
import { topicNow, TopicState } from "./topics.js";
import { Quarantine, Schema } from "./typed.js";

// What clients name: the partitions of a topic, or its logical queues.
export const placesOf = info => (info.logical_queues ?? info.partitions).map(one => ({ broker: null, ...one }));

const RATE_MS = 10_000, MIB = 1_048_576;
// Messages a second of each partition, by what was appended in the last ten seconds.
function useRates(places) {
  const now = useRef(places), [rates, setRates] = useState({});
  now.current = places;
  useEffect(() => {
    let before = now.current;
    const timer = setInterval(() => {
      const ends = new Map(before.map(one => [one.partition, one.max_offset]));
      const grown = one => Math.max(0, one.max_offset - (ends.get(one.partition) ?? one.max_offset));
      setRates(Object.fromEntries(now.current.map(one => [one.partition, grown(one) * 1000 / RATE_MS])));
      before = now.current;
    }, RATE_MS);
    return () => clearInterval(timer);
  }, []);
  return rates;
}

function Partitions({ info, may, reload }) {
  const places = placesOf(info), isStatic = info.logical_queues !== null, rates = useRates(places);
  const close = (one, writable) => async () => {
    await send("PUT", at`v1/topics/${info.topic}/partitions/${one.partition}`,
      { readable: one.readable, writable, ...(writable ? {} : { reason: "closed in the console" }) });
    reload();
    return `${one.partition} ${writable ? "takes messages again" : "is closed for writes"}.`;
  };
  const number = (name, head, written = count) =>
    ({ name, head, num: true, cell: one => written(one[name]), sort: one => one[name] });
  const columns = [
    { name: "partition", head: isStatic ? "Queue" : "Partition", cls: "name",
      cell: one =>
      html`<a href=${to("topics", info.topic, "messages", { partition: one.partition })}>${visible(one.partition)}</a>`,
      sort: one => one.queue ?? one.partition },
    { name: "state", head: "State", cell: one => one.state !== "serving" ? html`<${State} kind="bad">${one.state}<//>`
      : one.readable === false || one.writable === false
      ? html`<${State} kind="warn">${one.readable ? "not writable" : one.writable ? "not readable"
        : "closed"}${one.reason ? ": " + visible(one.reason) : ""}<//>` : html`<${State} kind="good">serving<//>`,
        sort: one => one.state },
    number("min_offset", "First offset"), number("max_offset", "Next offset"), number("messages", "Messages"),
    { name: "rate", head: "Sent /s", num: true, cell: one => rate(rates[one.partition]),
      sort: one => rates[one.partition] },
    ...isStatic
      ? [number("holes", "Holes"),
        { name: "segments", head: "Segments", num: true, cell: one => count(one.segments?.length) }] : [
      number("bytes", "Stored", bytes), number("files", "Files"), number("version", "Version"),
      { name: "last", head: "Last append", cell: one => html`<${Time} at=${one.last_append_time} />`,
        sort: one => one.last_append_time },
      { name: "location", head: "Delta table", cls: "name",
        cell: one => html`<code title=${visible(one.location)}>${visible(one.location)}</code>` },
      may("topic", "alter")
        && { name: "act", head: html`<span class="unseen">Change</span>`,
          cell: one =>
          html`<${Ask} cls="small" isDanger=${one.writable} label=${one.writable ? "Close" : "Open"}
            title=${one.writable ? "Close for writes" : "Open for writes"} run=${close(one, !one.writable)}
        says=${one.writable
          ? html`<p>${visible(one.partition)} takes no messages until it is opened again.
            Its ${plural(one.messages ?? 0, "message")} stay and can be read.</p>`
            : html`<p>${visible(one.partition)} takes messages again.</p>`} />` },
    ].filter(Boolean),
  ];
  return html`<${Table} label="Partitions" columns=${columns} rows=${places} keyOf=${one => one.partition}
    first="partition"
    sql=${html`<${Sql} view=${isStatic ? "mq_logical_queues" : "mq_partitions"}
      query=${`SELECT * FROM ${isStatic ? "mq_logical_queues" : "mq_partitions"} WHERE topic = ${literal(info.topic)}`}
      />`} />`;
}

function Groups({ info }) {
  const now = useGroupsNow(info.topic), lag = useHistory("lag", { topic: info.topic });
  const rows = now.groups.filter(one => !one.info || one.topics.includes(info.topic)).map(one => {
    if (!one.info) return one;
    const topic = one.info.topics.find(its => its.topic === info.topic);
    return { ...one, lag: topic.lag, inFlight: topic.partitions.reduce((all, part) => all + part.in_flight, 0) };
  });
  const columns = [
    { name: "group", head: "Group", cls: "name",
      cell: one => html`<a href=${to("groups", one.group)}>${visible(one.group)}</a>`, sort: one => one.group },
    { name: "strategy", head: "Kind", cell: one => one.strategy ?? "" },
    { name: "lag", head: "Lag", num: true, cell: one => count(one.lag), sort: one => one.lag },
    { name: "in_flight", head: "In flight", num: true, cell: one => count(one.inFlight), sort: one => one.inFlight },
    { name: "clients", head: "Clients", num: true, cell: one => count(one.clients) },
  ];
  return html`${lag
    && html`<${Plot} title="Lag by group"
      series=${topOf(lag.map(one => ({ ...one, labels: { group: one.labels.group } })))} span=${spanOf()} />`}
    <${Table} label="Groups of the topic" columns=${columns} rows=${rows} keyOf=${one => one.group} first="-lag"
      empty=${now.isKnown
        ? html`<${Empty} command=${`deltamq consume ${sh(info.topic)} --group billing`}>No group consumes this
          topic.<//>`
        : html`<p class="calm">Asking the groups …</p>`}
      sql=${html`<${Sql} view="mq_lag"
        query=${`SELECT * FROM mq_lag WHERE topic = ${literal(info.topic)} ORDER BY lag DESC`} />`} />`;
}

// What retention takes of each partition, and who holds it back.
function Retention({ topic }) {
  const live = useLive(at`v1/topics/${topic}/retention`, 15_000), next = one => one.next;
  const columns = [
    { name: "partition", head: "Partition", cls: "name", cell: one => visible(one.partition),
      sort: one => one.partition },
    { name: "bytes", head: "Stored", num: true, cell: one => bytes(one.bytes), sort: one => one.bytes },
    { name: "due", head: "Go now", hint: "messages that go when the job retain next runs", num: true,
      cell: one => count(one.due_messages), sort: one => one.due_messages },
    { name: "next", head: "Then", num: true, cell: one => next(one) ? plural(next(one).messages, "message") : "none" },
    { name: "when", head: "At the earliest", cell: one => next(one) && html`<${Time} at=${next(one).time} />`,
      sort: one => next(one)?.time ?? "" },
    { name: "why", head: "By", cell: one => next(one)?.why ?? "" },
    { name: "held", head: "Held back by", cls: "wrap", cell: one => one.held_by.map(visible).join(", ") }];
  return html`<h2>What goes next</h2><${Waiting} of=${live} what="Retention" />${live.data
    && html`<${Table} id="retention" label="What goes next" columns=${columns} rows=${live.data.partitions}
      keyOf=${one => one.partition} first="-bytes" empty=${html`<${Empty}>No partition can be looked at.<//>`}
      sql=${html`<${Rest} call="GET /v1/topics/{topic}/retention" command=${`deltamq topic retention ${sh(topic)}`}
        />`} />`}`;
}

// Whether a change lets messages go: they are counted before it is done.
const keepsLess = (wanted, info) => wanted.retention_ms < info.retention_ms || (wanted.retention_bytes >= 0
  && (info.retention_bytes < 0 || wanted.retention_bytes < info.retention_bytes));

function Settings({ info, may, reload }) {
  const [less, setLess] = useState(null);
  const put = async wanted => { await send("PUT", at`v1/topics/${info.topic}`, wanted); reload();
    return "The topic is changed."; };
  const change = async given => {
    const wanted = { order_strategy: given.order_strategy, retention_ms: Math.round(given.days * 86_400_000),
      retention_bytes: given.mib === "" ? -1 : Math.round(given.mib * MIB), message_type: given.message_type,
      ...(given.flush ? { flush: given.flush } : {}),
      ...(given.window === "" ? {} : { commit_window_ms: Number(given.window) }) };
    if (info.static) Object.assign(wanted, { static: true, total_queues: Number(given.partitions) });
    else if (Number(given.partitions) !== info.partitions.length) wanted.partitions = Number(given.partitions);
    if (!keepsLess(wanted, info)) return put(wanted);
    const { retention_ms, retention_bytes } = wanted;
    const { partitions } = await get(at`v1/topics/${info.topic}/retention` + asked({ retention_ms, retention_bytes }));
    setLess({ wanted, due: partitions.reduce((all, one) => all + one.due_messages, 0),
      held: [...new Set(partitions.flatMap(one => one.held_by))] });
    return undefined;
  };
  const remove = async () => { await send("DELETE", at`v1/topics/${info.topic}`); go("topics");
    return `Topic ${info.topic} is deleted.`; };
  const messages = placesOf(info).reduce((all, one) => all + (one.messages ?? 0), 0), now = info.total_queues
    ?? info.partitions.length;
  return html`<${Facts}
    of=${[["Id", html`<code>${info.id}</code>`], ["Made", html`<${Time} at=${info.created_time} />`],
      ["Route epoch", count(info.routes_epoch)],
      ["Keys by", info.partitioner === "kafka" ? "Kafka's hash" : "Spark's hash"],
      ["Kind", info.static ? `static${info.scope === "global" ? ", global" : ""}` : "plain"],
      ["Kept for", duration(info.retention_ms)],
      ["Kept at most", info.retention_bytes < 0 ? "no limit" : `${bytes(info.retention_bytes)} a partition`],
      ["Order", info.order_strategy], ["Message type", visible(info.message_type)],
      ["Flush", info.flush ?? "as the service"],
      ["Commit window", info.commit_window_ms === null ? "as the service" : duration(info.commit_window_ms)]]} />
    ${may("topic", "alter")
      && html`<${Form} label="Settings of the topic" yes="Change" onSend=${change} cls="form card"
        key=${JSON.stringify([info.retention_ms, info.retention_bytes, info.order_strategy, info.commit_window_ms,
          now])}>
      <h2>Change</h2>
      <${Field} label=${info.static ? "Logical queues" : "Partitions"} hint="Can only grow."><input name="partitions"
        type="number" min=${now} max="1024" defaultValue=${now} required /><//>
      <${Field} label="Keep messages for, in days" hint=${`${info.retention_ms} ms now`}><input name="days"
        type="number" min="0.00002" step="any" defaultValue=${info.retention_ms / 86_400_000} required /><//>
      <${Field} label="Keep at most, in MiB of each partition" hint="Without a number as much as comes in that
        time."><input name="mib" type="number" min="0" step="any"
        defaultValue=${info.retention_bytes < 0 ? "" : info.retention_bytes / MIB} /><//>
      <${Field} label="Order when a partition is closed"><select name="order_strategy"><option
        selected=${info.order_strategy === "best_tried"}>best_tried</option><option
        selected=${info.order_strategy === "strict"}>strict</option></select><//>
      <${Field} label="Message type"><input name="message_type" maxlength="64" defaultValue=${info.message_type}
        required /><//>
      <${Field} label="Flush"><select name="flush"><option value="" selected=${!info.flush}>as the
        service</option><option selected=${info.flush === "sync"}>sync</option><option
          selected=${info.flush === "async"}>async</option></select><//>
      <${Field} label="Commit window, in ms" hint="How long messages wait for others: fewer commits, later
        answers."><input name="window" type="number" min="0" max="60000" placeholder="as the service"
        defaultValue=${info.commit_window_ms ?? ""} required=${info.commit_window_ms !== null} /><//>
    <//>`}
    ${less
      && html`<${Sure} title="Keep less" yes=${`Change, ${plural(less.due, "message")} go`}
        run=${() => put(less.wanted)} onClose=${() => setLess(null)}
        says=${html`<p>${plural(less.due, "message")} of ${visible(info.topic)} are older or more than that: they are
          deleted when the job retain next runs, for everybody, and cannot be brought back.</p>${less.held.length > 0
          && html`<p>More follow when they are done by ${less.held.map(visible).join(", ")}.</p>`}`} />`}
    <${Retention} topic=${info.topic} />
    ${may("topic", "delete")
      && html`<section class="card"><h2>Delete</h2><p>Routes and data go; groups lose their progress in it.</p>
      <${Ask} label="Delete the topic" title="Delete the topic" typed=${info.topic} run=${remove}
        says=${html`<p>${plural(messages, "message")} in ${plural(now, info.static ? "queue" : "partition")} are
          deleted, for everybody, and cannot be brought back.</p>`} /></section>`}`;
}

function Exports({ info }) {
  const live = useLive(at`v1/exports` + asked({ topic: info.topic }), 10_000), rows = live.data?.exports ?? [];
  const read = `spark.read.format("mq").option("topic", ${JSON.stringify(info.topic)}).load()`;
  const number = (name, head, hint) => ({ name, head, hint, num: true, cell: one => count(one[name]),
    sort: one => one[name] });
  const columns = [{ name: "name", head: "Export", cls: "name", cell: one => visible(one.name), sort: one => one.name },
    { name: "to", head: "Table", cls: "name", cell: one => html`<code>${visible(one.to)}</code>` },
    { name: "schema", head: "Fields", cls: "wrap", cell: one => html`<code>${visible(one.schema)}</code>` },
    number("rows", "Rows"), number("behind", "Behind", "messages that are not exported yet"),
    number("quarantined", "In quarantine", "messages that do not fit the fields"),
    { name: "last", head: "Last run", cell: one => html`<${Time} at=${one.last_run_time} since />` },
    { name: "failure", head: "Failure", cls: "wrap", cell: one => one.failure
      && html`<${State} kind="bad">${visible(one.failure.detail)}<//>` }];
  return html`<p>Each partition is a Delta table: Spark and whatever else reads Delta has its messages without an
    export. The job <code>export</code> makes one typed table of a topic.</p>
    <${Waiting} of=${live} what="The list of exports" />
    ${live.data && html`<${Table} label="Exports" columns=${columns} rows=${rows} keyOf=${one => one.name} first="name"
      empty=${html`<${Empty}
        command=${`deltamq jobs export add --topic ${sh(info.topic)} --to lake.exported --schema "amount DOUBLE"`}>No
          export of this topic is defined.<//>`}
      sql=${html`<${Rest} call="GET /v1/exports" command=${`deltamq topic exports ${sh(info.topic)}`} />`} />`}
    ${rows.map(one => one.quarantined > 0 && html`<p key=${one.name}>What does not fit is
      in <code>${visible(one.quarantine)}</code>, with the reason. When the fields are
      mended: <${Command} text=${`deltamq jobs export replay-quarantine ${sh(one.name)}`} /></p>`)}
    <h2>Read it in Spark</h2><${Command} text=${read} />`;
}

const TABS = new Set(["", "messages", "send", "groups", "settings", "schema", "quarantine", "exports"]);

export function Topic({ path, query }) {
  const [, topic, tab = "", partition, offset] = path;
  const live = useLive(at`v1/topics/${topic}`, 5000), may = useMay({ topic });
  const sent = useHistory("sent", { topic }), info = live.data, now = info && topicNow(topic, live);
  const above = [["Topics", to("topics")]];
  if (tab === "messages"
    && /^\d{1,19}$/.test(offset)) return html`<${Message} topic=${topic} partition=${partition} number=${offset}
      query=${query} may=${may} isTyped=${Boolean(info?.schema)} />`;
  const tabs = [["", "Partitions", to("topics", topic), now && count(now.partitions)],
    ["messages", "Messages", to("topics", topic, "messages")], may("topic", "publish")
    && ["send", "Send", to("topics", topic, "send")],
    ["groups", "Groups", to("topics", topic, "groups")], ["settings", "Settings", to("topics", topic, "settings")],
    ...info?.schema ? [["schema", "Schema", to("topics", topic, "schema")],
      ["quarantine", "Quarantine", to("topics", topic, "quarantine")]] : [],
    ["exports", "Exports", to("topics", topic, "exports")]];
  return html`<${Head} title=${topic} above=${above}>${now && html`<${TopicState} of=${now} />`}<//>
    <${Tabs} label="Parts of the topic" of=${tabs} now=${tab} />
    <${Waiting} of=${live} what="This topic" />
    ${live.error && live.data && html`<${Trouble} error=${live.error} what="This topic" />`}
    ${info && tab === ""
      && html`<${Facts}
        of=${[["Messages", count(now.messages)], ["Stored", bytes(now.bytes)], ["Files", count(now.files)],
          ["Kept for", duration(info.retention_ms)], ["Last append", html`<${Time} at=${now.last} />`],
          ["Delayed", html`<a href=${to("delayed", { topic })}>show</a>`]]} />
      ${sent
        && html`<div class="plots"><${Plot} title="Messages sent a second" series=${topOf(sent)} written=${rate}
          span=${spanOf()} /></div>`}<${Partitions} info=${info} may=${may} reload=${live.reload} />`}
    ${info && tab === "messages" && (partition === undefined ? html`<${Messages} info=${info} query=${query} />`
      : html`<${Nothing} />`)}
    ${info && tab === "send" && may.isKnown && (may("topic", "publish") ? html`<${Send} info=${info} />`
      : html`<p class="calm">You may not send to this topic.</p>`)}
    ${info && tab === "groups" && html`<${Groups} info=${info} />`}
    ${info && tab === "settings" && html`<${Settings} info=${info} may=${may} reload=${live.reload} />`}
    ${info?.schema && tab === "schema" && html`<${Schema} info=${info} query=${query} />`}
    ${info?.schema && tab === "quarantine"
      && html`<${Quarantine} info=${info} query=${query} may=${may} reload=${live.reload} />`}
    ${info && tab === "exports" && html`<${Exports} info=${info} />`}
    ${info && !TABS.has(tab) && html`<${Nothing} />`}`;
}
