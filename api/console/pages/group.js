// One group: how far behind it is, who holds what, what comes again, what is dead; and what can be done about it.
import { useState } from "../vendor/hooks.js";
import { at, query as asked, send, useLive, useMay } from "../api.js";
import { count, duration, NONE, plural, rate, sh, share, visible } from "../format.js";
import { groupNow, spanOf, topOf, useHistory } from "../now.js";
import { Ask, Empty, Facts, Field, Form, html, literal, Nothing, Plot, Ranges, Rest, Sql, State, Table, Tabs, Time,
  Trouble, Waiting } from "../parts.js";
import { go, to } from "../route.js";
import { GroupState } from "./groups.js";
import { Head } from "./head.js";
import { Letters } from "./letters.js";
import { asField, utc } from "./messages.js";

const policy = (rule, attempts) => Array.isArray(rule)
  ? rule.slice(0, Math.max(1, attempts - 1)).map(duration).join(", ") : rule.fixed_ms !== undefined
  ? `always ${duration(rule.fixed_ms)}`
  : `${duration(rule.exponential.initial_ms)}, then ${rule.exponential.multiplier} times as long, up
    to ${duration(rule.exponential.max_ms)}`;
const RETRY_KINDS = { waiting: "soft", overdue: "bad", ready: "accent" };
const where = one => `\`group\` = ${literal(one)}`;

