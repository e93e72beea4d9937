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

/** What a button does not do before something was bought. */
const AFTER_A_PURCHASE = new Set(["retry"]);

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
  const unknown = state?.record?.state === "unknown";
  const bought = Boolean(state?.orders);
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
      <p class="lead">Both sides send the same requests to the same payments API, which charges every time it is asked. It keeps a ledger for each side. Press a button and watch the charges.</p>
      ${failure ? html`<${Notice} kind="error">The demo does not answer. Is it still running in its terminal?<//>` : null}
      ${refused ? html`<${Notice} kind="error">${refused}<//>` : null}
      <div class="buttons">${GROUPS.map(([title, acts]) => html`<div key=${title} role="group" aria-label=${title}><h2>${title}</h2>
        ${acts.map(([name, label]) => html`<button key=${name} type="button" class=${name === "pay" ? "primary" : ""} disabled=${busy || (AFTER_A_PURCHASE.has(name) && !bought)} aria-busy=${Boolean(state?.busy && state.act === name)} onClick=${() => press(name)}>${label}</button>`)}
      </div>`)}
        <div role="group" aria-label="Then an operator"><h2>Then an operator</h2>
          <button type="button" disabled=${busy || !unknown} onClick=${() => press("look-up")}>Look it up and resolve</button>
          <span class="quiet">${unknown ? "" : "when an outcome is unknown"}</span></div>
      </div>
      ${state ? html`<${Now} state=${state} />` : null}
      ${state ? html`<div class="sides">
        <${Side} title="Without OnlyOnce" way="shop → payments API" side=${state.without} ordered=${state.orders > 0} />
        <${Side} title="With OnlyOnce" way="shop → gateway → payments API" side=${state.with} ordered=${state.orders > 0} />
      </div>
      <p class="after">The numbers are the API's own ledgers. The gateway's view of the same keys is on the <a href=${state.dashboard} target="_blank" rel="noopener">dashboard</a>; its token is printed in the terminal of the demo.</p>` : null}
    </main>`;
}

/** What is going on, where it would look as if nothing were, and what to press next. */
function Now({ state }) {
  const { record, gateway, act, hint } = state;
  const left = (until) => Math.max(0, Math.ceil((Date.parse(until) - Date.parse(state.now)) / 1000));
  const played = act === "kill" && state.busy;
  if (played && gateway.state === "down") {
    return html`<${Notice} kind="warn"><span data-now>The gateway was killed and is being started again.</span><//>`;
  }
  if (played && record?.state === "in_progress" && record.lease_until) {
    const seconds = left(record.lease_until);
    return html`<${Notice} kind="warn"><span data-now>The killed gateway reserved the key with a lease, which ends in <b data-countdown>${seconds} s</b>. Until then the retry waits:
      for all the new gateway knows, the payment may still be running.</span><progress max="10" value=${Math.max(0, 10 - seconds)} aria-label="Time until the lease ends"></progress><//>`;
  }
  if (record?.state === "unknown" && !state.busy) {
    const seconds = record.reconcile_after ? left(record.reconcile_after) : null;
    return html`<${Notice} kind="warn"><span data-now>The outcome is unknown, so nothing is executed again. ${seconds == null ? "Look it up and resolve it."
      : html`The gateway asks the payments API by itself in <b data-countdown>${seconds} s</b>. You can wait, or look it up yourself.`}</span><//>`;
  }
  if (hint === "retry_after_reconciliation") {
    return html`<${Notice} kind="success"><span data-now><b>The gateway found out by itself.</b> The payment was made once, and its answer is stored. Now press <b>Retry</b>.</span><//>`;
  }
  if (hint === "retry_after_loss" && !state.busy) {
    return html`<${Notice}><span data-now>The shop does not know whether it was charged. Now press <b>Retry</b>.</span><//>`;
  }
  return null;
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
