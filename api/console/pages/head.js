// The heading of a page: where it is, its title, and what can be done with all of it.
import { useEffect } from "../vendor/hooks.js";
import { visible } from "../format.js";
import { html } from "../parts.js";

export function Head({ title, above = [], children }) {
  const text = visible(title);
  useEffect(() => { document.title = [text, ...above.map(([name]) => visible(name)).reverse(), "DeltaMQ"].join(" · ");
    }, [text]);
  return html`<div class="head">${above.length > 0
    && html`<nav class="above"
      aria-label="Above">${above.map(([name, href]) => html`<a key=${href} href=${href}>${visible(name)}</a>`)}</nav>`}
    <h1 tabindex="-1">${text}</h1>${children && html`<div class="buttons">${children}</div>`}</div>`;
}