function Lag({ info, stats }) {
  const rows =
    info.topics.flatMap(topic =>
      topic.partitions.filter(one => !one.retry).map(one => ({ ...one, topic: topic.topic })));
  const number = (name, head) => ({ name, head, num: true, cell: one => count(one[name]), sort: one => one[name] });
  const columns =
    [{ name: "topic", head: "Topic", cls: "name",
      cell: one => html`<a href=${to("topics", one.topic)}>${visible(one.topic)}</a>`, sort: one => one.topic },
    { name: "partition", head: "Partition", cls: "name",
      cell: one =>
      html`<a
        href=${to("topics", one.topic, "messages",
          { partition: one.partition, offset: one.committed_offset })}>${visible(one.partition)}</a>`,
          sort: one => one.partition },
    number("committed_offset", "Committed"), number("end_offset", "End"), number("lag", "Lag"),
      number("in_flight", "In flight"),
    { name: "last", head: "Last consumed", cell: one => html`<${Time} at=${one.last_consume_time} since />`,
      sort: one => one.last_consume_time }];
  const done = [{ name: "topic", head: "Topic", cls: "name", cell: one => visible(one.topic) },
    ...[["delivered_per_s", "Delivered /s", rate], ["succeeded_per_s", "Done /s", rate],
      ["failed_per_s", "Failed /s", rate], ["success_rate", "Success", share], ["redelivered", "Came again", count],
    ["age_mean_ms", "Age when delivered", duration], ["age_max_ms", "oldest", duration],
    ["handling_mean_ms", "Handling", duration], ["handling_max_ms", "longest", duration]].map(([name, head, written]) =>
    ({ name, head, num: true, cell: one => written(one[name]) }))];
  return html`<h2>Lag by partition</h2><${Table} label="Lag by partition" columns=${columns} rows=${rows}
    keyOf=${one => one.topic + "\n" + one.partition} first="-lag"
    empty=${html`<${Empty} command=${`deltamq consume orders --group ${sh(info.group)}`}>The group has consumed nothing
      yet.<//>`}
      sql=${html`<${Sql} view="mq_lag" query=${`SELECT * FROM mq_lag WHERE ${where(info.group)} ORDER BY lag DESC`} />`}
        />
    ${info.members.length > 0
      && html`<h2>Progress of each client</h2><${Table} id="members" label="Progress of each client"
        columns=${[{ name: "client", head: "Client", cls: "name",
          cell: one => html`<a href=${to("groups", one.group)}>${visible(one.client_id)}</a>`,
          sort: one => one.client_id }, number("lag", "Lag")]} rows=${info.members} keyOf=${one => one.client_id}
          first="-lag" sql=${html`<${Rest} call="GET /v1/groups/{group}"
            command=${`deltamq group show ${sh(info.group)}`} />`} />`}
    ${stats?.topics.length > 0
      && html`<h2>In the last ${duration(stats.seconds * 1000)}</h2><${Table} label="What the group did" columns=${done}
        rows=${stats.topics} keyOf=${one => one.topic}
        sql=${html`<${Sql} view="mq_statistics"
          query=${`SELECT * FROM mq_statistics WHERE ${where(info.group)} ORDER BY minute DESC`} />`} />`}`;
}

function Clients({ info }) {
  const given = client => Object.values(info.allocation).flatMap(one => one.clients[client] ?? []);
  const columns = [{ name: "client", head: "Client", cls: "name", cell: one => visible(one.client_id),
    sort: one => one.client_id },
    { name: "state", head: "State", cell: one => one.online ? html`<${State} kind="good">online<//>`
      : html`<${State} kind="warn">leaving<//>` },
    { name: "since", head: "Since", cell: one => html`<${Time} at=${one.since_time} />`, sort: one => one.since_time },
    { name: "left", head: "May consume for", num: true, hint: "unless it renews that",
      cell: one => duration(one.authorized_ms) },
    { name: "topics", head: "Asks for", cls: "clip",
      cell: one =>
      Object.entries(one.topics).map(([topic, its]) =>
        `${visible(topic)} ${visible(its.tags)}${its.filter ? " " + visible(its.filter) : ""}`).join(", ") || NONE },
    { name: "partitions", head: "Has", cls: "name wrap", cell: one => given(one.client_id).map(visible).join(" ")
      || NONE }];
  return html`<${Table} label="Clients" columns=${columns} rows=${info.clients} keyOf=${one => one.client_id}
    first="client"
    empty=${html`<${Empty} command=${`deltamq consume orders --group ${sh(info.group)}`}>No client of the group is there
      now.<//>`}
      sql=${html`<${Sql} view="mq_clients" query=${`SELECT * FROM mq_clients WHERE ${where(info.group)}`} />`} />
    ${info.consume_strategy === "exclusive"
      && html`<p class="calm">Each partition is read by the one client that has it: its pull lock. Allocation
        epochs: ${Object.entries(info.allocation).map(([topic, one]) => `${visible(topic)} ${one.epoch}`).join(", ")
          || NONE}.</p>`}`;
}

function InFlight({ group }) {
  const live = useLive(at`v1/groups/${group}/in-flight` + asked({ limit: 500 }), 5000), now = Date.now();
  const overdue = one => Date.parse(one.visible_time) < now;
  const client = one => one.client_id ? html`<code>${visible(one.client_id)}</code>`
    : html`<span class="calm">not known</span>`;
  const holders = [{ name: "client", head: "Client", cell: client, sort: one => one.client_id },
    { name: "messages", head: "Holds", num: true, cell: one => count(one.messages), sort: one => one.messages },
    { name: "since", head: "The oldest", cell: one => html`<${Time} at=${one.since_time} since />`,
      sort: one => one.since_time }];
  const columns = [{ name: "partition", head: "Partition", cls: "name", cell: one => visible(one.partition),
    sort: one => one.partition },
    { name: "offset", head: "Offset", num: true, cell: one => one.retry ? count(one.offset)
      : html`<a href=${to("topics", one.topic, "messages", one.partition, String(one.offset))}>${one.offset}</a>`,
      sort: one => one.offset },
    { name: "client", head: "Held by", cell: client, sort: one => one.client_id },
    { name: "since", head: "Since", cell: one => html`<${Time} at=${one.since_time} since />`,
      sort: one => one.since_time },
    { name: "until", head: "Until", cell: one => overdue(one) ? html`<${State} kind="bad">overdue<//>`
      : html`<${Time} at=${one.visible_time} />`, sort: one => one.visible_time },
    { name: "attempt", head: "Attempt", num: true, cell: one => count(one.attempt), sort: one => one.attempt }];
  if (!live.data) return html`<${Waiting} of=${live} what="What is in flight" />`;
  return html`${live.data.messages.some(overdue)
    && html`<p class="calm">Overdue messages come again when the job <code>revive</code> next
      runs. <a href=${to("jobs")}>Jobs</a></p>`}
    <h2>By client</h2><${Table} id="holders" label="Holders" columns=${holders} rows=${live.data.by_client}
      keyOf=${one => one.client_id ?? ""} first="since" empty=${html`<${Empty}>No client holds a message.<//>`}
      sql=${html`<${Rest} call="GET /v1/groups/{group}/in-flight" command=${`deltamq group in-flight ${sh(group)}`}
        />`} />
    <h2>Messages, the oldest delivery first</h2><${Table} label="Messages in flight" columns=${columns}
      rows=${live.data.messages} keyOf=${one => one.partition + one.offset} first="since"
      empty=${html`<${Empty}>Nothing is in flight.<//>`} total=${live.data.total > live.data.messages.length
        ? `${count(live.data.messages.length)} of ${count(live.data.total)} are shown` : undefined}
      sql=${html`<${Sql} view="mq_in_flight"
        query=${`SELECT * FROM mq_in_flight WHERE ${where(group)} ORDER BY pop_time`} />`} />`;
}

function Retries({ info, may }) {
  const live = useLive(at`v1/groups/${info.group}/retries` + asked({ limit: 500 }), 5000);
  if (!live.data) return html`<${Waiting} of=${live} what="What comes again" />`;
  const number = (name, head) => ({ name, head, num: true, cell: one => count(one[name]), sort: one => one[name] });
  const counts = Object.values(live.data.by_attempt.reduce((all, one) => {
    (all[one.attempt] ??= { attempt: one.attempt, waiting: 0, overdue: 0, ready: 0 })[one.state] += one.messages;
    return all; }, {}));
  const act = (run, news) => async fields => { await run(fields); live.reload(); return news; };
  const forward = one => act(() => send("POST", at`v1/groups/${info.group}/invisible`,
    { handle: one.handle, invisible_ms: 0 }), "The message comes as soon as the job revive runs.");
  const bury = one => act(async ({ reason }) => {
    const { failed } = await send("POST", at`v1/groups/${info.group}/dead`, { handles: [one.handle], reason });
    if (failed.length) throw new Error("its time came meanwhile: the message is delivered again");
  }, "The message becomes a dead letter.");
  const what = (one, end) => html`<p>1 message, due ${visible(one.due_time)} for delivery ${one.attempt}, ${end}.</p>`;
  const columns = [{ name: "due", head: "Due", cell: one => html`<${Time} at=${one.due_time} />`,
    sort: one => one.due_time },
    { name: "state", head: "State", cell: one => html`<${State} kind=${RETRY_KINDS[one.state]}>${one.state}<//>`,
      sort: one => one.state },
    { name: "message", head: "Message", cls: "name",
      cell: one => one.origin?.partition && html`<a href=${to("topics", one.topic, "messages", one.origin.partition,
        String(one.origin.offset))}>${visible(one.origin.partition)} at ${one.origin.offset}</a>` },
    number("attempt", "Delivery"),
    may("group", "subscribe") && { name: "act", head: html`<span class="unseen">Change</span>`,
      cell: one => one.handle ? html`<${Ask} cls="small" isDanger=${false} label="Now" title="Bring a message forward"
          yes="Bring 1 message forward" run=${forward(one)} says=${what(one, "is due now")} />
        <${Ask} cls="small" label="Dead letter" title="Make a dead letter" yes="Bury 1 message" run=${bury(one)}
          says=${html`${what(one, "becomes a dead letter of the group, and can be sent back from there")}
            <${Field} label="Why"><input name="reason" required maxlength="200" /><//>`} />` : "" }].filter(Boolean);
  return html`<p>What fails, or is not answered in time, comes again
    after ${policy(info.retry_policy, info.max_attempts)}; after ${info.max_attempts} deliveries it is a dead
    letter.</p>
    ${counts.length > 0
      && html`<h2>By delivery</h2><${Table} id="attempts" label="Retries by delivery"
        columns=${[number("attempt", "Delivery"), number("waiting", "Wait for their time"),
          number("overdue", "Overdue: wait for the job revive"), number("ready", "Ready: wait for a consumer")]}
        rows=${counts} keyOf=${one => one.attempt} first="attempt"
        sql=${html`<${Sql} view="mq_retries"
          query=${`SELECT * FROM mq_retries WHERE ${where(info.group)} ORDER BY attempt`} />`} />`}
    <h2>The next due first</h2><${Table} label="Retries" columns=${columns} rows=${live.data.messages}
      keyOf=${one => one.partition + "\n" + one.offset} first="due"
      empty=${html`<${Empty}>Nothing waits to be delivered again.<//>`}
      total=${live.data.total > live.data.messages.length
        ? `${count(live.data.messages.length)} of ${count(live.data.total)} are shown` : undefined}
      sql=${html`<${Sql} view="mq_in_flight"
        query=${`SELECT * FROM mq_in_flight WHERE ${where(info.group)} AND given_back ORDER BY revive_time`} />`} />`;
}

// A reset in two steps: first what it would do, then the same with a yes.
function Reset({ info, query, reload }) {
  const [plan, setPlan] = useState(null), topics = info.topics.map(one => one.topic);
  const look = async ({ topic, how, time, retries }) => {
    const wanted = { to: how === "time" ? utc(time) : how, retries };
    if (how === "time" && !time) throw new Error("Give the time to go to.");
    setPlan({ topic, wanted,
      offsets: (await send("POST", at`v1/groups/${info.group}/topics/${topic}/offsets/reset`,
        { ...wanted, plan: true })).offsets });
  };
  const reset = async () => {
    const { topic, wanted } = plan;
    await send("POST", at`v1/groups/${info.group}/topics/${topic}/offsets/reset`, wanted);
    setPlan(null);
    reload();
    return `${info.group} goes on where it was reset to.`;
  };
  if (!topics.length) return html`<${Empty}>The group has consumed no topic: there is nothing to reset.<//>`;
  const rows = plan
    ? Object.entries(plan.offsets).map(([partition, one]) => ({ partition, ...one, isBack: one.to < one.from }))
    : [];
  const sum = back => rows.filter(one => one.isBack === back).reduce((all, one) => all + one.messages, 0),
    [back, past] = [sum(true), sum(false)];
  return html`<${Form} label="Where to go on" yes="Show what that does" onSend=${look} cls="filter">
      <${Field} label="Topic"><select name="topic"
        onChange=${() => setPlan(null)}>${topics.map(topic =>
          html`<option key=${topic} selected=${topic === query.topic}>${topic}</option>`)}</select><//>
      <${Field} label="Go on at"><select name="how" onChange=${() => setPlan(null)}><option value="first">the first
        message</option><option value="last">the end</option><option value="time" selected=${!!query.time}>a
        time</option></select><//>
      <${Field} label="Time"><input name="time" type="datetime-local" step="1" value=${asField(query.time)}
        onInput=${() => setPlan(null)} /><//>
      <${Field} label="What waits to be retried"><select name="retries" onChange=${() => setPlan(null)}><option
        value="keep">is kept</option><option value="drop">is dropped</option></select><//><//>
    ${plan
      && html`<${Table} label="What the reset would do"
        columns=${[{ name: "partition", head: "Partition", cls: "name", cell: one => visible(one.partition) },
          { name: "from", head: "From", num: true, cell: one => count(one.from) },
          { name: "to", head: "To", num: true, cell: one => count(one.to) },
        { name: "messages", head: "Messages", num: true, cell: one => count(one.messages) },
        { name: "way", head: "What happens", cell: one => one.messages ? one.isBack ? "come again" : "are passed over"
          : "as it is" }]} rows=${rows} keyOf=${one => one.partition}
        sql=${html`<${Rest} call="POST /v1/groups/{group}/topics/{topic}/offsets/reset"
          command=${`deltamq group reset ${sh(info.group)} ${sh(plan.topic)} --to ${plan.wanted.to} --plan`} />`} />
      <p><${Ask} label="Reset" title=${`Reset ${visible(info.group)} in ${visible(plan.topic)}`}
        yes=${`Reset ${plural(back + past, "message")}`} run=${reset}
        says=${html`<p>${back > 0 && html`${plural(back, "message")} are delivered again. `}${past > 0
          && html`${plural(past, "message")} are passed over. `}${back + past === 0 && "No message is concerned. "}What
          clients hold now is theirs no more.</p>`} /></p>`}`;
}

