// How numbers, times, sizes and bodies are written. Nothing here trusts what it formats.

const WHOLE = new Intl.NumberFormat("en");
const SHORT = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });
export const NONE = "–";

export const count = n => n === null || n === undefined ? NONE : WHOLE.format(n);
export const short = n => n === null || n === undefined ? NONE : Math.abs(n) < 10_000 ? WHOLE.format(Math.round(n))
  : SHORT.format(n);
export const rate = n => n === null || n === undefined ? NONE : n === 0 ? "0" : n < 10 ? n.toFixed(1) : short(n);
export const plural = (n, one, more = one + "s") => `${count(n)} ${n === 1 ? one : more}`;
export const share = n => n === null || n === undefined ? NONE : (100 * n).toFixed(n > 0.99 && n < 1 ? 2 : 1) + " %";

export function bytes(n) {
  if (n === null || n === undefined) return NONE;
  const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
  let unit = 0;
  while (n >= 1024 && unit < units.length - 1) { n /= 1024; unit++; }
  return (unit ? n.toFixed(1) : Math.round(n)) + " " + units[unit];
}

export function duration(ms) {
  if (ms === null || ms === undefined) return NONE;
  if (ms < 1000) return Math.round(ms) + " ms";
  const s = ms / 1000;
  if (s < 60) return s.toFixed(s < 10 ? 1 : 0) + " s";
  if (s < 3600) return two(s, 60, "min", "s");
  return s < 86400 ? two(s / 60, 60, "h", "min") : two(s / 3600, 24, "d", "h");
}
function two(n, of, large, small) {
  const rest = Math.floor(n % of);
  return `${count(Math.floor(n / of))} ${large}` + (rest ? ` ${rest} ${small}` : "");
}

const digits = (n, width = 2) => String(n).padStart(width, "0");
// A time in the viewer's zone. What no calendar of the browser can show stays as it was sent.
export function localTime(text, withMillis = false) {
  const at = new Date(text), year = at.getFullYear();
  if (Number.isNaN(year) || year < 0 || year > 9999) return visible(text);
  return `${digits(year, 4)}-${digits(at.getMonth() + 1)}-${digits(at.getDate())} ` +
    `${digits(at.getHours())}:${digits(at.getMinutes())}:${digits(at.getSeconds())}` +
    (withMillis ? "." + digits(at.getMilliseconds(), 3) : "");
}
export const ago = (text, now = Date.now()) => {
  const ms = now - Date.parse(text);
  return Number.isNaN(ms) ? NONE : ms < 0 ? "in " + duration(-ms) : duration(ms) + " ago";
};

// Characters that are not seen, or that turn text round, written so that they are. `oneLine` also shows ends of lines.
const UNSEEN =
  /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb]/g;
const LINES = /[\n\t]/g;
const written = c => {
  const code = c.charCodeAt(0);
  if (code < 0x20) return String.fromCharCode(0x2400 + code);
  return code === 0x7f ? "\u2421" : `\u27e8U+${code.toString(16).toUpperCase().padStart(4, "0")}\u27e9`;
};
export function visible(value, oneLine = true) {
  const text = String(value ?? "").replace(UNSEEN, written);
  return oneLine ? text.replace(LINES, written) : text;
}
// A word of a shell's command, whatever a name holds.
export const sh = text => /^[\w@%+=:,./-]+$/.test(text) ? text : "'" + text.replace(/'/g, "'\\''") + "'";
export const cut = (text, length) => text.length > length ? text.slice(0, length) + "…" : text;

// Bodies -------------------------------------------------------------------------------------------------------------

export const BODY_SHOWN = 65536;

export function bodyBytes(message) {
  if (typeof message.body_base64 !== "string") return new TextEncoder().encode(message.body ?? "");
  const binary = atob(message.body_base64), out = new Uint8Array(binary.length);
  for (let i = 0; i < binary.length; i++) out[i] = binary.charCodeAt(i);
  return out;
}
export const bodyText = message => typeof message.body_base64 === "string"
  ? new TextDecoder().decode(bodyBytes(message)) : message.body ?? "";

export function preview(message, length = 160) {
  if (typeof message.body_base64 !== "string") return cut(visible((message.body ?? "").slice(0, length + 1)), length);
  return cut(visible(new TextDecoder().decode(bodyBytes({ body_base64: message.body_base64.slice(0, 4 * length) }))),
    length);
}

export function isJson(text) {
  if (!/^\s*[{[]/.test(text)) return false;
  try { JSON.parse(text); return true; } catch { return false; }
}

// JSON whose numbers are written again as they were, where the browser can.
export const parsedExactly = text => JSON.parse(text, (_, value, at) => typeof value === "number" && JSON.rawJSON
  && at?.source !== undefined && at.source !== String(value) ? JSON.rawJSON(at.source) : value);

const TOKEN = /"(?:[^"\\]|\\.)*"|[{}[\],:]|[^\s{}[\],:"]+/g;
const DEPTH_MAX = 24;
// JSON with indents, from its own tokens: numbers stay as they were written, whatever their size.
export function prettyJson(text) {
  const out = [];
  let depth = 0, before = "";
  const line = () => out.push("\n", "  ".repeat(Math.min(depth, DEPTH_MAX)));
  for (const [token] of text.matchAll(TOKEN)) {
    if (token === "}" || token === "]") {
      depth--;
      if (before !== "{" && before !== "[") line();
    } else if (before === "{" || before === "[" || before === ",") line();
    if (token === "{" || token === "[") depth++;
    out.push(token === ":" ? ": " : token);
    before = token;
  }
  return out.join("");
}

export function hex(bytes) {
  const lines = [];
  for (let at = 0; at < bytes.length; at += 16) {
    const row = [...bytes.subarray(at, at + 16)];
    const pairs = row.map(b => digits(b.toString(16)));
    lines.push(digits(at.toString(16), 8) + "  " + pairs.slice(0, 8).join(" ").padEnd(23) + "  "
      + pairs.slice(8).join(" ").padEnd(23) +
      "  " + row.map(b => b >= 32 && b < 127 ? String.fromCharCode(b) : "·").join(""));
  }
  return lines.join("\n");
}
