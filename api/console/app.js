// The frame around all pages: where they are, who asks, and what the whole service says of itself.
import { useEffect, useRef, useState } from "./vendor/hooks.js";
import { Component, render } from "./vendor/preact.js";
import { at, forgetKey, hasKey, reachable, refusal, session, useKey, useLive } from "./api.js";
import { visible } from "./format.js";
import { html, News, Nothing } from "./parts.js";
import { to, useRoute } from "./route.js";
import { Access } from "./pages/access.js";
import { Audit } from "./pages/audit.js";
import { Cluster } from "./pages/cluster.js";
import { Delayed } from "./pages/delayed.js";
import { Group } from "./pages/group.js";
import { Groups } from "./pages/groups.js";
import { Jobs } from "./pages/jobs.js";
import { Overview } from "./pages/overview.js";
import { Settings } from "./pages/settings.js";
import { Topic } from "./pages/topic.js";
import { Topics } from "./pages/topics.js";
import { begin, finish, forgetTokens, isSignedIn, offered, signOut } from "./signin.js";

const PAGES = [
  ["", "Overview", Overview], ["topics", "Topics", Topics, Topic], ["groups", "Groups", Groups, Group],
  ["delayed", "Delayed", Delayed],
  ["jobs", "Jobs", Jobs], ["cluster", "Cluster", Cluster], ["access", "Access", Access, Access],
  ["audit", "Audit", Audit], ["settings", "Settings", Settings],
];

// A page that fails says so; the others go on.
class Guard extends Component {
  componentDidCatch(error) { this.setState({ error }); }
  render({ children }, { error }) {
    return error
      ? html`<p class="trouble" role="alert">This page has failed: ${visible(error.message)}. Please report it with what
        it showed.</p>` : children;
  }
}

function SignIn() {
  const [at, setAt] = useState(null), [problem, setProblem] = useState("");
  useEffect(() => { offered().then(setAt, () => {}); }, []);
  if (!at?.authorization_endpoint) return null;
  return html`<p><button type="button" class="solid" onClick=${() => begin(at).catch(error =>
      setProblem(error.message))}>Sign in at ${new URL(at.issuer).host}</button></p>
    ${problem && html`<p class="trouble" role="alert">${visible(problem)}</p>`}<p class="calm">Or with a key:</p>`;
}

function KeyForm({ why }) {
  const [text, setText] = useState(""), [isWrong, setWrong] = useState(false);
  const sent = event => { event.preventDefault(); forgetTokens(); setWrong(!useKey(text.trim())); setText(""); };
  return html`<form class="key card" onSubmit=${sent} autocomplete="off">
    <h1 tabindex="-1">DeltaMQ</h1><p role="alert">${visible(why)}</p>
    <${SignIn} />
    <label class="field"><span>Key, or a token of the identity provider</span>
      <input type="password" value=${text} onInput=${event => setText(event.target.value)} autocomplete="off"
        maxlength="16384" spellcheck=${false} aria-invalid=${isWrong} autofocus /></label>
    ${isWrong && html`<p class="trouble" role="alert">A key has letters, digits and - . _ ~ + / = only.</p>`}
    <button type="submit" class="solid">Use</button>
    <p class="calm">It stays in this tab, and ends with it. An administrator makes one: <code>deltamq auth key create
      NAME</code></p>
  </form>`;
}

function Nav({ now }) {
  const [isOpen, setOpen] = useState(false);
  useEffect(() => setOpen(false), [now]);
  return html`<button type="button" class="menu quiet" aria-expanded=${isOpen} aria-controls="nav"
    onClick=${() => setOpen(!isOpen)}>Menu</button>
    <nav id="nav" class=${isOpen ? "open" : ""} aria-label="Pages">${PAGES.map(([name, text]) =>
      html`<a key=${name} href=${name ? to(name) : "#/"} aria-current=${name === now ? "page"
        : undefined}>${text}</a>`)}</nav>`;
}

function Shell() {
  const why = refusal.use(), isUp = reachable.use(), { path, query } = useRoute();
  const cluster = useLive(at`v1/cluster`, 6000), may = useLive(why ? null : at`v1/auth/may`, 60_000);
  const main = useRef(), page = path.slice(0, 2).join("/"), before = useRef(page);
  useEffect(() => {
    if (before.current !== page) main.current?.querySelector("h1")?.focus();
    before.current = page;
  }, [page]);
  if (why) return html`<main><${KeyForm} why=${why} /></main>`;
  const found = PAGES.find(([name]) => name === (path[0] ?? ""));
  const Page = path.length > 1 ? found?.[3] : found?.[2];
  const who = may.data?.principal;
  return html`<a class="skip" href="#main" onClick=${event => { event.preventDefault(); main.current.focus(); }}>To the
    page</a>
    <header><a class="brand" href="#/">DeltaMQ</a><span class="where"
      title="warehouse">${visible(cluster.data?.warehouse ?? "")}</span>
      <span class=${isUp ? "state good" : "state bad"} role="status">${isUp ? "serving" : "not reachable"}</span>
      ${hasKey()
        && html`<span class="who">${who ? visible(who) + " " : ""}${isSignedIn()
          ? html`<button type="button" class="quiet" onClick=${signOut}>Sign out</button>`
          : html`<button type="button" class="quiet" onClick=${forgetKey}>Forget the key</button>`}</span>`}</header>
    <${Nav} now=${path[0] ?? ""} />
    <main id="main" tabindex="-1" ref=${main}>
      ${cluster.data?.auth === false
        && html`<p class="open">Without authentication: anyone who can reach this port may read, write and delete
          everything. Set <code>service.auth</code>.</p>`}
      ${!isUp
        && html`<p class="trouble" role="alert">The service does not answer. What is shown is from before; it is asked
          again by itself.</p>`}
      <${Guard} key=${path.join("/")}>${Page ? html`<${Page} path=${path} query=${query} cluster=${cluster} />`
        : html`<h1 tabindex="-1">No such page</h1><${Nothing} />`}<//>
    </main><${News} />`;
}

const App = () => html`<${Shell} key=${session.use()} />`;
await finish();
render(html`<${App} />`, document.getElementById("app"));
