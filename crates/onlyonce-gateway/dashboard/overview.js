// The overview: what the gateway decides, second by second, and what it stands on.

import { html, useMemo, useState } from "./vendor/preact-htm.js";
import { useLive } from "./live.js";
import { Card, Empty, Facts, Notice, Rows, Time, useTick } from "./parts.js";
import { Plot } from "./plot.js";
import { Summary } from "./shadow.js";
import { DECISIONS, STATES, bytes, count, rate, span } from "./words.js";

const RANGES = [[60, "1 min"], [300, "5 min"], [900, "15 min"]];
/** In the order of the gateway's columns. Whoever waited first is also counted by what came of it, and is therefore
 * a line beside the areas. */
const DECIDED = [
  { name: "new", label: DECISIONS.new, colour: "new", stacked: true },
  { name: "replayed", label: DECISIONS.replayed, colour: "replayed", stacked: true },
  { name: "waited", label: DECISIONS.waited, colour: "waited", dash: [5, 4] },
  { name: "refused", label: DECISIONS.refused, colour: "refused", stacked: true },
  { name: "unknown", label: DECISIONS.unknown, colour: "unknown", stacked: true },
];
/** Requests of a row: each once. */
const requests = (row) => row.decided.reduce((sum, number, index) => (DECIDED[index].stacked ? sum + number : sum), 0);
const QUANTILES = [
  { name: "p50", label: "p50", colour: "new" },
  { name: "p99", label: "p99", colour: "waited", dash: [5, 4] },
];
const STAGES = [["reserve", "Reserve"], ["upstream", "Upstream"], ["complete", "Complete"]];

export function Overview() {
  useTick();
  const live = useLive();
  const [range, setRange] = useState(300);
  const [frozen, setFrozen] = useState(null);
  const rows = frozen ?? live.rows;
  const sample = live.sample;
  const until = rows.length ? rows[rows.length - 1].at : Date.now() / 1000;
  const visible = useMemo(() => rows.filter((row) => row.at >= until - range - 1), [rows, until, range]);
  if (!sample) return html`<h1 tabindex="-1">Overview</h1><p class="quiet" role="status">Waiting for the first figures…</p>`;
  return html`
    <h1 tabindex="-1">Overview</h1>
    <${Alerts} sample=${sample} />
    <${Tiles} sample=${sample} rows=${live.rows} />
    <${Card} title="Requests per second" aside=${html`<${Controls} range=${range} setRange=${setRange}
        paused=${frozen != null} toggle=${() => setFrozen(frozen ? null : [...live.rows])} />`}>
      <${Decisions} rows=${visible} from=${until - range} until=${until} />
    <//>
    <${Latency} rows=${visible} latest=${sample.latency} from=${until - range} until=${until} />
    <div class="grid">
      <${KeysByState} keys=${sample.keys} />
      <${Store} sample=${sample} />
      <${Workers} workers=${sample.workers} />
      <${Configuration} sample=${sample} />
    </div>
    <${Clients} clients=${sample.clients} />
    <${Routes} routes=${sample.routes} />`;
}

