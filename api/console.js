"use strict";
const TOPICS_SHOWN = 50, EVERY_MS = 1000;
const last = new Map();
// The names after which the visited pages begin; the last page is shown.
const pages = [null];
let following = null;
const whole = new Intl.NumberFormat("en");
const node = (tag, text, cls) => { const n = document.createElement(tag); if (text !== undefined) n.textContent = text; if (cls) n.className = cls; return n; };
const bytes = n => { const u = ["B", "KiB", "MiB", "GiB", "TiB"]; let i = 0; while (n >= 1024 && i < u.length - 1) { n /= 1024; i++; } return (i ? n.toFixed(1) : n) + " " + u[i]; };

// The key lives in this tab alone, and ends with it. It goes into one header of requests to this service.
const KEY = "deltamq.key";
const FORM = /^[A-Za-z0-9._~+/-]+=*$/;
let refused = false;

async function get(path) {
  const key = sessionStorage.getItem(KEY), headers = { accept: "application/json" };
  if (key !== null) headers.authorization = "Bearer " + key;
  const answer = await fetch(path, { headers, cache: "no-store", credentials: "omit", redirect: "error" });
  if (!answer.ok) throw Object.assign(new Error(answer.status), { status: answer.status });
  return answer.json();
}

// What a refusal hides is left out; anything else is an error of the whole page.
const visible = (promise, instead) => promise.catch(e => { if (e.status === 403) return instead; throw e; });

function askedForKey() {
  const has = sessionStorage.getItem(KEY) !== null;
  document.getElementById("access").hidden = !(refused || has);
  document.getElementById("key").hidden = document.getElementById("use").hidden = has && !refused;
  document.getElementById("forget").hidden = !has;
}
document.getElementById("access").onsubmit = event => {
  event.preventDefault();
  const field = document.getElementById("key"), key = field.value.trim();
  field.value = "";
  field.setCustomValidity(FORM.test(key) ? "" : "a key has letters, digits and - . _ ~ + / = only");
  if (!field.reportValidity()) { field.setCustomValidity(""); return; }
  sessionStorage.setItem(KEY, key);
  refused = false;
  askedForKey();
};
document.getElementById("forget").onclick = () => { sessionStorage.removeItem(KEY); refused = false; last.clear(); askedForKey(); };

function rate(name, offset, now) {
  const before = last.get(name);
  last.set(name, { offset, now });
  return before && now > before.now ? Math.max(0, (offset - before.offset) * 1000 / (now - before.now)) : 0;
}

function topicSection(t, now, sum) {
  const section = node("section"), h = node("h2", t.topic);
  const body = node("tbody");
  for (const p of t.partitions) {
    const r = rate(t.id + p.partition, p.max_offset, now);
    sum.messages += p.messages || 0; sum.bytes += p.bytes || 0; sum.rate += r; sum.partitions++;
    const row = node("tr");
    if (p.max_offset === null) {
      const stopped = node("td", p.state, "stopped");
      stopped.colSpan = 8;
      row.append(node("td", p.partition), stopped);
      body.append(row);
      continue;
    }
    row.append(node("td", p.partition + closed(p), p.state === "serving" ? "" : "stopped"), node("td", whole.format(p.min_offset)), node("td", whole.format(p.max_offset)),
      node("td", whole.format(p.messages)), node("td", r ? whole.format(Math.round(r)) : "–", r ? "live" : ""),
      node("td", bytes(p.bytes)), node("td", whole.format(p.files)), node("td", whole.format(p.version)),
      node("td", p.last_append_time ? p.last_append_time.replace("T", " ").slice(0, 19) : "–"));
    body.append(row);
  }
  h.append(node("small", `${t.partitions.length} partitions · ${t.order_strategy}${t.partitioner === "kafka" ? " · keys by Kafka's hash" : ""} · epoch ${t.routes_epoch}`));
  const head = node("tr");
  for (const c of ["partition", "min offset", "max offset", "messages", "messages/s", "stored", "files", "version", "last append (UTC)"]) head.append(node("th", c));
  const table = node("table"), thead = node("thead");
  thead.append(head); table.append(thead, body); section.append(h, table);
  return section;
}