function Settings({ info, may, now }) {
  const remove = async () => { await send("DELETE", at`v1/groups/${info.group}`); go("groups");
    return `Group ${info.group} is deleted.`; };
  return html`<${Facts}
    of=${[["Kind", info.consume_strategy], ["Order", info.order === true ? "partitions in order" : info.order === "key"
      ? "each key in order" : "none"], ["Begins at", info.consume_from === "first" || info.consume_from === "last"
      ? `the ${info.consume_from} message` : html`<${Time} at=${info.consume_from} />`],
      ["Deliveries at most", count(info.max_attempts)],
      ["Comes again after", policy(info.retry_policy, info.max_attempts)],
      ["Invisible for", duration(info.invisible_ms)], ["Epoch", count(info.epoch)],
      ["Made", html`<${Time} at=${info.created_time} />`]]} />
    ${may("group", "alter") && html`<${Change} info=${info} />`}
    ${may("group", "delete")
      && html`<section class="card"><h2>Delete</h2><p>Its progress, retries and dead letters go; topics keep their
        messages.</p>
      <${Ask} label="Delete the group" title="Delete the group" typed=${info.group} run=${remove}
        says=${html`<p>${plural(now.lag, "message")} to go, ${count(now.inFlight)} in flight, ${count(now.retries)} that
          wait to be retried and ${now.dead === null ? "all" : count(now.dead)} new dead letters: the group forgets them
          all.</p>`} /></section>`}`;
}

