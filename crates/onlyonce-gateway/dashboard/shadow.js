// What shadow mode has found out: what would change if a route were switched on, and what to look at first.

import { html } from "./vendor/preact-htm.js";
import { ask } from "./api.js";
import { Card, Empty, Notice, Rows, Time, useLoaded, useTick } from "./parts.js";
import { WOULD, count, fullTime, plural, span, word } from "./words.js";

const WEEK_MS = 7 * 24 * 3600 * 1000;
/** Samples that are shown of a route. */
const SAMPLES = 12;

/** "in the last 7 days", or for as long as there is something to tell of. */
export function period(since) {
  const ms = Date.now() - Date.parse(since);
  return ms >= WEEK_MS ? "In the last 7 days" : `In the last ${span(ms)}, since this gateway began to observe`;
}

/** The report in one sentence. */
export function Summary({ of }) {
  return html`${period(of.since)}: <b>${count(of.duplicates)} ${plural(of.duplicates, "duplicate")}</b> would have been answered
    without being executed, and <b>${count(of.refused)} ${plural(of.refused, "request")}</b> refused.
    ${` ${count(of.requests)} ${plural(of.requests, "request")} ${of.requests === 1 ? "was" : "were"} observed${of.without_key ? `, ${count(of.without_key)} of them without a key` : ""}.`}`;
}

export function Shadow() {
  useTick(5000);
  const { value, failure } = useLoaded(() => ask("GET", "shadow"), [], 3000);
  return html`
    <h1 tabindex="-1">Shadow report</h1>
    <p class="quiet measure">Routes in shadow mode forward every request and protect nothing. This page shows what the gateway would have done, so that you can decide when to switch a route on.</p>
    ${failure ? html`<${Notice} kind="error">${failure.message}<//>` : null}
    ${value && !value.routes.length ? html`<${Empty} title="No route is in shadow mode">Set <code>shadow: true</code> on a route to observe it.<//>` : null}
    ${value?.routes.length > 1 ? html`<${Notice}><${Summary} of=${value.total} /><//>` : null}
    ${value?.routes.map((route) => html`<${Route} key=${route.route} route=${route} />`)}`;
}

function Route({ route }) {
  return html`<${Card} title=${`Route ${route.route}`} aside=${html`<span class="quiet mono">${route.path}</span>`}>
    <p class="measure"><${Summary} of=${route} /></p>
    <div class="halves">
      <div><h3>Before you switch it on</h3><${Checklist} route=${route} /></div>
      <div><h3>By client</h3><${Clients} route=${route} /></div>
    </div>
    <${Words} would=${route.would} />
    <${Samples} samples=${route.samples} />
  <//>`;
}

/** Names between backticks as code. */
function coded(text) {
  return text.split("`").map((part, index) => (index % 2 ? html`<code>${part}</code>` : part));
}

function Checklist({ route }) {
  const open = route.checklist.filter((item) => !item.ok).length;
  return html`<ul class="checklist">${route.checklist.map((item) => html`<li key=${item.check} class=${item.ok ? "done" : "open"}>
      <span class="mark" aria-hidden="true">${item.ok ? "✓" : "!"}</span><span><span class="hidden">${item.ok ? "Done: " : "To do: "}</span>${coded(item.detail)}</span></li>`)}</ul>
    <p class="quiet">${open ? `${open} of ${route.checklist.length} to look at.` : "Nothing speaks against it."} Then set <code>shadow: false</code> on route <code>${route.route}</code> and reload.</p>`;
}

function Clients({ route }) {
  const rows = [
    ...route.clients.map((one) => ({ ...one, label: one.client ?? "no client id" })),
    ...(route.other_clients ? [{ ...route.other_clients, label: "all other clients" }] : []),
  ];
  if (!rows.length) return html`<p class="quiet">No request yet.</p>`;
  return html`<${Rows} label=${`Clients of route ${route.route}`}>
    <thead><tr><th scope="col">Client</th><th scope="col" class="number">Requests</th><th scope="col" class="number">Duplicates</th><th scope="col" class="number">Refused</th><th scope="col" class="number">No key</th></tr></thead>
    <tbody>${rows.map((one) => html`<tr key=${one.label}><th scope="row" class="clip" title=${one.label}>${one.label}</th>
      <td class="number">${count(one.requests)}</td><td class="number">${count(one.duplicates)}</td>
      <td class="number">${count(one.refused)}</td><td class="number">${count(one.without_key)}</td></tr>`)}</tbody><//>`;
}

function Words({ would }) {
  const seen = Object.entries(would).filter(([, number]) => number);
  if (!seen.length) return null;
  return html`<h3 class="spaced">What would have happened</h3>
    <dl class="pairs">${seen.map(([name, number]) => html`<div key=${name}><dt>${word(WOULD, name)}</dt><dd>${count(number)}</dd></div>`)}</dl>`;
}

function Samples({ samples }) {
  if (!samples.length) return null;
  return html`<h3 class="spaced">Latest requests that would not simply have been executed</h3>
    <${Rows} label="Samples">
    <thead><tr><th scope="col">When</th><th scope="col">What would have happened</th><th scope="col">Client</th><th scope="col">Key, hashed</th></tr></thead>
    <tbody>${samples.slice(0, SAMPLES).map((one, index) => html`<tr key=${index}><td title=${fullTime(one.at)}><${Time} at=${one.at} /></td>
      <td>${word(WOULD, one.would)}</td><td class="clip">${one.client ?? html`<span class="quiet">–</span>`}</td><td class="mono">${one.key ?? "–"}</td></tr>`)}</tbody><//>`;
}
