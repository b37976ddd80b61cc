// The messages of a topic: by offset, by time, by what is in them, or as they come.
import { useEffect, useRef, useState } from "../vendor/hooks.js";
import { at, follow, get, query as asked } from "../api.js";
import { bodyBytes, bytes, count, NONE, plural, preview, sh, visible } from "../format.js";
import { Empty, Field, Form, html, literal, Sql, State, Table, Time, Trouble } from "../parts.js";
import { ask, to } from "../route.js";
import { placesOf } from "./topic.js";

const PAGE = 100, FOUND_MAX = 1000, TAIL_ROWS = 500, TAILS_MAX = 16;

export const sizeOf = message => typeof message.body_base64 === "string"
  ? Math.floor(message.body_base64.replace(/=+$/, "").length * 3 / 4) : bodyBytes(message).length;
export const messageColumns = topic => [
  { name: "offset", head: "Offset", num: true,
    cell: one => html`<a href=${to("topics", topic, "messages", one.partition, String(one.offset))}>${one.offset}</a>`,
    sort: one => one.offset },
  { name: "time", head: "Stored", cell: one => html`<${Time} at=${one.append_time} millis />`,
    sort: one => one.append_time },
  { name: "key", head: "Key", cls: "mono clip", cell: one => one.key === undefined || one.key === null ? NONE
    : visible(one.key.slice(0, 80)) },
  { name: "tag", head: "Tag", cls: "clip", cell: one => one.tag ? visible(one.tag) : NONE },
  { name: "size", head: "Size", num: true, cell: one => bytes(sizeOf(one)), sort: sizeOf },
  { name: "body", head: "Body", cls: "mono clip wide", cell: one => preview(one) },
];
const withPlace = (topic, columns) =>
  [{ name: "partition", head: "Partition", cls: "name", cell: one => visible(one.partition),
    sort: one => one.partition }, ...columns];
export const utc = local => local ? new Date(local).toISOString() : undefined;
// What a field of the browser for times shows, in the viewer's zone.
export const asField = time => { const at = new Date(time ?? NaN); return Number.isNaN(at.getTime()) ? ""
  : new Date(at - at.getTimezoneOffset() * 60_000).toISOString().slice(0, 19); };
const sqlOf = (topic, where) => html`<${Sql} view="format mq"
  query=${`spark.read.format("mq").option("topic", ${JSON.stringify(topic)}).load()${
    where ? `.where(${JSON.stringify(where)})` : ""}`} />`;

// Browse one partition from an offset on.
function Browse({ info, query, places }) {
  const place = places.find(one => one.partition === query.partition) ?? places.find(one => one.messages) ?? places[0];
  const newest = Math.max(place.min_offset ?? 0, (place.max_offset ?? 0) - PAGE);
  const offset = query.offset === undefined ? newest : Number(query.offset);
  const [page, setPage] = useState({});
  useEffect(() => {
    const abort = new AbortController();
    setPage(was => ({ ...was, isBusy: true }));
    get(at`v1/topics/${info.topic}/partitions/${place.partition}/messages`
      + asked({ offset, max_messages: PAGE, max_bytes: 4_194_304 }), { signal: abort.signal })
      .then(data => setPage({ data }), error => { if (!abort.signal.aborted) setPage({ error }); });
    return () => abort.abort();
  }, [info.topic, place.partition, offset]);
  const byTime = async ({ time, start }) => {
    if (!time) { ask({ partition: place.partition, offset: start, time: undefined }, true); return; }
    const { offsets } = await get(at`v1/topics/${info.topic}/offsets` + asked({ time: utc(time) }));
    ask({ partition: place.partition, offset: offsets.find(one => one.partition === place.partition)?.offset,
      time: utc(time) }, true);
  };
  const { data, error } = page, rows = (data?.messages ?? []).map(one => ({ ...one, partition: place.partition }));
  const low = data?.min_offset ?? place.min_offset ?? 0, high = data?.max_offset ?? place.max_offset ?? 0;
  const turn = next => () => ask({ partition: place.partition, offset: Math.max(low, next), time: undefined }, true);
  return html`<${Form} label="Where to read" yes="Read" onSend=${byTime} cls="filter" key=${place.partition + offset}>
      <${Field} label="Partition"><select name="partition"
        onChange=${event => ask({ partition: event.target.value, offset: undefined, time: undefined },
          true)}>${places.map(one =>
          html`<option key=${one.partition} value=${one.partition}
            selected=${one === place}>${visible(one.partition)} (${count(one.messages)})</option>`)}</select><//>
      <${Field} label="From offset"><input name="start" type="number" min="0" defaultValue=${offset} /><//>
      <${Field} label="or from a time"><input name="time" type="datetime-local" step="1"
        defaultValue=${asField(query.time)} /><//><//>
    <${Trouble} error=${error} what="This partition" />
    ${data && data.status.startsWith("offset_too") && rows.length === 0
      && html`<p class="calm">Offset ${offset} is not there: the partition has ${low} to ${high - 1}.</p>`}
    <div class="turn"><button type="button" disabled=${offset <= low} onClick=${turn(low)}>First</button><button
      type="button" disabled=${offset <= low} onClick=${turn(offset - PAGE)}>Earlier</button>
      <span role="status">${rows.length
        ? `${count(rows[0].offset)} to ${count(rows.at(-1).offset)} of ${count(low)} to ${count(high - 1)}`
        : page.isBusy ? "Loading …" : "nothing from here on"}</span>
      <button type="button" disabled=${!data || data.next_offset >= high}
        onClick=${turn(data?.next_offset)}>Later</button><button type="button"
        disabled=${offset === Math.max(low, high - PAGE)} onClick=${turn(high - PAGE)}>Newest</button></div>
    ${data
      && html`<${Table} label=${`Messages of ${place.partition}`} columns=${messageColumns(info.topic)} rows=${rows}
        keyOf=${one => one.offset} first="offset"
      empty=${high === low
        ? html`<${Empty} command=${`echo '{"body": "hello"}' | deltamq produce ${sh(info.topic)}`}>This partition has no
          messages.<//>` : html`<${Empty}>No messages from offset ${count(offset)} on.<//>`}
          sql=${sqlOf(info.topic, `partition = ${literal(place.partition)} AND offset >= ${offset}`)} />`}`;
}