function Pause({ info, reload }) {
  const pause = async ({ reason }) => { await send("POST", at`v1/groups/${info.group}/pause`, { reason }); reload();
    return `${info.group} is paused.`; };
  const resume = async () => { await send("POST", at`v1/groups/${info.group}/resume`); reload();
    return `${info.group} goes on.`; };
  if (info.paused) return html`<${Ask} label="Resume" isDanger=${false} title="Resume the group" run=${resume}
    says=${html`<p>Its clients get messages again.</p>`} />`;
  return html`<${Ask} label="Pause" title="Pause the group" run=${pause}
    says=${html`<p>Its ${plural(info.clients.length, "client")} get no messages until it is resumed; what they hold they
      may finish.</p><${Field} label="Why"><input name="reason" required maxlength="255" autofocus /><//>`} />`;
}

function Change({ info }) {
  const change = async ({ max_attempts, invisible_s }) =>
    { await send("PUT", at`v1/groups/${info.group}`,
      { max_attempts: Number(max_attempts), invisible_ms: Math.round(invisible_s * 1000) });
      return "The group is changed."; };
  return html`<${Form} label="Settings of the group" yes="Change" onSend=${change} cls="form card"><h2>Change</h2>
    <${Field} label="Deliveries at most"><input name="max_attempts" type="number" min="1" max="10000"
      defaultValue=${info.max_attempts} required /><//>
    <${Field} label="Invisible for, in seconds"><input name="invisible_s" type="number" min="1" step="any"
      defaultValue=${info.invisible_ms / 1000} required /><//><//>`;
}