function figures(list) {
  const box = document.getElementById("figures");
  box.replaceChildren(...list.map(([value, label]) => { const f = node("div", undefined, "figure"); f.append(node("b", value), node("span", label)); return f; }));
}

function turned(names) {
  document.getElementById("pages").hidden = pages.length === 1 && following === null;
  document.getElementById("back").disabled = pages.length === 1;
  document.getElementById("more").disabled = following === null;
  document.getElementById("from").textContent = names.length ? `${names[0]} to ${names.at(-1)}` : "";
}
document.getElementById("back").onclick = () => { if (pages.length > 1) pages.pop(); };
document.getElementById("more").onclick = () => { if (following !== null && pages.at(-1) !== following) pages.push(following); };

// What may not be done at a partition or broker, in words; empty if everything may.
function closed(one) {
  const no = [one.readable ? "" : "not readable", one.writable ? "" : "not writable"].filter(Boolean).join(", ");
  return no && ` (${no}${one.reason ? ": " + one.reason : ""})`;
}

async function refresh() {
  const state = document.getElementById("state");
  try {
    const after = pages.at(-1);
    const [cluster, names] = await Promise.all([visible(get("/v1/cluster"), null),
      visible(get(`/v1/topics?limit=${TOPICS_SHOWN}` + (after === null ? "" : "&after=" + encodeURIComponent(after))), { topics: [] })]);
    following = names.next ?? null;
    const topics = (await Promise.allSettled(names.topics.map(n => get("/v1/topics/" + encodeURIComponent(n))))).filter(r => r.status === "fulfilled").map(r => r.value);
    const now = performance.now(), sum = { messages: 0, bytes: 0, rate: 0, partitions: 0 };
    const sections = topics.map(t => topicSection(t, now, sum));
    if (!sections.length) sections.push(node("div", after === null ? "No topics yet. Produce to one and it appears here." : "No more topics.", "empty"));
    turned(names.topics);
    document.getElementById("topics").replaceChildren(...sections);
    // Who may not see the cluster has shown a key, so the service is not open.
    document.getElementById("open").hidden = cluster === null || cluster.auth !== false;
    const missing = document.getElementById("missing"), gone = cluster === null ? [] : cluster.missing_jobs;
    missing.textContent = `No job ${gone.map(one => one.job).join(" and ")} runs: ${gone.map(one => one.means).join(", and ")}. Start deltamq jobs run.`;
    missing.hidden = !gone.length;
    const stopped = document.getElementById("stopped"), halted = cluster === null ? [] : cluster.stopped;
    stopped.textContent = `Stopped: ${halted.map(one => `${one.queue ?? one.partition} of ${one.topic} (${one.code})`).join(", ")}. Run deltamq verify.`;
    stopped.hidden = !halted.length;
    document.getElementById("where").textContent = cluster === null ? "" : cluster.warehouse;
    const of = cluster === null || pages.length > 1 || following ? " on this page" : "";
    const shown = [[whole.format(sum.messages), "messages" + of], [whole.format(Math.round(sum.rate)), "messages/s" + of], [bytes(sum.bytes), "stored" + of]];
    if (cluster === null) shown.unshift([whole.format(topics.length), "topics" + of], [whole.format(sum.partitions), "partitions" + of]);
    else {
      shown.unshift([whole.format(cluster.topics), "topics"], [whole.format(cluster.brokers.reduce((n, b) => n + b.partitions, 0)), "partitions"]);
      shown.push([whole.format(cluster.brokers.length), "brokers" + cluster.brokers.map(b => closed(b) && `, ${b.broker}${closed(b)}`).join("")]);
    }
    figures(shown);
    refused = false;
    state.textContent = "serving"; state.className = "state";
  } catch (e) {
    refused = e.status === 401;
    if (refused) for (const id of ["topics", "figures", "where"]) document.getElementById(id).replaceChildren();
    state.textContent = refused ? (sessionStorage.getItem(KEY) === null ? "a key is needed" : "the key is refused") : "not reachable";
    state.className = "state down";
  }
  askedForKey();
  setTimeout(refresh, EVERY_MS);
}
refresh();
