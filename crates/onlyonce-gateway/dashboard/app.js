// The shell: signing in, finding the page that the address names, and what stands around it.

import { html, render, useEffect, useState } from "./vendor/preact-htm.js";
import { ask, whenSignedOut } from "./api.js";
import { Audit } from "./audit.js";
import { Keys } from "./keys.js";
import { KeyPage } from "./key.js";
import { start, stop, useLive } from "./live.js";
import { Outbox } from "./outbox.js";
import { Overview } from "./overview.js";
import { Notice } from "./parts.js";
import { Shadow } from "./shadow.js";
import { onTheme, theme, toggleTheme } from "./theme.js";
import { Unknown } from "./unknown.js";
import { timeOfDay } from "./words.js";

const TABS = [["", "Overview"], ["keys", "Keys"], ["unknown", "Unknown"], ["outbox", "Outbox"], ["shadow", "Shadow"], ["audit", "Audit"]];

/** The token that the address carries for signing in. It is taken out of the address, so that neither the
 * history nor a copied link keeps it. */
function takeToken() {
  const token = /^#token=([\w-]+)$/.exec(location.hash)?.[1];
  if (token) history.replaceState(null, "", location.pathname + location.search);
  return token;
}

/** What this browser may do: by its session, or by the token in the address. */
async function session(token) {
  try {
    return await ask("GET", "session");
  } catch (error) {
    if (!token) throw error;
    return ask("POST", "session", { token });
  }
}

