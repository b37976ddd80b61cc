// Addresses: #/topics/orders/messages?partition=..&offset=.. says which page is shown, and in which state.
import { useEffect, useState } from "./vendor/hooks.js";

function parsed(hash) {
  const [path, search] = hash.replace(/^#\/?/, "").split(/\?(.*)/s);
  const decoded = text => { try { return decodeURIComponent(text); } catch { return text; } };
  return { path: path.split("/").filter(Boolean).map(decoded),
    query: Object.fromEntries(new URLSearchParams(search ?? "")) };
}

// The address of a page; the last argument may be what is asked of it.
export function to(...parts) {
  const asked = typeof parts.at(-1) === "object" ? parts.pop() : {};
  const given = Object.entries(asked).filter(([, value]) => value !== undefined && value !== null && value !== "");
  return "#/" + parts.map(encodeURIComponent).join("/") + (given.length ? "?" + new URLSearchParams(given) : "");
}
export const go = (...parts) => { location.hash = to(...parts); };

// Change what is asked of the page that is shown; without a step of its own for the button "back", unless `step`.
export function ask(changes, step = false) {
  const { path, query } = parsed(location.hash), next = to(...path, { ...query, ...changes });
  if (next === location.hash) return;
  if (step) location.hash = next;
  else {
    history.replaceState(null, "", next);
    dispatchEvent(new HashChangeEvent("hashchange"));
  }
}

export function useRoute() {
  const [hash, setHash] = useState(location.hash);
  useEffect(() => {
    const changed = () => setHash(location.hash);
    addEventListener("hashchange", changed);
    return () => removeEventListener("hashchange", changed);
  }, []);
  return parsed(hash);
}
