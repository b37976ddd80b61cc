// What pages are made of: tables, dialogs, facts, commands. All that is shown goes through Preact as text.
import htm from "./vendor/htm.js";
import { useCallback, useEffect, useLayoutEffect, useMemo, useRef, useState } from "./vendor/hooks.js";
import { h } from "./vendor/preact.js";
import { store } from "./api.js";
import { ago, count, localTime, NONE, visible } from "./format.js";
import { ask, useRoute } from "./route.js";

export const html = htm.bind(h);

// Short news of what was done, for eyes and screen readers.
const said = store("");
export function say(text) {
  said.set(text);
  setTimeout(() => { if (said.get() === text) said.set(""); }, 8000);
}
export const News = () => html`<div class="news" role="status" aria-live="polite">${said.use()}</div>`;

export const Time = ({ at, millis, since }) => at
  ? html`<time datetime=${visible(at)} title=${visible(at).replace("T", " ").replace("Z", " UTC")}>${since ? ago(at)
    : localTime(at, millis)}</time>`
  : NONE;

export const State = ({ kind = "soft", children }) => html`<span class=${"state " + kind}>${children}</span>`;

export function Copy({ text, what = "Copy" }) {
  const copy = async () => {
    try { await navigator.clipboard.writeText(text); say("Copied."); } catch {
      say("This browser does not let pages copy: select the text."); }
  };
  return html`<button type="button" class="quiet" onClick=${copy}>${what}</button>`;
}
export const Command = ({ text }) => html`<span class="command"><code>${text}</code><${Copy} text=${text} /></span>`;

// What gives the rows of a table: the view that has them, and the query; of what SQL has not, the call and the command.
const Source = ({ way, from, text }) => html`<details class="sql"><summary>${way}: <code>${from}</code></summary>
  <div class="command"><code>${text}</code><${Copy} text=${text} /></div></details>`;