function useAddress() {
  const read = () => {
    const [path, search] = location.hash.replace(/^#\/?/, "").split("?");
    return { parts: path.split("/").map(decodeURIComponent), search: new URLSearchParams(search ?? "") };
  };
  const [address, setAddress] = useState(read);
  useEffect(() => {
    const moved = () => setAddress(read());
    addEventListener("hashchange", moved);
    return () => removeEventListener("hashchange", moved);
  }, []);
  return address;
}

function ThemeSwitch() {
  const [current, setCurrent] = useState(theme());
  useEffect(() => onTheme(setCurrent), []);
  const other = current === "dark" ? "light" : "dark";
  return html`<button class="icon" type="button" onClick=${toggleTheme} aria-label=${`Use the ${other} theme`} title=${`Use the ${other} theme`}>
    ${current === "dark"
      ? html`<svg viewBox="0 0 20 20" aria-hidden="true"><circle cx="10" cy="10" r="3.500" /><path d="M10 2v2M10 16v2M2 10h2M16 10h2M4.300 4.300l1.400 1.400M14.300 14.300l1.400 1.400M4.300 15.700l1.400-1.400M14.300 5.700l1.400-1.400" /></svg>`
      : html`<svg viewBox="0 0 20 20" aria-hidden="true"><path d="M16 12.500A7 7 0 0 1 7.500 4a6.500 6.500 0 1 0 8.500 8.500z" /></svg>`}
  </button>`;
}

function Brand() {
  return html`<a class="brand" href="#/"><img src="assets/mark.svg" alt="" width="26" height="26" />OnlyOnce</a>`;
}

/** Whether the figures are those of now. */
function Connection({ live }) {
  const [tone, text] = live.silent ? ["bad", "No answer"] : live.late ? ["bad", "Late"] : live.connected ? ["good", "Live"] : ["", "Connecting…"];
  return html`<span class=${`connection ${tone}`} role="status"><i class="dot" aria-hidden="true"></i>${text}</span>`;
}

/** Said above everything else: whatever is shown below is as it was, not as it is. */
function Silence({ live: { late, heard } }) {
  if (late) {
    return html`<${Notice} kind="warn"><b>The store answers late.</b> ${`The gateway is running, but the figures on this page are from ${timeOfDay(heard)}.`}<//>`;
  }
  return html`<${Notice} kind="error"><b>The gateway does not answer.</b> ${heard
    ? `The figures on this page were last updated at ${timeOfDay(heard)}.` : "Nothing has been heard from it yet."} ${
    "The page updates by itself as soon as the gateway answers again."}<//>`;
}

function Shell({ role, signOut }) {
  const { parts, search } = useAddress();
  const live = useLive();
  const [tab, id] = parts;
  const messages = live.sample?.outbox;
  // Where no route is in shadow mode, there is nothing to report.
  const tabs = TABS.filter(([name]) => name !== "shadow" || tab === "shadow" || live.sample?.shadow_routes?.length);
  const waiting = {
    unknown: [live.sample?.keys?.unknown, "keys with an unknown outcome"],
    outbox: [(messages?.dead ?? 0) + (messages?.unknown ?? 0), "dead letters"],
  };
  useEffect(() => {
    document.querySelector("main h1")?.focus({ preventScroll: true });
    scrollTo(0, 0);
    const title = TABS.find(([name]) => name === tab)?.[1] ?? "Overview";
    document.title = `${title} · OnlyOnce`;
  }, [tab, id]);
  return html`
    <a class="skip" href="#content" onClick=${(event) => { event.preventDefault(); document.querySelector("main").focus(); }}>Skip to the content</a>
    <header class="top">
      <${Brand} />
      <nav aria-label="Pages">${tabs.map(([name, label]) => html`<a key=${name} href=${`#/${name}`} aria-current=${name === tab ? "page" : null}>${label}${waiting[name]?.[0]
        ? html`<span class="count" aria-label=${waiting[name].join(" ")}>${waiting[name][0]}</span>` : null}</a>`)}</nav>
      <div class="top-right">
        <${Connection} live=${live} />
        ${role === "read_only" ? html`<span class="badge">Read only</span>` : null}
        <${ThemeSwitch} />
        <button type="button" class="small" onClick=${signOut}>Sign out</button>
      </div>
    </header>
    <main id="content" tabindex="-1" class=${live.silent || live.late ? "stale" : ""}>
      ${live.silent || live.late ? html`<${Silence} live=${live} />` : null}
      ${tab === "keys" && id ? html`<${KeyPage} key=${id} id=${id} role=${role} />`
        : tab === "keys" ? html`<${Keys} asked=${search} />`
        : tab === "unknown" ? html`<${Unknown} role=${role} />`
        : tab === "outbox" ? html`<${Outbox} role=${role} asked=${search} counts=${messages} />`
        : tab === "shadow" ? html`<${Shadow} />`
        : tab === "audit" ? html`<${Audit} asked=${search} />`
        : html`<${Overview} />`}
    </main>`;
}

function SignIn({ signedIn, told }) {
  const [failure, setFailure] = useState(null);
  const submit = async (event) => {
    event.preventDefault();
    const token = new FormData(event.currentTarget).get("token");
    try {
      const { role } = await ask("POST", "session", { token });
      signedIn(role);
    } catch (error) {
      setFailure(error.status === 401 ? "This token is not valid." : error.message);
    }
  };
  return html`<main class="sign-in"><div class="sign-in-box">
    <${Brand} />
    <h1 tabindex="-1">Sign in</h1>
    <p class="quiet">Use the gateway's admin token or its read-only token.</p>
    ${told ? html`<${Notice}>${told}<//>` : null}
    <form onSubmit=${submit}>
      <label>Admin token<input name="token" type="password" required autocomplete="current-password" autofocus /></label>
      ${failure ? html`<${Notice} kind="error">${failure}<//>` : null}
      <button class="primary" type="submit">Sign in</button>
    </form>
    <div class="sign-in-foot"><${ThemeSwitch} /></div>
  </div></main>`;
}

function App() {
  const [role, setRole] = useState(undefined);
  const [told, setTold] = useState(null);
  useEffect(() => {
    whenSignedOut(() => {
      setRole((was) => {
        if (was) setTold("Your session has ended. Sign in again.");
        return null;
      });
    });
    const enter = (token) => session(token).then(({ role: found }) => setRole(found), () => {
      if (token) setTold("The token in the link is not valid for this run of the gateway.");
      setRole(null);
    });
    const moved = () => {
      const token = takeToken();
      if (token) enter(token);
    };
    addEventListener("hashchange", moved);
    enter(takeToken());
    return () => removeEventListener("hashchange", moved);
  }, []);
  useEffect(() => {
    if (!role) return undefined;
    start();
    return stop;
  }, [role]);
  if (role === undefined) return null;
  if (role === null) return html`<${SignIn} told=${told} signedIn=${(next) => { setTold(null); setRole(next); }} />`;
  return html`<${Shell} role=${role} signOut=${async () => { await ask("DELETE", "session").catch(() => {}); setTold(null); setRole(null); }} />`;
}

render(html`<${App} />`, document.getElementById("app"));
