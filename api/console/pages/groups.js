// All groups: found by name, with how far behind each is.
import { useEffect, useMemo } from "../vendor/hooks.js";
import { at, useLive } from "../api.js";
import { count, duration, NONE, plural, rate, visible } from "../format.js";
import { groupNow, useGroupDetails, useNewest } from "../now.js";
import { Empty, Field, html, Sql, State, Table, Waiting } from "../parts.js";
import { ask, to } from "../route.js";
import { Head } from "./head.js";

const SORTED_MAX = 200;

export const GroupState = ({ of }) => of.error ? html`<${State} kind="bad">${visible(of.error.message)}<//>`
  : of.paused
    ? html`<span title=${`since ${of.paused.since_time}${of.paused.by ? " by " + visible(of.paused.by) : ""}`}><${State}
      kind="warn">paused: ${visible(of.paused.reason)}<//></span>` : of.isStuck
      ? html`<${State} kind="warn">nobody consumes<//>` : null;

export function Groups({ query }) {
  const names = useLive(at`v1/groups`, 30_000), details = useGroupDetails();
  const wanted = (query.q ?? "").toLowerCase(), listed = names.data?.groups;
  const shown = useMemo(() => (listed ?? []).filter(name => name.toLowerCase().includes(wanted)), [listed, wanted]);
  const rows = shown.map(name => groupNow(name, details.of(name)));
  const consumed = useNewest("consumed", "group"), oldest = useNewest("oldest_s", "group");
  const isByName = !query.sort || /^-?(group|consumed|oldest)$/.test(query.sort), isEach = isByName
    || shown.length > SORTED_MAX;
  useEffect(() => { if (!isEach) details.want(shown); }, [isEach, shown]);
  const number = (name, head, key = name, hint) =>
    ({ name, head, hint, num: true, cell: one => one.info ? count(one[key]) : "", sort: one => one[key] });
  const columns = [
    { name: "group", head: "Group", cls: "name",
      cell: one => html`<a href=${to("groups", one.group)}>${visible(one.group)}</a>`, sort: one => one.group },
    { name: "kind", head: "Kind", cell: one => one.strategy ?? "", sort: one => one.strategy },
    { name: "topics", head: "Topics", cls: "clip",
      cell: one =>
      one.topics?.map((topic, i) =>
        html`${i ? ", " : ""}<a key=${topic} href=${to("topics", topic)}>${visible(topic)}</a>`) ?? "" },
    number("lag", "Lag", "lag", "messages that it has not consumed"),
      consumed && { name: "consumed", head: "Consumed /s", num: true, cell: one => rate(consumed[one.group] ?? 0),
        sort: one => consumed[one.group] ?? 0 },
      oldest && { name: "oldest", head: "Oldest", num: true, hint: "the oldest message that it has not consumed",
        cell: one => one.group in oldest ? duration(oldest[one.group] * 1000) : NONE, sort: one => oldest[one.group] },
      number("in_flight", "In flight", "inFlight", "messages that clients hold"),
      number("retries", "Retries", "retries", "messages that wait to be delivered again"),
    number("dead", "Dead, new"), number("clients", "Clients"),
      { name: "state", head: "State", cell: one => html`<${GroupState} of=${one} />` },
  ].filter(Boolean);
  return html`<${Head} title="Groups" />
    <div class="filter"><${Field} label="Find"><input type="search" value=${query.q ?? ""}
      onInput=${event => ask({ q: event.target.value })} placeholder="part of a name" spellcheck=${false} /><//>
      <p class="count" role="status">${listed && (wanted ? `${count(shown.length)} of ${plural(listed.length, "group")}`
        : plural(listed.length, "group"))}</p></div>
    <${Waiting} of=${names} what="The list of groups" />
    ${!isByName && isEach
      && html`<p class="calm">Sorted are the groups that were seen so far. Find fewer than ${SORTED_MAX}, and all of
        them are.</p>`}
    ${listed
      && html`<${Table} label="Groups" columns=${columns} rows=${rows} keyOf=${one => one.group} first="group"
        onSeen=${isEach ? seen => details.want(seen.map(one => one.group)) : undefined}
      empty=${wanted ? html`<${Empty}>No group has this in its name.<//>`
        : html`<${Empty} command="deltamq consume orders --group billing">No groups yet. A group is made when its first
          client asks for messages.<//>`}
      sql=${html`<${Sql} view="mq_lag"
        query=${"SELECT `group`, sum(lag) AS lag FROM mq_lag GROUP BY `group` ORDER BY lag DESC"} />`} />`}`;
}