function Alerts({ sample }) {
  const shadow = sample.shadow_routes ?? [];
  return html`
    ${!sample.store.writable || sample.store.breaker === "open"
      ? html`<${Notice} kind="error">The store does not accept writes. Requests with a key are refused, and nothing is sent upstream.<//>` : null}
    ${sample.config.last_error
      ? html`<${Notice} kind="warn">The last configuration change was rejected: ${sample.config.last_error}<//>` : null}
    ${shadow.length
      ? html`<${Notice} kind="warn"><b>Shadow mode: ${shadow.join(", ")}.</b> Requests are observed and nothing is protected. ${sample.shadow ? html`<${Summary} of=${sample.shadow} />` : null}${" "}<a href="#/shadow">Shadow report</a><//>` : null}
    ${sample.protected_routes === 0 && !shadow.length
      ? html`<${Notice} kind="warn">No route is protected.<//>` : null}`;
}

function Tile({ label, value, note, tone = "" }) {
  return html`<div class=${`tile ${tone}`}><div class="tile-label">${label}</div>
    <div class="tile-value">${value}</div><div class="tile-note">${note}</div></div>`;
}

function Tiles({ sample, rows }) {
  const last = rows.slice(-10);
  const mean = last.length
    ? last.reduce((sum, row) => sum + requests(row), 0) / last.length : 0;
  const { new: fresh, replayed } = sample.totals;
  const answered = fresh + replayed;
  const share = answered ? (100 * replayed) / answered : 0;
  const unknown = sample.keys?.unknown ?? null;
  return html`<div class="tiles">
    <${Tile} label="Requests per second" value=${rate(mean)} note="mean of the last 10 s" />
    <${Tile} label="Duplicates answered" value=${count(replayed)} note=${`since the start, ${share.toFixed(share < 10 ? 1 : 0)} % of all answers`} />
    <${Tile} label="Executing now" value=${count(sample.executing)} note=${`${count(sample.waiting)} duplicates waiting, ${count(sample.detached)} without a client, ${bytes(sample.held_bytes)} held`} />
    <${Tile} label="Keys with unknown outcome" tone=${unknown ? "bad" : ""} value=${count(unknown)}
      note=${unknown ? html`<a href="#/unknown">Resolve ${unknown === 1 ? "this key" : "these keys"}</a>${sample.oldest_unknown_seconds != null
        ? `, oldest ${span(1000 * sample.oldest_unknown_seconds)}` : ""}` : "no key to resolve"} />
  </div>`;
}

function Controls({ range, setRange, paused, toggle }) {
  return html`<div class="controls">
    <div class="segments" role="group" aria-label="Time range">${RANGES.map(([seconds, label]) => html`
      <button key=${seconds} type="button" aria-pressed=${range === seconds} onClick=${() => setRange(seconds)}>${label}</button>`)}</div>
    <button type="button" class="small" aria-pressed=${paused} onClick=${toggle}>${paused ? "Resume" : "Pause"}</button>
  </div>`;
}

function Decisions({ rows, from, until }) {
  const data = useMemo(() => [
    rows.map((row) => row.at),
    ...DECIDED.map((_, index) => rows.map((row) => row.decided[index])),
  ], [rows, until]);
  return html`<${Plot} title="Requests per second by decision" series=${DECIDED} data=${data}
    shown=${rate} none=${rate(0)} whole from=${from} until=${until} />`;
}

function Latency({ rows, latest, from, until }) {
  if (!latest) return null;
  return html`<${Card} title="Latency" aside=${html`<span class="quiet">median and 99th percentile of the last 10 s</span>`}>
    <div class="thirds">${STAGES.map(([name, label]) => html`
      <${Stage} key=${name} name=${name} label=${label} rows=${rows} from=${from} until=${until} />`)}</div>
  <//>`;
}

function Stage({ name, label, rows, from, until }) {
  const data = useMemo(() => [
    rows.map((row) => row.at),
    rows.map((row) => row.latency[name]?.[0] ?? null),
    rows.map((row) => row.latency[name]?.[1] ?? null),
  ], [rows, until]);
  return html`<div><h3>${label}</h3><${Plot} title=${`Latency of ${name}`} series=${QUANTILES} data=${data}
    shown=${span} from=${from} until=${until} height=${150} minTop=${0.5} /></div>`;
}

function Bars({ rows, caption }) {
  const most = Math.max(1, ...rows.map((row) => row.value));
  return html`<table class="bars"><caption class="hidden">${caption}</caption><tbody>${rows.map((row) => html`
    <tr key=${row.name}><th scope="row">${row.href ? html`<a href=${row.href}>${row.label}</a>` : row.label}</th>
      <td class="bar-cell"><svg class="bar" viewBox="0 0 100 8" preserveAspectRatio="none" aria-hidden="true">
        <rect class="bar-back" width="100" height="8" />
        ${row.value ? html`<rect class=${`draw-${row.colour}`} width=${Math.max(1, (100 * row.value) / most)} height="8" />` : null}</svg></td>
      <td class="number">${count(row.value)}</td></tr>`)}</tbody></table>`;
}

