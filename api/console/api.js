// Requests to this service, and the key that they carry. Paths are written at`v1/topics/${name}`: each value is one
// segment of the path, whatever it holds. They are relative, so that the console also works behind a path of a proxy.
import { useCallback, useEffect, useRef, useState } from "./vendor/hooks.js";
import { parsedExactly } from "./format.js";

// The key lives in this tab alone, and ends with it. It goes into one header of requests to this service.
const KEY = "deltamq.key";
const FORM = /^[A-Za-z0-9._~+/-]+=*$/;

export const at = (texts, ...values) => texts.reduce((path, text, i) => path + encodeURIComponent(values[i - 1])
  + text);
export function query(values) {
  const given = Object.entries(values).filter(([, value]) => value !== undefined && value !== null && value !== "");
  return given.length ? "?" + new URLSearchParams(given) : "";
}

// What all pages share: a value, and who is told when it changes.
export function store(value) {
  const told = new Set();
  return {
    get: () => value,
    set(next) { if (next !== value) { value = next; for (const tell of told) tell(next); } },
    use() {
      const [seen, see] = useState(value);
      useEffect(() => { told.add(see); see(value); return () => told.delete(see); }, []);
      return seen;
    },
  };
}
// "", or why a key is asked for; whether the service answers; a number that grows with each key.
export const refusal = store(""), reachable = store(true), session = store(0);

export const hasKey = () => sessionStorage.getItem(KEY) !== null;
export function useKey(key) {
  if (!FORM.test(key)) return false;
  sessionStorage.setItem(KEY, key);
  refusal.set("");
  session.set(session.get() + 1);
  return true;
}
// The same caller's next token: pages stay as they are.
export const renewKey = key => { if (FORM.test(key)) sessionStorage.setItem(KEY, key); };
export function forgetKey() {
  sessionStorage.removeItem(KEY);
  refusal.set("");
  session.set(session.get() + 1);
}

// What is waited for before a request: a token that ends soon is renewed (signin.js).
let ready = async () => {};
export const before = wait => { ready = wait; };

export class Problem extends Error {
  constructor(status, told) {
    super(told.detail ?? told.message ?? told.title ?? `the service answered ${status}`);
    this.status = status;
    this.code = told.code ?? "";
    this.field = told.field;
  }
}

export async function open(path, { method = "GET", body, accept = "application/json", signal, lastEvent } = {}) {
  await ready();
  const key = sessionStorage.getItem(KEY), headers = { accept };
  if (key !== null) headers.authorization = "Bearer " + key;
  if (body !== undefined) headers["content-type"] = "application/json";
  if (lastEvent) headers["last-event-id"] = lastEvent;
  let answer;
  try {
    answer = await fetch(path, { method, headers, body: body === undefined ? undefined : JSON.stringify(body), signal,
      cache: "no-store", credentials: "omit", redirect: "error" });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    reachable.set(false);
    throw new Problem(0, { detail: "the service does not answer", code: "unreachable" });
  }
  reachable.set(true);
  if (answer.ok) return answer;
  const told = await answer.json().catch(() => ({}));
  if (answer.status === 401) refusal.set(key === null ? refusal.get() || "This service asks for a key."
    : "The key is refused: " + (told.detail ?? "it is not valid") + ".");
  throw new Problem(answer.status, told);
}
export const get = async (path, options) => (await open(path, options)).json();
// As it was sent: numbers keep all their digits.
export const getExactly = async (path, options) => parsedExactly(await (await open(path, options)).text());
export async function send(method, path, body) {
  const text = await (await open(path, { method, body })).text();
  return text ? JSON.parse(text) : {};
}

// What a path answers now, and again every `everyMs` while the tab is seen. What was there stays until the next is
// there; an answer that says the same as before changes nothing.
export function useLive(path, everyMs = 5000) {
  const [state, setState] = useState({});
  const again = useRef(() => {});
  useEffect(() => {
    if (!path) return undefined;
    const abort = new AbortController();
    let timer, text, failed = "", isBusy = false;
    const run = async () => {
      clearTimeout(timer);
      if (document.hidden || isBusy) return;
      isBusy = true;
      let wait = everyMs;
      try {
        const next = await (await open(path, { signal: abort.signal })).text();
        if (next !== text || failed) setState({ path, data: JSON.parse(next) });
        [text, failed] = [next, ""];
      } catch (error) {
        if (abort.signal.aborted) return;
        wait = error.status >= 400 && error.status < 500 ? Math.max(30_000, everyMs) : everyMs;
        if (failed !== error.message) setState(was =>
          ({ path, data: was.path === path ? was.data : undefined, error }));
        failed = error.message;
      } finally { isBusy = false; }
      if (everyMs && !abort.signal.aborted) timer = setTimeout(run, wait);
    };
    again.current = run;
    document.addEventListener("visibilitychange", run);
    run();
    return () => { abort.abort(); clearTimeout(timer); document.removeEventListener("visibilitychange", run); };
  }, [path, everyMs]);
  const reload = useCallback(() => again.current(), []);
  return { ...(state.path === path ? state : {}), reload };
}

// Whether the caller may do this, by verb: a button for what it may not is not there. Until that `isKnown`, nothing.
export function useMay({ topic, group } = {}) {
  const { data } = useLive(at`v1/auth/may` + query({ topic, group }), 60_000);
  return Object.assign((resource, verb) => data !== undefined && data[resource].includes(verb),
    { isKnown: data !== undefined });
}

// Events as they come: `onEvent` gets each, until `signal` ends it. It goes on after `lastEvent`, `PARTITION:OFFSET`.
export async function follow(path, { signal, lastEvent, onEvent }) {
  const answer = await open(path, { accept: "text/event-stream", signal, lastEvent });
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const events = (rest + value).split(/\r?\n\r?\n/);
    rest = events.pop();
    for (const event of events) {
      const fields =
        Object.fromEntries(event.split(/\r?\n/).filter(line => !line.startsWith(":")).map(line =>
          line.match(/^(\w+): ?(.*)$/s)?.slice(1) ?? ["", ""]));
      if (fields.data) onEvent(fields.event ?? "message", JSON.parse(fields.data), fields.id);
    }
  }
}
