// Send one message: by hand, or one that was sent before, again.
import { useState } from "../vendor/hooks.js";
import { at, send } from "../api.js";
import { plural, visible } from "../format.js";
import { Field, Form, html } from "../parts.js";
import { to } from "../route.js";
import { placesOf } from "./topic.js";

export async function produce(topic, message) {
  const { ranges } = await send("POST", at`v1/topics/${topic}/messages`, { messages: [message] });
  return ranges[0];
}
// `name: value`, one a line.
export function headersOf(text) {
  const lines = text.split("\n").filter(line => line.trim());
  const wrong = lines.find(line => !line.includes(":"));
  if (wrong !== undefined) throw new Error(`a header is a line "name: value"; this is none: ${wrong}`);
  return Object.fromEntries(lines.map(line => [line.slice(0, line.indexOf(":")).trim(),
    line.slice(line.indexOf(":") + 1).trim()]));
}

export function Send({ info }) {
  const [sent, setSent] = useState(null);
  const go = async ({ key, tag, headers, body, partition, delay }) => {
    const named = headersOf(headers);
    setSent(await produce(info.topic,
      { body, ...(key ? { key } : {}), ...(tag ? { tag } : {}),
        ...(Object.keys(named).length ? { headers: named } : {}),
      ...(partition ? { partition } : {}), ...(delay ? { delay_ms: Math.round(delay * 1000) } : {}) }));
  };
  return html`<${Form} label="Send a message" yes="Send" onSend=${go} cls="form card">
      <${Field} label="Body"><textarea name="body" rows="6" spellcheck=${false} class="mono"></textarea><//>
      <div class="columns"><${Field} label="Key" hint="Messages of one key keep their order."><input name="key"
        maxlength="1024" autocomplete="off" spellcheck=${false} /><//>
      <${Field} label="Tag"><input name="tag" maxlength="127" autocomplete="off" spellcheck=${false} /><//>
      <${Field} label="Partition"><select name="partition"><option value="">by its
        key</option>${placesOf(info).map(one =>
          html`<option key=${one.partition} value=${one.partition}>${visible(one.partition)}</option>`)}</select><//>
      <${Field} label="Deliver in, seconds" hint="At most 40 days."><input name="delay" type="number" min="0.001"
        max="3456000" step="any" /><//></div>
      <${Field} label="Headers" hint="One a line: name: value"><textarea name="headers" rows="3" spellcheck=${false}
        class="mono"></textarea><//>
    <//>
    ${sent
      && html`<p role="status">${sent.delayed
        ? html`It waits for its time: <a href=${to("delayed", { topic: info.topic })}>delayed messages</a>.`
      : html`${plural(sent.count, "message")} sent: <a
        href=${to("topics", info.topic, "messages", sent.partition,
          String(sent.base_offset))}>${visible(sent.partition)} at ${sent.base_offset}</a>.`}</p>`}`;
}
