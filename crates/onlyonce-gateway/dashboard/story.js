// The demo as a story: buttons, and the same purchase with and without OnlyOnce, side by side.

import { html, render, useEffect, useRef, useState } from "./vendor/preact-htm.js";
import { ask } from "./api.js";
import { Notice } from "./parts.js";
import { onTheme, theme, toggleTheme } from "./theme.js";
import { count } from "./words.js";

const LOOK_EVERY_MS = 300;

const GROUPS = [
  ["A purchase", [["pay", "Pay"], ["retry", "Retry"], ["double-click", "Double-click 50 times"]]],
  ["The line breaks", [["lose", "Lose the answer"], ["hang-up", "Provider hangs up"]]],
  ["The gateway breaks", [["kill", "Kill the gateway"], ["pause", "Pause the gateway"]]],
];

const GATEWAY = { running: "running", paused: "paused", down: "being started again" };

function useStory() {
  const [state, setState] = useState(null);
  const [failure, setFailure] = useState(null);
  useEffect(() => {
    let over = false;
    const look = async () => {
      try {
        const next = await ask("GET", "state");
        if (!over) { setState(next); setFailure(null); }
      } catch (error) {
        if (!over) setFailure(error);
      }
      if (!over) setTimeout(look, LOOK_EVERY_MS);
    };
    look();
    return () => { over = true; };
  }, []);
  return [state, failure];
}

function Story() {
  const [state, failure] = useStory();
  const [refused, setRefused] = useState(null);
  const press = async (name) => {
    try {
      await ask("POST", `act/${name}`);
      setRefused(null);
    } catch (error) {
      setRefused(error.status === 409 ? null : error.message);
    }
  };
  const busy = !state || state.busy;
  const last = state?.with.lines.at(-1);
  const unknown = last?.kind === "refused";
  return html`
    <header class="top">
      <span class="brand"><img src="assets/mark.svg" alt="" width="26" height="26" />OnlyOnce</span>
      <div class="top-right">
        ${state ? html`<span class=${`connection ${state.gateway.state === "running" ? "good" : "bad"}`} role="status"><i class="dot" aria-hidden="true"></i>Gateway ${GATEWAY[state.gateway.state]}</span>
          <a class="button small" href=${state.dashboard} target="_blank" rel="noopener">Dashboard</a>` : null}
        <${Theme} />
      </div>
    </header>
    <main class="story">
      <h1>The same purchase, with and without OnlyOnce</h1>
      <p class="lead">Both sides talk to the same payments API, which charges whenever it is asked. Each side has its own ledger there. Press a button and watch them count.</p>
      ${failure ? html`<${Notice} kind="error">The demo does not answer. Is it still running in its terminal?<//>` : null}
      ${refused ? html`<${Notice} kind="error">${refused}<//>` : null}
      <div class="buttons">${GROUPS.map(([title, acts]) => html`<div key=${title} role="group" aria-label=${title}><h2>${title}</h2>
        ${acts.map(([name, label]) => html`<button key=${name} type="button" class=${name === "pay" ? "primary" : ""} disabled=${busy} aria-busy=${Boolean(state?.busy && state.act === name)} onClick=${() => press(name)}>${label}</button>`)}
      </div>`)}
        <div role="group" aria-label="Then an operator"><h2>Then an operator</h2>
          <button type="button" disabled=${busy || !unknown} onClick=${() => press("look-up")}>Look it up and resolve</button>
          <span class="quiet">${unknown ? "" : "when an outcome is unknown"}</span></div>
      </div>
      ${state ? html`<div class="sides">
        <${Side} title="Without OnlyOnce" way="shop → payments API" side=${state.without} ordered=${state.orders > 0} />
        <${Side} title="With OnlyOnce" way="shop → gateway → payments API" side=${state.with} ordered=${state.orders > 0} />
      </div>
      <p class="after">The numbers are the API's own ledgers. The gateway's view of the same keys is in the <a href=${state.dashboard} target="_blank" rel="noopener">dashboard</a>; its token is printed where the demo was started.</p>` : null}
    </main>`;
}

function Side({ title, way, side, ordered }) {
  const log = useRef(null);
  useEffect(() => { log.current.scrollTop = log.current.scrollHeight; }, [side.lines.length]);
  const tone = side.charges === 1 ? "once" : side.charges > 1 ? "often" : "";
  const id = title.toLowerCase().replaceAll(" ", "-");
  return html`<section class="card side" aria-labelledby=${id}>
    <div class="side-head"><h2 id=${id}>${title}</h2></div>
    <p class="way">${way}</p>
    <div class=${`charged ${tone}`} aria-live="polite"><b data-charges>${ordered ? count(side.charges) : "–"}</b>
      <span>${side.charges === 1 ? "charge for this order" : "charges for this order"}</span></div>
    <div class="total"><span class="quiet">All charges in this ledger</span><b>${count(side.total)}</b></div>
    <ol class="log" ref=${log} tabindex="0" aria-label=${`What happened ${title.toLowerCase()}`}>
      ${side.lines.length ? side.lines.map((line, index) => html`<li key=${index} class=${line.kind}>${line.text}</li>`)
        : html`<li class="log-empty order">Nothing has been bought yet.</li>`}
    </ol>
  </section>`;
}

function Theme() {
  const [current, setCurrent] = useState(theme());
  useEffect(() => onTheme(setCurrent), []);
  const other = current === "dark" ? "light" : "dark";
  return html`<button class="small" type="button" onClick=${toggleTheme}>${other === "dark" ? "Dark" : "Light"}</button>`;
}

render(html`<${Story} />`, document.getElementById("app"));
