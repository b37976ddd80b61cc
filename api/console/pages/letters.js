// Dead letters of a group: counted by reason, found, sent back or deleted, some or all.
import { useEffect, useState } from "../vendor/hooks.js";
import { at, get, query as asked, send, useLive } from "../api.js";
import { count, cut, NONE, plural, preview, visible } from "../format.js";
import { Ask, Empty, Field, html, literal, Sql, State, Table, Time, Trouble } from "../parts.js";
import { ask, to } from "../route.js";
import { Body, Headers } from "./message.js";

const PAGE = 100;
export const keyOf = one => one.partition + "\n" + one.offset;
export const byPartition = letters =>
  letters.reduce((all, one) => { (all[one.partition] ??= []).push(one.offset); return all; }, {});
const failed = ({ failed_total: total, failed: some }) => total ? ` ${plural(total, "letter")} failed: ${some[0].code}.`
  : "";

export function Letters({ group, query, may, counts }) {
  const by = query.by ?? "reason", filter = { reason: query.reason, topic: query.topic, state: query.state };
  const reasons = useLive(at`v1/groups/${group}/dead-letters/counts`
    + asked({ by, topic: by === "reason" ? query.topic : undefined, reason: by === "topic" ? query.reason
      : undefined }), 10_000);
  const [page, setPage] = useState({ letters: [] }), [chosen, setChosen] = useState(new Set()),
    [version, setVersion] = useState(0), [open, setOpen] = useState(null);
  const about = JSON.stringify([group, filter, version]);
  const load = async (cursor, before, signal) => {
    try {
      const data = await get(at`v1/groups/${group}/dead-letters` + asked({ ...filter, limit: PAGE, cursor }),
        { signal });
      setPage({ letters: [...before, ...data.messages], total: data.total, cursor: data.cursor });
    } catch (error) { if (error.name !== "AbortError") setPage({ letters: before, error }); }
  };
  useEffect(() => {
    const abort = new AbortController();
    setChosen(new Set());
    load(undefined, [], abort.signal);
    return () => abort.abort();
  }, [about]);
  const again = () => { setVersion(version + 1); counts.reload(); reasons.reload(); };
  const { letters, total, cursor, error } = page, picked = letters.filter(one => chosen.has(keyOf(one)));
  const replay = body => async () => { const told = await send("POST", at`v1/groups/${group}/dead-letters/replay`,
    body); again(); return `${plural(told.replayed, "letter")} sent back.${failed(told)}`; };
  const remove = body => async () => { const told = await send("DELETE", at`v1/groups/${group}/dead-letters`, body);
    again(); return `${plural(told.deleted, "letter")} deleted.${failed(told)}`; };
  const filtered = Object.fromEntries(Object.entries(filter).filter(([, value]) => value));
  const fresh = { ...filtered, state: filter.state ?? "new" }, isAll = picked.length === 0;
  const number = !isAll ? picked.length : filter.state ? total : fresh.state === "new" && !filter.reason
    && !filter.topic ? counts.data?.new : total;
  const toggle = one => { const next = new Set(chosen); if (!next.delete(keyOf(one))) next.add(keyOf(one));
    setChosen(next); };
  const mayAct = may("group", "subscribe"), STATES = { new: "bad", sent_back: "good", deleted: "soft" };
  const columns = [
    mayAct && { name: "pick", head: html`<span class="unseen">Choose</span>`,
      cell: one =>
      html`<input type="checkbox" aria-label=${`Choose ${one.partition} ${one.offset}`}
        checked=${chosen.has(keyOf(one))} onChange=${() => toggle(one)} />` },
    { name: "dead", head: "Dead since",
      cell: one =>
      html`<button type="button" class="link" aria-expanded=${open === keyOf(one)}
        onClick=${() => setOpen(open === keyOf(one) ? null : keyOf(one))}><${Time} at=${one.append_time} /></button>` },
    { name: "state", head: "State",
      cell: one =>
      html`<span title=${one.sent_back_time ? `${one.sent_back_time} by ${visible(one.sent_back_by ?? "?")}`
        : undefined}><${State} kind=${STATES[one.state]}>${one.state.replace("_", " ")}<//>${one.sent_back_by
        && html` <small>by ${visible(one.sent_back_by)}</small>`}</span>` },
    { name: "reason", head: "Reason", cls: "clip", cell: one => one.reason ? visible(one.reason) : NONE },
    { name: "attempts", head: "Deliveries", num: true, cell: one => count(one.attempts) },
    { name: "origin", head: "From", cls: "name", cell: one => one.origin?.topic
      ? html`<a
        href=${to("topics", one.origin.topic, "messages", one.origin.partition,
          String(one.origin.offset))}>${visible(one.origin.partition)} ${one.origin.offset}</a>` : NONE },
    { name: "key", head: "Key", cls: "mono clip", cell: one => one.key ? visible(cut(one.key, 60)) : NONE },
    { name: "body", head: "Body", cls: "mono clip wide", cell: one => preview(one) },
  ].filter(Boolean);
  const what = isAll ? Object.entries(filtered).map(([name, value]) => `${name} ${visible(value)}`).join(", ") || "all"
    : "chosen", shown = letters.find(one => keyOf(one) === open);
  const where = [`\`group\` = ${literal(group)}`, filter.reason && `reason = ${literal(filter.reason)}`, filter.topic
    && `topic = ${literal(filter.topic)}`, filter.state
    && `state = ${literal(filter.state)}`].filter(Boolean).join(" AND ");
  return html`<div class="filter">
      <${Field} label="State"><select
        onChange=${event => ask({ state: event.target.value }, true)}>${[["", "not deleted"], ["new", "new"],
          ["sent_back", "sent back"],
          ["deleted", "deleted"]].map(([value, text]) =>
          html`<option key=${value} value=${value}
            selected=${value === (query.state ?? "")}>${text}</option>`)}</select><//>
      <${Field} label="Count by"><select onChange=${event => ask({ by: event.target.value })}><option
        value="reason">reason</option><option value="topic" selected=${by === "topic"}>topic</option></select><//>
      ${(filter.reason || filter.topic)
        && html`<p>Only ${[filter.reason && html`reason <b>${visible(filter.reason)}</b> `, filter.topic
          && html`topic <b>${visible(filter.topic)}</b> `]}<button type="button"
          onClick=${() => ask({ reason: undefined, topic: undefined }, true)}>All</button></p>`}</div>
    <${Trouble} error=${reasons.error} what="How many there are" />
    ${reasons.data
      && html`<${Table} id="counts" label=${`Dead letters by ${by}`}
        columns=${[{ name: "name", head: by === "reason" ? "Reason" : "Topic", cls: "wrap",
          cell: one =>
          html`<button type="button" class="link"
            onClick=${() => ask({ [by]: one[by] ?? undefined }, true)}>${one[by] === null || one[by] === "" ? NONE
            : visible(one[by])}</button>` },
        ...[["new", "New"], ["sent_back", "Sent back"],
          ["deleted", "Deleted"]].map(([name, head]) =>
          ({ name, head, num: true, cell: one => count(one[name]), sort: one => one[name] }))]}
          rows=${reasons.data.counts} keyOf=${one => String(one[by])} first="-new"
          empty=${html`<${Empty}>No message of the group is dead.<//>`}
          sql=${html`<${Sql} view="mq_dead_letters"
            query=${`SELECT ${by}, state, count(*) FROM mq_dead_letters WHERE ${where} GROUP BY ALL`} />`} />`}
    ${total > 0
      && html`<div class="buttons" role="group" aria-label="Change dead letters"><b>${isAll
        ? (what === "all" ? "All that are new" : `All with ${what}`) : plural(picked.length, "chosen letter")}:</b>
      ${mayAct
        && html`<${Ask} label="Send back" isDanger=${false} isOff=${!number} title="Send dead letters back"
          yes=${`Send back ${count(number)}`} run=${replay(isAll ? fresh : { offsets: byPartition(picked) })}
        says=${html`<p>${plural(number ?? 0, "dead letter")} (${what}) go back to where they came from: every group that
          consumes the topic gets them again.</p>`} />
      <${Ask} label="Send back to this group" isDanger=${false} isOff=${!number}
        title="Send dead letters back to this group" yes=${`Send back ${count(number)}`}
        run=${replay({ ...(isAll ? fresh : { offsets: byPartition(picked) }), to: "retry" })}
        says=${html`<p>${plural(number ?? 0, "dead letter")} (${what}) are delivered again,
          to ${visible(group)} alone.</p>`} />
      <${Ask} label="Delete" isOff=${!number} title="Delete dead letters" yes=${`Delete ${count(number)}`}
        run=${remove(isAll ? fresh : { offsets: byPartition(picked) })}
        says=${html`<p>${plural(number ?? 0, "dead letter")} (${what}) are deleted: lists show them no more, and nothing
          sends them back. Their log keeps them until its retention.</p>`} />`}</div>`}
    <${Trouble} error=${error} what="Dead letters" />
    <${Table} label="Dead letters" columns=${columns} rows=${letters} keyOf=${keyOf}
      empty=${total === 0 ? html`<${Empty}>No dead letters like these.<//>`
        : html`<p class="calm">${error ? "" : "Loading …"}</p>`}
        total=${total > 0 ? `${count(letters.length)} of ${count(total)}` : undefined}
      sql=${html`<${Sql} view="mq_dead_letters"
        query=${`SELECT * FROM mq_dead_letters WHERE ${where} ORDER BY dead_time DESC`} />`} />
    ${cursor && html`<p><button type="button" onClick=${() => load(cursor, letters)}>More</button></p>`}
    ${shown
      && html`<section class="card" aria-label="A dead letter"><div
        class="head"><h2>${visible(shown.partition)} at ${shown.offset}</h2><button type="button"
        onClick=${() => setOpen(null)}>Close</button></div><p>${visible(shown.reason ?? "")}</p><${Headers}
        of=${shown.headers} /><${Body} key=${open} message=${shown} as=${query.as}
        address=${as => to("groups", group, "dead-letters", { ...query, as })} /></section>`}`;
}