const FIELDS = ["key", "id", "tag", "header", "text", "from_time", "to_time", "in"];
// Search call by call: each goes on at the cursor of the one before, until enough is found, all was looked at, or it is
// cancelled.
function Search({ info, query, places }) {
  const [found, setFound] = useState(null), abort = useRef(null);
  const wanted =
    Object.fromEntries(FIELDS.filter(name => query[name]).map(name => [name === "in" ? "partition" : name,
      query[name]]));
  const go = async (cursor, before) => {
    abort.current?.abort();
    const mine = abort.current = new AbortController();
    let state = { messages: before?.messages ?? [], cursor, looked: before?.looked ?? { messages: 0, bytes: 0 },
      isBusy: true };
    setFound(state);
    try {
      do {
        const answer = await get(at`v1/topics/${info.topic}/search`
          + asked({ ...wanted, limit: PAGE, cursor: state.cursor }), { signal: mine.signal });
        const { looked_at: looked } = answer;
        state = { messages: [...state.messages, ...answer.messages], cursor: answer.cursor, isBusy: true,
          looked: { messages: state.looked.messages + looked.messages, bytes: state.looked.bytes + looked.bytes,
            through: looked.through_time ?? state.looked.through } };
        setFound(state);
      } while (state.cursor && state.messages.length < PAGE + (before?.messages.length ?? 0) && !mine.signal.aborted);
    } catch (error) { if (error.name !== "AbortError") state = { ...state, error }; }
    if (abort.current === mine) setFound({ ...state, isBusy: false, isCancelled: mine.signal.aborted });
  };
  const about = JSON.stringify(wanted);
  useEffect(() => { if (about !== "{}") go(); return () => abort.current?.abort(); }, [about, info.topic]);
  const start = async given => {
    const next = { ...given, from_time: utc(given.from_time), to_time: utc(given.to_time) };
    if (!FIELDS.some(name => next[name])) throw new Error("Say what to look for: at least one field.");
    if (FIELDS.every(name => (next[name] ?? "") === (query[name] ?? ""))) go(); else ask(next, true);
  };
  return html`<${Form} label="What to look for" yes="Search" onSend=${start} cls="filter" key=${about}>
      <${Field} label="Key"><input name="key" defaultValue=${query.key ?? ""} spellcheck=${false} /><//><${Field}
        label="Id"><input name="id" defaultValue=${query.id ?? ""} spellcheck=${false} /><//><${Field}
        label="Tag"><input name="tag" defaultValue=${query.tag ?? ""} /><//>
      <${Field} label="Header"><input name="header" defaultValue=${query.header ?? ""} placeholder="name:value"
        spellcheck=${false} /><//><${Field} label="Text in the body"><input name="text" defaultValue=${query.text ?? ""}
        spellcheck=${false} /><//>
      <${Field} label="Stored from"><input name="from_time" type="datetime-local" step="1"
        defaultValue=${asField(query.from_time)} /><//><${Field} label="until"><input name="to_time"
        type="datetime-local" step="1" defaultValue=${asField(query.to_time)} /><//>
      <${Field} label="Partition"><select name="in"><option
        value="">all</option>${places.map(one =>
          html`<option key=${one.partition}
            selected=${one.partition === query.in}>${one.partition}</option>`)}</select><//><//>
    ${found
      && html`<p class="progress" role="status">${found.isBusy ? "Searching: " : found.isCancelled ? "Cancelled: "
        : found.cursor ? "So far: "
        : "All was looked at: "}${plural(found.messages.length,
          "message")} found, ${count(found.looked.messages)} looked at
          (${bytes(found.looked.bytes)})${found.looked.through && found.cursor
            ? html`, up to <${Time} at=${found.looked.through} />` : ""}
      ${found.isBusy ? html` <button type="button" onClick=${() => abort.current.abort()}>Cancel</button>`
        : found.cursor && found.messages.length < FOUND_MAX
        ? html` <button type="button" onClick=${() => go(found.cursor, found)}>Go on</button>` : ""}</p>
      <${Trouble} error=${found.error} what="What is to be found" />
      ${(found.messages.length > 0 || !found.isBusy)
        && html`<${Table} label="Messages found" columns=${withPlace(info.topic, messageColumns(info.topic))}
          rows=${found.messages} keyOf=${one => one.partition + one.offset}
          empty=${html`<${Empty}>No message has all of this.<//>`}
          sql=${sqlOf(info.topic, wanted.key && `key = ${literal(wanted.key)}`)} />`}`}`;
}

// Follow partitions as messages come, the newest first; at most 500 are kept, and a hidden tab follows nothing.
function Tail({ info, query, places }) {
  const chosen = places.filter(one => !query.partition || one.partition === query.partition).slice(0, TAILS_MAX);
  const [rows, setRows] = useState([]), [isPaused, setPaused] = useState(false), [ended, setEnded] = useState(null),
    [isHidden, setHidden] = useState(document.hidden);
  const last = useRef(new Map()), fresh = useRef([]), dropped = useRef(0);
  useEffect(() => {
    const seen = () => setHidden(document.hidden);
    document.addEventListener("visibilitychange", seen);
    return () => document.removeEventListener("visibilitychange", seen);
  }, []);
  useEffect(() => {
    if (isPaused || isHidden) return undefined;
    const abort = new AbortController(), timer = setInterval(() => {
      if (!fresh.current.length) return;
      const next = fresh.current.reverse();
      fresh.current = [];
      setRows(was => [...next, ...was].slice(0, TAIL_ROWS));
    }, 250);
    setEnded(null);
    const one = async place => {
      const offset = last.current.get(place.partition) ?? place.max_offset ?? 0;
      await follow(at`v1/topics/${info.topic}/partitions/${place.partition}/messages` + asked({ offset }),
        { signal: abort.signal, onEvent(kind, data, id) {
        if (kind === "refused") { setEnded(data.detail); return; }
        if (kind !== "message" || !id) return;
        last.current.set(place.partition, data.offset + 1);
        if (fresh.current.length >= TAIL_ROWS) { fresh.current.shift(); dropped.current++; }
        fresh.current.push({ ...data, partition: place.partition });
      } });
    };
    const kept = async place => {
      while (!abort.signal.aborted) {
        try { await one(place); } catch (error) { if (abort.signal.aborted) return; setEnded(error.message);
          if (error.status >= 400 && error.status < 500) return; }
        await new Promise(next => setTimeout(next, 2000));
      }
    };
    chosen.forEach(kept);
    return () => { abort.abort(); clearInterval(timer); };
  }, [info.topic, query.partition, isPaused, isHidden]);
  return html`<div class="filter"><${Field} label="Partition"><select
    onChange=${event => { setRows([]); ask({ partition: event.target.value }); }}><option
    value="">all${places.length > TAILS_MAX ? ` (the first ${TAILS_MAX})`
    : ""}</option>${places.map(place =>
      html`<option key=${place.partition}
        selected=${place.partition === query.partition}>${place.partition}</option>`)}</select><//>
      <button type="button" onClick=${() => setPaused(!isPaused)} aria-pressed=${isPaused}>${isPaused ? "Go on"
        : "Pause"}</button>
      <p class="count" role="status"><${State} kind=${ended ? "bad" : isPaused ? "soft" : "good"}>${ended
        ? visible(ended) : isPaused ? "paused"
        : "following"}<//> ${plural(rows.length, "message")}${rows.length === TAIL_ROWS ? ", the newest are kept"
        : ""}${dropped.current ? `, ${count(dropped.current)} came too fast to be shown` : ""}</p></div>
    <${Table} label="Messages as they come"
      columns=${withPlace(info.topic, messageColumns(info.topic)).map(({ sort, ...column }) => column)} rows=${rows}
      keyOf=${row => row.partition + row.offset}
      empty=${html`<${Empty} command=${`deltamq tail ${sh(info.topic)}`}>Messages appear here when they are sent.<//>`}
      sql=${sqlOf(info.topic, query.partition && `partition = ${literal(query.partition)}`)} />`;
}

const PARTS = { browse: Browse, search: Search, tail: Tail };
export function Messages({ info, query }) {
  const places = placesOf(info), how = Object.hasOwn(PARTS, query.how ?? "") ? query.how : "browse", Part = PARTS[how];
  const link = (name, text) =>
    html`<a href=${to("topics", info.topic, "messages", name === "browse" ? {} : { how: name })}
      aria-current=${name === how ? "true" : undefined}>${text}</a>`;
  if (!places.length) return html`<${Empty}>The topic has no partitions.<//>`;
  return html`<div class="ways">${link("browse", "Browse")}${link("search", "Search")}${link("tail",
    "Follow")}</div><${Part} info=${info} query=${query} places=${places} />`;
}
