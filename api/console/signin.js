// Signing in at the identity provider: the code flow with PKCE, as a public client. The tokens live in this tab alone,
// and end with it. The browser comes back to this page with a code, which is good once, with this tab's verifier only.
import { at, before, forgetKey, get, refusal, renewKey, useKey } from "./api.js";

const PENDING = "deltamq.signin", TOKENS = "deltamq.tokens", SOON_MS = 30_000;

const stored = name => JSON.parse(sessionStorage.getItem(name) ?? "null");
const encoded = bytes => btoa(String.fromCharCode(...bytes)).replace(/\+/g, "-").replace(/\//g, "_")
  .replace(/=+$/, "");
const random = () => encoded(crypto.getRandomValues(new Uint8Array(32)));
const here = () => location.origin + location.pathname;

// How people sign in here: all null if they do not.
export const offered = () => get(at`v1/auth/sign-in`);
export const forgetTokens = () => sessionStorage.removeItem(TOKENS);
export const isSignedIn = () => sessionStorage.getItem(TOKENS) !== null;

export async function begin(provider) {
  if (!crypto.subtle) throw new Error("A browser signs in over https only: open this page so.");
  const pending = { provider, state: random(), nonce: random(), verifier: random(), hash: location.hash };
  const hashed = await crypto.subtle.digest("SHA-256", new TextEncoder().encode(pending.verifier));
  const { authorization_endpoint, client_id, scope, audience } = provider;
  sessionStorage.setItem(PENDING, JSON.stringify(pending));
  location.assign(authorization_endpoint + "?" + new URLSearchParams({ response_type: "code", client_id, scope,
    redirect_uri: here(), state: pending.state, nonce: pending.nonce, code_challenge: encoded(new Uint8Array(hashed)),
    code_challenge_method: "S256", ...(audience ? { audience } : {}) }));
}

async function asked(provider, fields) {
  const answer = await fetch(provider.token_endpoint, { method: "POST", cache: "no-store", credentials: "omit",
    redirect: "error", referrerPolicy: "no-referrer",
    body: new URLSearchParams({ client_id: provider.client_id, ...fields }) });
  const told = await answer.json().catch(() => ({}));
  if (!answer.ok || !told.access_token) throw new Error(told.error_description ?? told.error
    ?? `the provider answered ${answer.status}`);
  return told;
}

function keep(provider, told, earlier) {
  const ends = told.expires_in ? Date.now() + 1000 * told.expires_in : null;
  sessionStorage.setItem(TOKENS, JSON.stringify({ provider, ends, refresh: told.refresh_token ?? earlier?.refresh,
    id: told.id_token ?? earlier?.id }));
}

// The token came from the provider itself, over TLS; it must be the answer to this very sign-in.
function check(told, { provider, nonce }) {
  if (!provider.scope.split(" ").includes("openid")) return;
  const part = told.id_token?.split(".")[1];
  if (!part) throw new Error("the provider sent no ID token");
  const claims = JSON.parse(atob(part.replace(/-/g, "+").replace(/_/g, "/")));
  if (claims.nonce !== nonce) throw new Error("the provider answers another sign-in (nonce)");
  if (claims.iss !== provider.issuer || ![claims.aud].flat().includes(provider.client_id)) {
    throw new Error("the ID token is of another issuer, or for another client");
  }
}

// If the browser comes back from the provider: take the code out of the address, and turn it into a token.
export async function finish() {
  const answer = new URLSearchParams(location.search), pending = stored(PENDING);
  if (!answer.has("state") || !(answer.has("code") || answer.has("error"))) return;
  sessionStorage.removeItem(PENDING);
  history.replaceState(null, "", location.pathname + (pending?.hash ?? ""));
  try {
    if (!pending || answer.get("state") !== pending.state) throw new Error("this tab did not begin it (state)");
    if (answer.has("iss") && answer.get("iss") !== pending.provider.issuer) throw new Error("another issuer answers");
    if (answer.has("error")) throw new Error(answer.get("error_description") ?? answer.get("error"));
    const told = await asked(pending.provider, { grant_type: "authorization_code", code: answer.get("code"),
      redirect_uri: here(), code_verifier: pending.verifier });
    check(told, pending);
    if (!useKey(told.access_token)) throw new Error("the access token is no bearer token");
    keep(pending.provider, told);
  } catch (error) { refusal.set(`Signing in has failed: ${error.message}.`); }
}

let renewing = null;
async function renew() {
  const tokens = stored(TOKENS);
  try {
    const told = await asked(tokens.provider, { grant_type: "refresh_token", refresh_token: tokens.refresh });
    renewKey(told.access_token);
    keep(tokens.provider, told, tokens);
  } catch {
    // The token that is there is used until the service refuses it; then people sign in again.
    sessionStorage.setItem(TOKENS, JSON.stringify({ ...tokens, refresh: undefined }));
  } finally { renewing = null; }
}

before(async () => {
  const tokens = stored(TOKENS);
  if (tokens?.refresh && tokens.ends !== null && Date.now() > tokens.ends - SOON_MS) await (renewing ??= renew());
});

// Forget the tokens, and end the session at the provider if it says where.
export function signOut() {
  const tokens = stored(TOKENS);
  forgetTokens();
  forgetKey();
  if (tokens?.provider.end_session_endpoint) location.assign(tokens.provider.end_session_endpoint + "?"
    + new URLSearchParams({ client_id: tokens.provider.client_id, post_logout_redirect_uri: here(),
      ...(tokens.id ? { id_token_hint: tokens.id } : {}) }));
}
