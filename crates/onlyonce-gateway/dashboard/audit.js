// What happened to keys, newest first: what operators did apart from what went wrong.

import { html, useEffect, useState } from "./vendor/preact-htm.js";
import { ask, query } from "./api.js";
import { Card, Empty, Notice, Pager, Rows, useLoaded } from "./parts.js";
import { ACTORS, EVENTS, STATES, ZONE, fullTime, word } from "./words.js";

const PAGE = 100;
const FIELDS = ["view", "key", "client", "event"];
/** Each view by what it asks the admin API for. */
const VIEWS = [
  ["", "All", {}],
  ["operators", "Operators", { actor: "operator" }],
  ["errors", "Errors", {
    event: "released,became_unknown,lease_lapsed,stream_broken,release_was_wrong,duplicate_execution_suspected,inconclusive,dead_lettered",
  }],
  ["provider", "Provider checks", { actor: "reconciler" }],
];
/** What stands in the journal; the ordinary course of a key does not. */
const ORDINARY = new Set(["reserved", "completed"]);

/** `asked` holds the filters as they stand in the address. */
export function Audit({ asked }) {
  const search = Object.fromEntries(FIELDS.map((name) => [name, asked.get(name) ?? ""]));
  const inputs = FIELDS.map((name) => search[name]);
  const [, , wanted] = VIEWS.find(([name]) => name === search.view) ?? VIEWS[0];
  const [cursors, setCursors] = useState([null]);
  const cursor = cursors[cursors.length - 1];
  useEffect(() => setCursors([null]), inputs);
  const filter = { ...wanted, key: search.key, client: search.key ? search.client : "" };
  if (search.event) filter.event = search.event;
  const { value, failure, loading } = useLoaded(
    () => ask("GET", `audit${query({ ...filter, keys: true, cursor, limit: PAGE })}`), [...inputs, cursor]);
  const go = (fields) => { location.hash = `/audit${query(fields)}`; };
  const submit = (event) => {
    event.preventDefault();
    const form = Object.fromEntries([...new FormData(event.currentTarget)].map(([name, text]) => [name, text.trim()]));
    go({ view: search.view, ...form });
  };
  const filtered = inputs.some(Boolean);
  return html`
    <h1 tabindex="-1">Audit</h1>
    <p class="quiet measure">Everything out of the ordinary that happened to keys and messages, and everything operators did. Newest first; times in ${ZONE}.</p>
    <div class="segments spaced" role="group" aria-label="Which events">${VIEWS.map(([name, label]) => html`<button key=${name} type="button"
      aria-pressed=${name === search.view} onClick=${() => go({ ...search, view: name, event: "" })}>${label}</button>`)}</div>
    <form class="search short" role="search" onSubmit=${submit} key=${inputs.join("\n")}>
      <label>Key<input name="key" defaultValue=${search.key} autocomplete="off" spellcheck=${false} /></label>
      <label>Client<input name="client" defaultValue=${search.client} autocomplete="off" spellcheck=${false} placeholder="with a key" /></label>
      <label>Event<select name="event"><option value="">any</option>
        ${Object.entries(EVENTS).filter(([event]) => !ORDINARY.has(event)).map(([event, label]) => html`<option key=${event} value=${event} selected=${event === search.event}>${label}</option>`)}
      </select></label>
      <button class="primary" type="submit">Search</button>
      ${filtered ? html`<a class="button" href="#/audit">Clear</a>` : null}
    </form>
    ${failure ? html`<${Notice} kind="error">${failure.message}<//>` : null}
    ${!value && loading ? html`<p class="quiet" role="status">Loading…</p>` : null}
    ${value && !value.audit.length ? html`<${Empty} title=${filtered ? "No event matches" : "No events"}>${filtered
      ? value.next ? "None among the latest 10,000 events. Older ones have not been searched." : "Try another filter."
      : "Releases, unknown outcomes and operators' actions appear here."}<//>` : null}
    ${value?.audit.length ? html`<${Card} title="Events"><${Rows} label="Audit">
      <thead><tr><th scope="col">When</th><th scope="col">Event</th><th scope="col">By</th><th scope="col">Key</th><th scope="col">New state</th><th scope="col">Detail</th></tr></thead>
      <tbody>${value.audit.map((line, index) => html`<tr key=${index}>
        <td><time datetime=${line.at} title=${line.at}>${fullTime(line.at)}</time></td>
        <td>${word(EVENTS, line.event)}</td>
        <td>${line.actor === "operator" ? html`<span class="badge">Operator</span>` : word(ACTORS, line.actor)}</td>
        <td class="mono key"><${Key} line=${line} /></td>
        <td>${line.to ? word(STATES, line.to) : html`<span class="quiet">unchanged</span>`}</td>
        <td class="wrap">${line.detail ?? ""}</td>
      </tr>`)}</tbody><//><//>` : null}
    ${value ? html`<${Pager} cursors=${cursors} setCursors=${setCursors} next=${value.next} />` : null}`;
}

/** The key of a line, or what can be said instead: erased keys have no name, and some lines outlive their key. */
function Key({ line }) {
  const short = `${line.key_id.slice(0, 10)}…`;
  if (line.key == null) {
    const isMessage = line.event.startsWith("message_");
    return isMessage ? html`<a href="#/outbox" title=${line.key_id}>message ${short}</a>`
      : html`<span class="quiet" title=${line.key_id}>${short} (deleted)</span>`;
  }
  return html`<a href=${`#/keys/${line.key_id}`} title=${line.key || line.key_id}>${line.key || `${short} (erased)`}</a>`;
}
