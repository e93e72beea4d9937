// What happened to keys, newest first: by executors, loops and operators.

import { html, useState } from "./vendor/preact-htm.js";
import { ask, query } from "./api.js";
import { Card, Empty, Notice, useLoaded } from "./parts.js";
import { EVENTS, STATES, fullTime, word } from "./words.js";

const PAGE = 100;

export function Audit() {
  const [cursors, setCursors] = useState([null]);
  const cursor = cursors[cursors.length - 1];
  const { value, failure } = useLoaded(() => ask("GET", `audit${query({ cursor, limit: PAGE })}`), [cursor]);
  return html`
    <h1 tabindex="-1">Audit</h1>
    <p class="quiet measure">What was out of the ordinary, and what operators did. Newest first.</p>
    ${failure ? html`<${Notice} kind="error">${failure.message}<//>` : null}
    ${value && !value.audit.length ? html`<${Empty} title="Nothing out of the ordinary">Releases, unknown outcomes and operators' actions appear here.<//>` : null}
    ${value?.audit.length ? html`<${Card} title="Events"><div class="scroll" tabindex="0" role="region" aria-label="Audit"><table class="plain rows">
      <thead><tr><th scope="col">When</th><th scope="col">Event</th><th scope="col">State</th><th scope="col">By</th><th scope="col">Key</th><th scope="col">Detail</th></tr></thead>
      <tbody>${value.audit.map((line, index) => html`<tr key=${index}>
        <td><time datetime=${line.at}>${fullTime(line.at)}</time></td><td>${word(EVENTS, line.event)}</td>
        <td>${line.to ? word(STATES, line.to) : html`<span class="quiet">unchanged</span>`}</td><td>${line.actor}</td>
        <td class="mono"><a href=${line.event.startsWith("message_") ? "#/outbox" : `#/keys/${line.key_id}`} title=${line.key_id}>${line.key_id.slice(0, 10)}…</a></td><td class="wrap">${line.detail ?? ""}</td>
      </tr>`)}</tbody></table></div><//>
      <nav class="pager" aria-label="Pages">
        <button type="button" disabled=${cursors.length === 1} onClick=${() => setCursors(cursors.slice(0, -1))}>Newer</button>
        <span class="quiet">Page ${cursors.length}</span>
        <button type="button" disabled=${!value.next} onClick=${() => setCursors([...cursors, value.next])}>Older</button>
      </nav>` : null}`;
}
