// Keys: search, and a page of them at a time.

import { html, useEffect, useState } from "./vendor/preact-htm.js";
import { ask, query } from "./api.js";
import { Card, Empty, Notice, Pager, Rows, State, Time, useLoaded, useTick } from "./parts.js";
import { STATES } from "./words.js";

const PAGE = 50;
const FIELDS = ["key", "client", "route", "state"];

/** `asked` holds the search as it stands in the address. */
export function Keys({ asked }) {
  useTick(5000);
  const search = Object.fromEntries(FIELDS.map((name) => [name, asked.get(name) ?? ""]));
  const [cursors, setCursors] = useState([null]);
  const cursor = cursors[cursors.length - 1];
  const inputs = FIELDS.map((name) => search[name]);
  useEffect(() => setCursors([null]), inputs);
  const { value, failure, loading, again } = useLoaded(
    () => ask("GET", `idempotency/keys${query({ ...search, cursor, limit: PAGE })}`),
    [...inputs, cursor],
  );
  const submit = (event) => {
    event.preventDefault();
    const form = new FormData(event.currentTarget);
    location.hash = `/keys${query(Object.fromEntries([...form].map(([name, text]) => [name, text.trim()])))}`;
    again();
  };
  return html`
    <h1 tabindex="-1">Keys</h1>
    <form class="search" role="search" onSubmit=${submit} key=${inputs.join("\n")}>
      <label>Key<input name="key" defaultValue=${search.key} autocomplete="off" spellcheck=${false} /></label>
      <label>Client<input name="client" defaultValue=${search.client} autocomplete="off" spellcheck=${false} /></label>
      <label>Route<input name="route" defaultValue=${search.route} autocomplete="off" spellcheck=${false} /></label>
      <label>State<select name="state">
        <option value="">any</option>
        ${Object.entries(STATES).map(([state, label]) => html`<option key=${state} value=${state} selected=${state === search.state}>${label}</option>`)}
      </select></label>
      <button class="primary" type="submit">Search</button>
      ${inputs.some(Boolean) ? html`<a class="button" href="#/keys">Clear</a>` : null}
    </form>
    ${failure ? html`<${Notice} kind="error">${failure.message}<//>` : null}
    ${value ? html`<${Found} keys=${value.keys} filtered=${inputs.some(Boolean)} />` : loading ? html`<p class="quiet" role="status">Loading…</p>` : null}
    ${value ? html`<${Pager} cursors=${cursors} setCursors=${setCursors} next=${value.next} />` : null}`;
}

function Found({ keys, filtered }) {
  if (!keys.length) {
    return filtered
      ? html`<${Empty} title="No key matches">The whole key must match, including upper and lower case.<//>`
      : html`<${Empty} title="No keys yet">The first request with an Idempotency-Key on a protected route appears here.<//>`;
  }
  return html`<${Card} title="Newest first"><${Rows} label="Keys"><thead><tr><th scope="col">Key</th><th scope="col">State</th><th scope="col">Request</th><th scope="col">Scope</th>
      <th scope="col">Created</th><th scope="col" class="number">Attempts</th><th scope="col" class="number">Answer</th></tr></thead>
      <tbody>${keys.map((one) => html`<tr key=${one.id}>
        <th scope="row" class="mono key"><a href=${`#/keys/${one.id}`}>${one.key}</a></th>
        <td><${State} state=${one.state} /></td>
        <td class="mono clip" title=${`${one.method} ${one.path}`}>${one.method} ${one.path}</td>
        <td class="mono clip" title=${one.scope}>${one.scope}</td>
        <td><${Time} at=${one.created_at} /></td>
        <td class="number">${one.attempt}</td>
        <td class="number">${one.response ? one.response.status : html`<span class="quiet">–</span>`}</td>
      </tr>`)}</tbody><//><//>`;
}