function KeysByState({ keys }) {
  const rows = Object.keys(STATES).map((state) => ({
    name: state, label: STATES[state], value: keys?.[state] ?? 0, colour: `state-${state}`, href: `#/keys?state=${state}`,
  }));
  return html`<${Card} title="Keys by state">${keys
    ? html`<${Bars} rows=${rows} caption="Keys by state" />`
    : html`<p class="quiet">The store cannot say.</p>`}<//>`;
}

function Health({ good, children }) {
  return html`<span class=${`health ${good ? "good" : "bad"}`}><i class="dot" aria-hidden="true"></i>${children}</span>`;
}

const LEVELS = { sync: "survives a crash", async: "a failover may lose the latest writes", volatile: "lost when the process ends" };

function Store({ sample }) {
  const { kind, level, writable, breaker } = sample.store;
  return html`<${Card} title="Store"><${Facts} rows=${[
    ["Kind", kind],
    ["Level", html`${level} <span class="quiet">– ${LEVELS[level]}</span>`],
    ["Writes", html`<${Health} good=${writable}>${writable ? "accepted" : "not accepted"}<//>`],
    ["Breaker", html`<${Health} good=${breaker === "closed"}>${breaker}<//>`],
  ]} /><//>`;
}

function Workers({ workers }) {
  return html`<${Card} title="Background loops">${workers.length
    ? html`<table class="plain"><thead><tr><th scope="col">Loop</th><th scope="col">Last run</th><th scope="col" class="number">Took</th><th scope="col" class="number">Changed</th></tr></thead>
      <tbody>${workers.map((one) => html`<tr key=${one.name}><th scope="row">${one.name}</th><td><${Time} at=${one.last_run_at} /></td>
        <td class="number">${span(one.took_ms)}</td><td class="number">${one.ok ? count(one.changed) : html`<${Health} good=${false}>failed<//>`}</td></tr>`)}</tbody></table>`
    : html`<p class="quiet">None has run yet.</p>`}<//>`;
}

function Configuration({ sample }) {
  return html`<${Card} title="Configuration"><${Facts} rows=${[
    ["Version", `${sample.config.generation}`],
    ["Loaded", html`<${Time} at=${sample.config.loaded_at} />`],
    ["Protected", `${sample.protected_routes} of ${sample.routes.length} route${sample.routes.length === 1 ? "" : "s"}`],
    ["Shadow mode", sample.shadow_routes.length ? sample.shadow_routes.join(", ") : "off"],
    ["OnlyOnce", sample.version],
  ]} /><//>`;
}

function Clients({ clients }) {
  if (!clients?.length) return null;
  const rows = clients.map((one) => ({
    name: one.client, label: one.client, value: one.duplicates, colour: "replayed",
    href: `#/keys?client=${encodeURIComponent(one.client)}`,
  }));
  return html`<${Card} title="Duplicates answered, by client" aside=${html`<span class="quiet">since the start</span>`}>
    <${Bars} rows=${rows} caption="Duplicates answered, by client" /><//>`;
}

function Routes({ routes }) {
  return html`<${Card} title="Routes" aside=${html`<span class="quiet">since the start</span>`}>
    ${routes.length ? html`<${Rows} label="Routes">
      <thead><tr><th scope="col">Route</th><th scope="col">Path</th><th scope="col">Protection</th>
        ${Object.values(DECISIONS).map((label) => html`<th key=${label} scope="col" class="number">${label}</th>`)}</tr></thead>
      <tbody>${routes.map((route) => html`<tr key=${route.id}>
        <th scope="row"><a href=${`#/keys?route=${encodeURIComponent(route.id)}`}>${route.id}</a></th>
        <td class="mono">${route.path}</td>
        <td>${route.shadow ? "shadow" : route.protected ? "on" : html`<span class="quiet">off</span>`}</td>
        ${Object.keys(DECISIONS).map((name) => html`<td key=${name} class="number">${count(route.decided[name])}</td>`)}
      </tr>`)}</tbody><//>`
      : html`<${Empty} title="No routes">The configuration has none.<//>`}
  <//>`;
}