export const Sql = ({ view, query }) => html`<${Source} way="SQL" from=${view} text=${query} />`;
export const Rest = ({ call, command }) => html`<${Source} way="REST" from=${call} text=${command} />`;
export const literal = text => "'" + String(text).replace(/\\/g, "\\\\").replace(/'/g, "\\'") + "'";

export const Empty = ({ children, command }) =>
  html`<div class="empty"><p>${children}</p>${command && html`<${Command} text=${command} />`}</div>`;

export function Trouble({ error, what = "This" }) {
  if (!error) return null;
  if (error.status === 403) return html`<p class="calm">${what} is not shown to you: ${visible(error.message)}.</p>`;
  if (error.status === 409) return html`<p class="calm">${what}: ${visible(error.message)}.</p>`;
  return html`<p class="trouble" role="alert">${what} cannot be shown now: ${visible(error.message)}${error.code
    && html` <code>${error.code}</code>`}</p>`;
}
export const Nothing = () => html`<p>Nothing is at this address. <a href="#/">Overview</a></p>`;

// What a live answer is while it is not there.
export const Waiting = ({ of, what }) => of.error && !of.data ? html`<${Trouble} error=${of.error} what=${what} />`
  : of.data ? null : html`<p class="calm">Loading …</p>`;

export const Facts = ({ of }) => html`<dl class="facts">${of.filter(Boolean).map(([name, value, hint]) =>
  html`<div key=${name} title=${hint}><dt>${name}</dt><dd>${value ?? NONE}</dd></div>`)}</dl>`;

export function Tabs({ label, of, now }) {
  const box = useRef();
  useEffect(() => { const here = box.current.querySelector("[aria-current]"); if (here) box.current.scrollLeft =
    here.offsetLeft - box.current.offsetLeft - 40; }, [now, of.length]);
  return html`<nav class="tabs" ref=${box} aria-label=${label}>${of.filter(Boolean).map(([name, text, href, number]) =>
  html`<a key=${name} href=${href} aria-current=${name === now ? "page" : undefined}>${text}${number !== undefined
    && html` <small>${number}</small>`}</a>`)}</nav>`;
}

export const Field = ({ label, hint, children }) =>
  html`<label class="field"><span>${label}</span>${children}${hint && html`<small>${hint}</small>`}</label>`;

// Sets of rows -------------------------------------------------------------------------------------------------------

const ROW = 32, WINDOWED = 60, AROUND = 8;

function compared(a, b) {
  if (a === b) return 0;
  if (a === null || a === undefined) return 1;
  if (b === null || b === undefined) return -1;
  return a < b ? -1 : 1;
}

// Sorted rows; while the pointer or the focus is in the table, rows keep their places and new ones come last.
function useSorted(rows, columns, keyOf, sort, isHeld) {
  const places = useRef(new Map());
  return useMemo(() => {
    const column = columns.find(one => one.name === sort?.replace(/^-/, "") && one.sort);
    const sorted = [...rows];
    if (column) {
      const values = new Map(rows.map(row => [row, column.sort(row)])), sign = sort.startsWith("-") ? -1 : 1;
      sorted.sort((a, b) => {
        const [left, right] = [values.get(a), values.get(b)];
        return left === null || left === undefined || right === null || right === undefined ? compared(left, right)
          : sign * compared(left, right);
      });
    }
    if (isHeld.current === sort + "") sorted.sort((a, b) => (places.current.get(keyOf(a)) ?? Infinity)
      - (places.current.get(keyOf(b)) ?? Infinity) || 0);
    else if (isHeld.current !== null) isHeld.current = sort + "";
    places.current = new Map(sorted.map((row, i) => [keyOf(row), i]));
    return sorted;
  }, [rows, sort]);
}

// columns: name, head, cell(row), and if so: sort(row), num, hint. `id`
// tells the tables of a page apart in the address.
export function Table({ label, columns, rows, keyOf, first, id = "sort", onSeen, empty, sql, total }) {
  const { query } = useRoute();
  const isHeld = useRef(null), box = useRef(), [top, setTop] = useState(0);
  const sort = query[id] ?? first;
  const sorted = useSorted(rows, columns, keyOf, sort, isHeld);
  const isWindowed = sorted.length > WINDOWED;
  const height = box.current?.clientHeight || 640;
  const from = isWindowed ? Math.max(0, Math.min(Math.floor(top / ROW) - AROUND, sorted.length - 1)) : 0;
  const until = isWindowed ? Math.min(sorted.length, from + Math.ceil(height / ROW) + 2 * AROUND) : sorted.length;
  const seen = sorted.slice(from, until), names = seen.map(keyOf).join("\n");
  useEffect(() => { onSeen?.(seen); }, [names]);
  useEffect(() => { if (box.current) box.current.scrollTop = 0; setTop(0); }, [sort]);
  const hold = yes => () => { isHeld.current = yes ? sort + "" : null; };
  const turn = column => ask({ [id]: sort === column.name ? "-" + column.name : sort === "-" + column.name ? column.name
    : column.num ? "-" + column.name : column.name });
  const gap = (key, rows) => rows > 0
    && html`<tr key=${key} class="gap" aria-hidden="true"><td colspan=${columns.length}
      style=${{ height: rows * ROW + "px" }}></td></tr>`;
  if (!rows.length) return html`${empty ?? html`<${Empty}>Nothing here.<//>`}${sql}`;
  return html`<div class=${"rows" + (isWindowed ? " windowed" : "")} ref=${box} tabindex="0" role="region"
    aria-label=${label}
      onScroll=${isWindowed && (event => setTop(event.currentTarget.scrollTop))}
      onPointerEnter=${hold(true)} onPointerLeave=${hold(false)} onFocusIn=${hold(true)} onFocusOut=${hold(false)}>
    <table aria-rowcount=${isWindowed ? sorted.length + 1 : undefined}>
      <caption class="unseen">${label}</caption>
      <thead><tr aria-rowindex=${isWindowed ? 1 : undefined}>${columns.map(column => {
        const way = sort === column.name ? "ascending" : sort === "-" + column.name ? "descending" : undefined;
        return html`<th key=${column.name} scope="col" class=${column.num ? "num" : ""} title=${column.hint}
          aria-sort=${way}>${
          column.sort
            ? html`<button type="button" onClick=${() => turn(column)}>${column.head}<span aria-hidden="true">${way
              ? (way === "ascending" ? " ▲" : " ▼") : ""}</span></button>` : column.head}</th>`;
      })}</tr></thead>
      <tbody>${gap("above",
        from)}${seen.map((row, i) =>
        html`<tr key=${keyOf(row)} aria-rowindex=${isWindowed ? from + i + 2 : undefined} class=${row.rowClass ?? ""}>${
        columns.map(column =>
          html`<td key=${column.name} class=${column.num ? "num" : column.cls ?? ""}>${column.cell(row)
            ?? NONE}</td>`)}</tr>`)}${gap("below", sorted.length - until)}</tbody>
    </table></div>
    ${total !== undefined && html`<p class="count">${total}</p>`}${sql}`;
}

// What each of many things says, asked only for those that are seen, six at a time, and again when it is old.
export function useDetails(pathOf, load, { oldMs = 20_000 } = {}) {
  const found = useRef(new Map()), wanted = useRef([]), [, redraw] = useState(0);
  const busy = useRef(0), pathRef = useRef(pathOf);
  pathRef.current = pathOf;
  const pump = useCallback(() => {
    if (document.hidden) return;
    const now = performance.now();
    for (const name of wanted.current) {
      if (busy.current >= 6) return;
      const one = found.current.get(name);
      if (one && (one.isBusy || now - one.at < (one.error ? 2 * oldMs : oldMs))) continue;
      found.current.set(name, { ...one, isBusy: true });
      busy.current++;
      load(pathRef.current(name)).then(data => ({ data }), error => ({ data: one?.data, error })).then(next => {
        busy.current--;
        found.current.set(name, { ...next, at: performance.now() });
        if (!busy.current || performance.now() - pump.drawn > 200) { pump.drawn = performance.now(); redraw(n => n + 1);
          }
        pump();
      });
    }
  }, []);
  pump.drawn ??= 0;
  useEffect(() => {
    const timer = setInterval(pump, 1000);
    return () => { clearInterval(timer); wanted.current = []; };
  }, []);
  return { of: name => found.current.get(name) ?? {},
    want: useCallback(names => { wanted.current = names; pump(); }, []) };
}

// Plots --------------------------------------------------------------------------------------------------------------

const colour = name => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const DASHES = [[], [6, 3], [2, 2], [8, 2, 2, 2], [1, 3]];

// series: [{name, points: [[ms, value]]}], the largest first.
export const Ranges = ({ now = "1h" }) =>
  html`<p class="ways" role="group" aria-label="How far back">${["15m", "1h", "6h", "1d"].map(range =>
  html`<button type="button" key=${range} class="small" aria-pressed=${range === now}
    onClick=${() => ask({ range })}>${range}</button>`)}</p>`;

export function Plot({ title, series, written = count, unit = "", span }) {
  const box = useRef(), plot = useRef(), [at, setAt] = useState(null);
  const shown = series.slice(0, DASHES.length);
  const data = useMemo(() => {
    const times = [...new Set(shown.flatMap(one => one.points.map(([time]) => time)))].sort((a, b) => a - b);
    return [times.map(ms => ms / 1000),
      ...shown.map(one => { const by = new Map(one.points); return times.map(time => by.get(time) ?? null); })];
  }, [series]);
  const names = shown.map(one => one.name).join("\n");
  useLayoutEffect(() => {
    let isGone = false, watch;
    const scheme = matchMedia("(prefers-color-scheme: dark)");
    const draw = async () => {
      const { default: UPlot } = await import("./vendor/uplot.js");
      if (isGone || !box.current) return;
      plot.current?.destroy();
      const axis = { stroke: colour("--soft"), grid: { stroke: colour("--line"), width: 1 }, ticks: { show: false },
        font: "11px system-ui", gap: 4 };
      plot.current = new UPlot({
        width: box.current.clientWidth, height: 130, legend: { show: false },
          cursor: { y: false, drag: { x: false, y: false } },
        padding: [8, 8, 0, 0],
        scales: {
          x: { range: (_, low, high) => { const end = Math.max(Date.now() / 1000, high ?? 0); return [end - span / 1000,
            end]; } }, y: { range: (_, low, high) => [Math.min(0, low ?? 0), Math.max(1, (high ?? 1) * 1.1)] } },
        axes: [{ ...axis, size: 24, values: (_, values) => values.map(time => localTime(time * 1000).slice(11, 16)) },
          { ...axis, size: (_, labels) => 14 + 6.5 * Math.max(4, ...(labels ?? []).map(one => one.length)),
            values: (_, values) => values.map(value => written(value)) }],
        series: [{},
          ...shown.map((one, i) => ({ label: one.name, stroke: colour(i ? "--soft" : "--accent"), width: 1.5,
            dash: DASHES[i], fill: i || shown.length > 1 ? undefined : colour("--accent-faint"),
            points: { show: false } }))],
        hooks: { setCursor: [u => setAt(u.cursor.idx ?? null)] },
      }, data, box.current);
      watch ??= new ResizeObserver(() => plot.current?.setSize({ width: box.current.clientWidth, height: 130 }));
      watch.observe(box.current);
    };
    draw();
    scheme.addEventListener("change", draw);
    return () => { isGone = true; watch?.disconnect(); scheme.removeEventListener("change", draw);
      plot.current?.destroy(); plot.current = null; };
  }, [names, span]);
  useEffect(() => { plot.current?.setData(data); }, [data]);
  const value = i => { const line = data[i + 1]; return at === null ? line.findLast(one => one !== null) : line[at]; };
  return html`<figure
    class="plot"><figcaption><b>${title}</b>${shown.map((one, i) =>
      html`<span key=${one.name} class=${"line-" + i}>${shown.length > 1 ? visible(one.name) + " "
        : ""}<b class="value">${written(value(i))}</b>${unit}</span>`)}${
    series.length > shown.length && html`<span>and ${series.length - shown.length} more</span>`}</figcaption>
    <div ref=${box} class="canvas" role="img"
      aria-label=${`${title}: ${shown.map((one, i) =>
        `${one.name} ${written(data[i + 1].findLast(v => v !== null))}${unit}`).join(", ")}`}></div></figure>`;
}

// Changes ------------------------------------------------------------------------------------------------------------

// A dialog of the browser: it holds the focus, and Escape closes it.
export function Dialog({ title, onClose, children }) {
  const box = useRef();
  useEffect(() => { const dialog = box.current; dialog.showModal(); return () => dialog.close(); }, []);
  return html`<dialog ref=${box} aria-label=${title} onClose=${onClose}
    onCancel=${onClose}><h2>${title}</h2>${children}</dialog>`;
}

// Asks once before something is changed. `says` tells what the change concerns, and may have fields, which `run` gets;
// `typed` must be typed for it.
export function Sure({ title, says, typed, yes, isDanger = true, run, onClose }) {
  const [text, setText] = useState(""), [error, setError] = useState(null), [isBusy, setBusy] = useState(false);
  const act = async event => {
    event.preventDefault();
    setBusy(true);
    setError(null);
    try { const news = await run(Object.fromEntries(new FormData(event.target))); onClose(); if (news) say(news);
      } catch (problem) { setError(problem); setBusy(false); }
  };
  return html`<${Dialog} title=${title} onClose=${onClose}><form onSubmit=${act}>
      <div class="says">${says}</div>
      ${typed
        && html`<${Field} label=${`Type ${visible(typed)} to go on`}><input value=${text}
          onInput=${event => setText(event.target.value)} autocomplete="off" spellcheck=${false} autofocus /><//>`}
      ${error
        && html`<p class="trouble" role="alert">${visible(error.message)} ${error.code
          && html`<code>${error.code}</code>`}</p>`}
      <div class="buttons"><button type="button" onClick=${onClose}>Cancel</button>
        <button type="submit" class=${isDanger ? "danger solid" : "solid"}
          disabled=${isBusy || (typed && text !== typed)}>${yes}</button></div>
    </form><//>`;
}

// A button that asks so.
export function Ask({ label, isDanger = true, isOff, cls = "", yes = label, ...its }) {
  const [isAsked, setAsked] = useState(false);
  return html`<button type="button" class=${(isDanger ? "danger " : "") + cls} disabled=${isOff}
    onClick=${() => setAsked(true)}>${label}</button>
    ${isAsked && html`<${Sure} ...${its} yes=${yes} isDanger=${isDanger} onClose=${() => setAsked(false)} />`}`;
}

// A form that sends what its fields hold; a refusal is shown at its end.
export function Form({ label, yes, onSend, children, cls = "form" }) {
  const [error, setError] = useState(null), [isBusy, setBusy] = useState(false);
  const sent = async event => {
    event.preventDefault();
    const form = event.target;
    setBusy(true);
    setError(null);
    try { const news = await onSend(Object.fromEntries(new FormData(form)), form); if (news) say(news);
      } catch (problem) { if (problem.name !== "AbortError") setError(problem); } finally { setBusy(false); }
  };
  return html`<form class=${cls} aria-label=${label} onSubmit=${sent}>${children}
    <button type="submit" class="solid" disabled=${isBusy}>${yes}</button>
    ${error
      && html`<p class="trouble" role="alert">${visible(error.message)} ${error.code
        && html`<code>${error.code}</code>`}</p>`}</form>`;
}
