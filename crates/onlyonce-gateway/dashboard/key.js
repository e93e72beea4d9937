// One key: what it is, its life as a picture and as a list, its answer, and what an operator may do.

import { html, useState } from "./vendor/preact-htm.js";
import { ask, query } from "./api.js";
import { Card, Dated, Dialog, Facts, Notice, Rows, State, useLoaded, useTick } from "./parts.js";
import { ResolveForm } from "./resolve.js";
import { Timeline } from "./timeline.js";
import { ACTORS, EVENTS, STATES, ZONE, bytes, count, exactTime, fullTime, plural, word } from "./words.js";

export function KeyPage({ id, role }) {
  useTick();
  const path = `idempotency/keys/${encodeURIComponent(id)}`;
  const load = async () => {
    const [record, retries] = await Promise.all([ask("GET", path), ask("GET", `${path}/retries`)]);
    return { ...record, retries };
  };
  const { value, failure, again } = useLoaded(load, [id], 1000);
  if (!value) {
    return html`<h1 tabindex="-1">Key</h1>${failure
      ? html`<${Notice} kind="error">${failure.message}<//>` : html`<p class="quiet" role="status">Loading…</p>`}`;
  }
  const operator = role === "operator";
  return html`
    <p class="crumbs"><a href="#/keys">Keys</a></p>
    <div class="title-row"><h1 tabindex="-1" class="mono">${value.key}</h1><${State} state=${value.state} /></div>
    ${failure ? html`<${Notice} kind="error">${failure.message}<//>` : null}
    <${Card} title="Timeline" aside=${html`<span class="quiet">in order, not to scale; times in ${ZONE}</span>`}><${Timeline} record=${value} /><//>
    ${value.state === "unknown" ? html`<${Resolve} value=${value} path=${path} again=${again} operator=${operator} />` : null}
    <div class="grid">
      <${About} value=${value} />
      <div><${Retries} retries=${value.retries} />
      <${Answer} value=${value} path=${path} operator=${operator} again=${again} /></div>
    </div>
    <${History} lines=${value.history} />
    ${operator ? html`<${Actions} value=${value} path=${path} again=${again} />` : null}`;
}

function About({ value }) {
  return html`<${Card} title="Request"><${Facts} rows=${[
    ["Request", html`<span class="mono">${value.method} ${value.path}</span>`],
    ["Route", html`<a href=${`#/keys?route=${encodeURIComponent(value.route)}`}>${value.route}</a>`],
    ["Scope", html`<span class="mono">${value.scope}</span>`],
    ["Attempts", String(value.attempt)],
    ["Generation", String(value.generation)],
    ["Created", html`<${Dated} at=${value.created_at} />`],
    ["Last executed", html`<${Dated} at=${value.last_run_at} />`],
    ["Completed", value.completed_at && html`<${Dated} at=${value.completed_at} />`],
    ["Lease until", value.state === "in_progress" && html`<${Dated} at=${value.lease_until} />, renewed while it runs`],
    ["Waiting", value.state === "in_progress" && `${value.waiters} at this gateway`],
    ["Expires", value.expires_at && html`<${Dated} at=${value.expires_at} />`],
    ["Provider asked", value.reconcile_after && html`<${Dated} at=${value.reconcile_after} />`],
    ["Last error", value.last_error && html`<code>${value.last_error}</code>`],
    ["Id", html`<span class="mono quiet">${value.id}</span>`],
  ].filter(([, shown]) => shown)} /><//>`;
}

/** What this gateway has seen of the key's duplicates. A replay writes nothing, so no store could tell. */
function Retries({ retries }) {
  if (!retries) return null;
  return html`<${Card} title="Retries" aside=${html`<span class="quiet">since this gateway started, ${fullTime(retries.since)}</span>`}><${Facts} rows=${[
    ["Executions prevented", html`<b>${count(retries.answered)}</b> ${plural(retries.answered, "duplicate")} got the stored answer`],
    ["Refused", retries.refused ? `${count(retries.refused)} while it was in progress or unknown` : null],
    ["Last retry", retries.last_at ? html`<${Dated} at=${retries.last_at} />` : html`<span class="quiet">none that this gateway remembers</span>`],
  ]} /><//>`;
}

/** The stored answer: its size for everybody, itself on request. */
function Answer({ value, path, operator, again }) {
  const [shown, setShown] = useState(null);
  const [failure, setFailure] = useState(null);
  const show = async () => {
    try {
      setShown(await ask("POST", `${path}/response`, {}));
      setFailure(null);
      again();
    } catch (error) {
      setFailure(error);
    }
  };
  const response = value.response;
  return html`<${Card} title="Stored answer">
    ${!response ? html`<p class="quiet">No answer is stored.</p>` : html`
      <p><b>${response.status}</b>, ${bytes(response.bytes)}${shown ? "" : ", hidden"}</p>
      ${shown ? html`<${Shown} answer=${shown} /><button type="button" onClick=${() => setShown(null)}>Hide</button>`
        : operator ? html`<p><button type="button" onClick=${show}>Show the answer</button> <span class="quiet">Viewing it is recorded in the audit.</span></p>`
        : html`<p class="quiet">Only an operator can view it.</p>`}`}
    ${failure ? html`<${Notice} kind="error">${failure.message}<//>` : null}
  <//>`;
}

/** Whatever stands in the answer is text here, never markup. */
function Shown({ answer }) {
  const body = answer.body ?? answer.body_base64;
  return html`
    <pre class="answer" tabindex="0" aria-label="Headers of the stored answer">${Object.entries(answer.headers)
      .flatMap(([name, values]) => values.map((one) => `${name}: ${one}`)).join("\n") || "no headers"}</pre>
    ${answer.stored
      ? html`<pre class="answer" tabindex="0" aria-label="Body of the stored answer">${pretty(body)}</pre>`
      : html`<p class="quiet">The body was too large to store.</p>`}
    ${answer.body_base64 ? html`<p class="quiet">Not text: shown as base64.</p>` : null}
    ${answer.truncated ? html`<p class="quiet">Only the beginning is shown.</p>` : null}`;
}

function pretty(text) {
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text;
  }
}