const TABS = new Set(["", "clients", "in-flight", "retries", "dead-letters", "reset", "settings"]);

export function Group({ path, query }) {
  const [, group, tab = ""] = path;
  const live = useLive(at`v1/groups/${group}`, 5000),
    counts = useLive(at`v1/groups/${group}/dead-letters/counts`, 10_000), may = useMay({ group });
  const stats = useLive(tab === "" ? at`v1/groups/${group}/statistics` + asked({ minutes: 5 }) : null, 15_000);
  const lag = useHistory("lag", { group }, query.range), consumed = useHistory("consumed", { group }, query.range),
    dead = useHistory("dead_letters", { group }, query.range), oldest = useHistory("oldest_s", { group }, query.range);
  const info = live.data, now = info && groupNow(group, { data: [info, counts.data], error: live.error });
  const link = (name, text, number) => [name, text, name ? to("groups", group, name) : to("groups", group), number];
  const tabs = [link("", "Lag", now && count(now.lag)), link("clients", "Clients", now && count(now.clients)),
    link("in-flight", "In flight", now && count(now.inFlight)), link("retries", "Retries"),
    link("dead-letters", "Dead letters", counts.data && count(counts.data.new)), may("group", "reset")
      && link("reset", "Reset"), link("settings", "Settings")];
  const plots = [["Lag", lag, count], ["Consumed a second", consumed, rate],
    ["Oldest message not consumed", oldest, seconds => duration(seconds === null || seconds === undefined ? null
      : seconds * 1000)], ["Dead letters, new", dead, count]];
  return html`<${Head} title=${group} above=${[["Groups", to("groups")]]}>${now
    && html`<${GroupState} of=${now} />`}${info && may("group", "alter")
    && html`<${Pause} info=${info} reload=${live.reload} />`}<//>
    <${Tabs} label="Parts of the group" of=${tabs} now=${tab} /><${Waiting} of=${live} what="This group" />
    ${live.error && info && html`<${Trouble} error=${live.error} what="This group" />`}
    ${info && tab === ""
      && html`${lag && html`<${Ranges} now=${query.range} />`}<div
        class="plots">${plots.map(([title, of, written]) =>
          of && html`<${Plot} key=${title} title=${title}
            series=${topOf(of.map(one => ({ ...one, labels: { topic: one.labels.topic ?? "" } })))} written=${written}
            span=${spanOf(query.range)} />`)}</div><${Lag} info=${info} stats=${stats.data} />`}
    ${info && tab === "clients" && html`<${Clients} info=${info} />`}
    ${info && tab === "in-flight" && html`<${InFlight} group=${group} />`}
    ${info && tab === "retries" && html`<${Retries} info=${info} may=${may} />`}
    ${info && tab === "dead-letters" && html`<${Letters} group=${group} query=${query} may=${may} counts=${counts} />`}
    ${info && tab === "reset" && may.isKnown && (may("group", "reset")
      ? html`<${Reset} info=${info} query=${query} reload=${live.reload} />`
      : html`<p class="calm">You may not reset this group.</p>`)}
    ${info && tab === "settings" && html`<${Settings} info=${info} may=${may} now=${now} />`}
    ${info && !TABS.has(tab) && html`<${Nothing} />`}`;
}