function History({ lines }) {
  return html`<${Card} title="History"><${Rows} label="History"><thead><tr><th scope="col">When</th><th scope="col">Event</th><th scope="col">State</th><th scope="col" class="number">Attempt</th><th scope="col">By</th><th scope="col">Detail</th></tr></thead>
    <tbody>${lines.map((line, index) => html`<tr key=${index}>
      <td><time datetime=${line.at}>${exactTime(line.at)}</time></td>
      <td>${word(EVENTS, line.event)}</td>
      <td>${line.to ? html`${line.from ? html`<span class="quiet">${word(STATES, line.from)} → </span>` : null}${word(STATES, line.to)}` : html`<span class="quiet">unchanged</span>`}</td>
      <td class="number">${line.attempt}</td>
      <td>${word(ACTORS, line.actor)}</td><td class="wrap">${line.detail ?? ""}</td>
    </tr>`)}</tbody><//><//>`;
}

function Resolve({ value, path, again, operator }) {
  if (!operator) {
    return html`<${Notice} kind="warn">The outcome of this execution is unknown. Retries are refused until the provider or an operator says what happened.<//>`;
  }
  return html`<${Card} title="Resolve">
    <p class="quiet measure">The outcome of this execution is unknown, so retries are refused. Look up the operation at the provider, then record what you found.</p>
    <${ResolveForm} onSubmit=${async (resolution) => {
      await ask("POST", `${path}/resolve`, { ...resolution, revision: value.revision });
      again();
    }} /><//>`;
}

function Actions({ value, path, again }) {
  const [open, setOpen] = useState(null);
  const close = () => setOpen(null);
  const settled = value.state === "completed" || value.state === "failed_retryable";
  if (!settled && value.state !== "expired") return null;
  return html`<div class="actions">
    ${value.expires_at && value.state === "completed" ? html`<button type="button" onClick=${() => setOpen("extend")}>Keep longer…</button>` : null}
    <button type="button" class="danger" onClick=${() => setOpen("forget")}>Forget…</button>
    ${open === "extend" ? html`<${Extend} path=${path} close=${close} again=${again} />` : null}
    ${open === "forget" ? html`<${Forget} path=${path} close=${close} again=${again} value=${value} />` : null}
  </div>`;
}

function useAction(act, close, again) {
  const [failure, setFailure] = useState(null);
  const run = async (event) => {
    event.preventDefault();
    try {
      await act(new FormData(event.currentTarget));
      again();
      close();
    } catch (error) {
      setFailure(error);
    }
  };
  return [run, failure];
}

function Extend({ path, close, again }) {
  const [run, failure] = useAction((form) => ask("POST", `${path}/extend`, { ttl: form.get("ttl") }), close, again);
  return html`<${Dialog} title="Keep the answer longer" onClose=${close}><form onSubmit=${run}>
    <label>Keep it from now for<input name="ttl" defaultValue="48h" required /></label>
    ${failure ? html`<${Notice} kind="error">${failure.message}<//>` : null}
    <div class="dialog-foot"><button type="button" onClick=${close}>Cancel</button><button class="primary">Keep</button></div>
  </form><//>`;
}

function Forget({ path, close, again, value }) {
  const effect = value.response && value.response.status < 400;
  const [run, failure] = useAction(
    (form) => ask("DELETE", `${path}${query({ reason: form.get("reason"), force: form.get("force") ? "true" : "" })}`), close, again);
  return html`<${Dialog} title="Forget this key" onClose=${close}><form onSubmit=${run}>
    <p class="measure">The record is removed. The same request will then be executed again.</p>
    <label>Reason<input name="reason" required /></label>
    ${effect ? html`<label class="check"><input type="checkbox" name="force" required /> The operation took effect. Forget it anyway</label>` : null}
    ${failure ? html`<${Notice} kind="error">${failure.message}<//>` : null}
    <div class="dialog-foot"><button type="button" onClick=${close}>Cancel</button><button class="danger">Forget</button></div>
  </form><//>`;
}
