// The work list: keys whose outcome nobody knows, oldest first, one by one or several at once.

import { html, useMemo, useState } from "./vendor/preact-htm.js";
import { ask, query } from "./api.js";
import { Card, Dialog, Empty, Facts, Notice, Rows, Time, useLoaded, useTick } from "./parts.js";
import { ResolveForm } from "./resolve.js";
import { EVENTS, exactTime, fullTime, span, word } from "./words.js";

/** How many keys are read, in pages of how many. */
const MOST = 2000;
const PAGE = 500;

async function loadUnknown() {
  const keys = [];
  let cursor = null;
  do {
    const page = await ask("GET", `idempotency/keys${query({ state: "unknown", limit: PAGE, cursor })}`);
    keys.push(...page.keys);
    cursor = page.next;
  } while (cursor && keys.length < MOST);
  keys.sort((a, b) => Date.parse(a.last_run_at) - Date.parse(b.last_run_at));
  return { keys, more: Boolean(cursor), letters: await loadLetters() };
}

/** The dead letters by their key; null where this gateway has none to tell of. */
async function loadLetters() {
  const letters = new Map();
  let cursor = null;
  try {
    do {
      const page = await ask("GET", `dead-letters${query({ kind: "reconcile", limit: PAGE, cursor })}`);
      for (const letter of page.dead_letters) letters.set(letter.key_id, letter);
      cursor = page.next;
    } while (cursor && letters.size < MOST);
  } catch (failure) {
    if (failure.status === 404) return null;
    throw failure;
  }
  return letters;
}

export function Unknown({ role }) {
  useTick(5000);
  const { value, failure, again } = useLoaded(loadUnknown, [], 3000);
  const [chosen, setChosen] = useState(new Set());
  const [looked, setLooked] = useState(null);
  const [bulk, setBulk] = useState(false);
  const [onlyDead, setOnlyDead] = useState(false);
  const letters = value?.letters ?? null;
  const all = value?.keys ?? [];
  const keys = useMemo(() => (onlyDead && letters ? all.filter((one) => letters.has(one.id)) : all), [all, letters, onlyDead]);
  const picked = useMemo(() => keys.filter((one) => chosen.has(one.id)), [keys, chosen]);
  const toggle = (id) => {
    const next = new Set(chosen);
    next.delete(id) || next.add(id);
    setChosen(next);
  };
  return html`
    <h1 tabindex="-1">Unknown outcomes</h1>
    <p class="quiet measure">Keys whose execution may or may not have taken effect. Their retries are refused until the provider or an operator says what happened. Oldest first.</p>
    ${failure ? html`<${Notice} kind="error">${failure.message}<//>` : null}
    ${letters?.size || onlyDead ? html`<div class="segments spaced" role="group" aria-label="Which">
      <button type="button" aria-pressed=${!onlyDead} onClick=${() => setOnlyDead(false)}>All ${all.length}</button>
      <button type="button" aria-pressed=${onlyDead} onClick=${() => setOnlyDead(true)}>Dead letters ${letters?.size ?? 0}</button>
    </div>` : null}
    ${value && !keys.length && onlyDead ? html`<${Empty} title="No dead letters">The provider is still being asked about every key.<//>`
      : value && !keys.length ? html`<${Empty} title="No unknown outcomes">The outcome of every execution is known.<//>` : null}
    ${keys.length ? html`
      <div class="toolbar">
        <span aria-live="polite">${keys.length}${value.more ? " or more" : ""} unknown, ${picked.length} selected</span>
        ${role === "operator" ? html`<button type="button" class="primary" disabled=${!picked.length} onClick=${() => setBulk(true)}>Resolve selected…</button>` : null}
      </div>
      <${List} keys=${keys} chosen=${chosen} toggle=${toggle} setChosen=${setChosen} looked=${looked} setLooked=${setLooked} role=${role} letters=${letters}
        done=${() => { setLooked(null); again(); }} />` : null}
    ${bulk ? html`<${Bulk} keys=${picked} letters=${letters} close=${() => { setBulk(false); setChosen(new Set()); again(); }} />` : null}`;
}

/** When the provider is asked next, and until when its "not found" does not count. */
function Asked({ one }) {
  const early = one.release_not_before && Date.parse(one.release_not_before) > Date.now();
  return html`${one.reconcile_after ? html`<${Time} at=${one.reconcile_after} />` : html`<span class="quiet">no provider is asked</span>`}
    ${early ? html`<br /><span class="quiet">“not found” does not count before ${fullTime(one.release_not_before)}</span>` : null}`;
}

/** Why a key is unknown, and what its provider has said so far. */
function Why({ one, letters }) {
  return html`${one.last_error ? html`<code>${one.last_error}</code>` : null}${letters?.has(one.id)
    ? html` <span class="badge" title="An operator has to resolve it">${`dead letter: ${letters.get(one.id).reason}`}</span>` : null}`;
}

function List({ keys, chosen, toggle, setChosen, looked, setLooked, role, letters, done }) {
  const columns = role === "operator" ? 8 : 7;
  const all = keys.every((one) => chosen.has(one.id));
  return html`<${Card} title="Work list"><${Rows} label="Unknown keys"><thead><tr>
      ${role === "operator" ? html`<th scope="col"><input type="checkbox" aria-label="Select all" checked=${all} onChange=${() => setChosen(all ? new Set() : new Set(keys.map((one) => one.id)))} /></th>` : null}
      <th scope="col">Age</th><th scope="col">Key</th><th scope="col">Request</th><th scope="col">Scope</th><th scope="col">Why</th><th scope="col">Provider is asked</th><th scope="col"><span class="hidden">Look</span></th></tr></thead>
    <tbody>${keys.flatMap((one) => [html`<tr key=${one.id} class=${one.id === looked ? "current" : ""}>
      ${role === "operator" ? html`<td><input type="checkbox" aria-label=${`Select ${one.key}`} checked=${chosen.has(one.id)} onChange=${() => toggle(one.id)} /></td>` : null}
      <td>${span(Date.now() - Date.parse(one.last_run_at))}</td>
      <th scope="row" class="mono key"><a href=${`#/keys/${one.id}`}>${one.key}</a></th>
      <td class="mono clip" title=${`${one.method} ${one.path}`}>${one.method} ${one.path}</td>
      <td class="mono clip" title=${one.scope}>${one.scope}</td>
      <td class="wrap"><${Why} one=${one} letters=${letters} /></td>
      <td class="wrap"><${Asked} one=${one} /></td>
      <td><button type="button" class="small" aria-label=${`Look at ${one.key}`} aria-expanded=${one.id === looked} onClick=${() => setLooked(one.id === looked ? null : one.id)}>Look</button></td>
    </tr>`, one.id === looked ? html`<tr key=${`${one.id}-drawer`} class="drawer"><td colspan=${columns}>
      <${Evidence} id=${one.id} role=${role} done=${done} close=${() => setLooked(null)} /></td></tr>` : null])}</tbody><//><//>`;
}

const EVIDENCE = new Set(["reconciled", "evidence_kept", "inconclusive", "negative_answer", "webhook_taken", "query_proven", "dead_lettered", "late_result", "duplicate_execution_suspected"]);

/** What the gateway saw and what others say, side by side, and the form below. */
function Evidence({ id, role, done, close }) {
  const path = `idempotency/keys/${encodeURIComponent(id)}`;
  const { value, failure } = useLoaded(() => ask("GET", path), [id]);
  if (!value) return failure ? html`<${Notice} kind="error">${failure.message}<//>` : null;
  const lines = value.history;
  return html`<${Card} title="Evidence" className="focus" aside=${html`<button type="button" class="small" onClick=${close}>Close</button>`}>
    <p class="mono">${value.key}</p>
    <div class="halves">
      <div><h3>What the gateway saw</h3>
        <${Facts} rows=${[
          ["Request", html`<span class="mono">${value.method} ${value.path}</span>`],
          ["Sent", html`<${Time} at=${value.last_run_at} />`],
          ["Attempt", String(value.attempt)],
          ["Why unknown", value.last_error && html`<code>${value.last_error}</code>`],
        ]} />
        <${Lines} lines=${lines.filter((line) => !EVIDENCE.has(line.event))} /></div>
      <div><h3>What the provider says</h3>
        ${lines.some((line) => EVIDENCE.has(line.event)) ? html`<${Lines} lines=${lines.filter((line) => EVIDENCE.has(line.event))} />`
          : html`<p class="quiet">Nothing yet.${value.reconcile_after ? html` The provider is asked <${Time} at=${value.reconcile_after} />.` : " No provider is asked automatically."}</p>`}
      </div>
    </div>
    ${role === "operator" ? html`<${ResolveForm} onCancel=${close} onSubmit=${async (resolution) => {
      await ask("POST", `${path}/resolve`, { ...resolution, revision: value.revision });
      done();
    }} />` : null}
  <//>`;
}

function Lines({ lines }) {
  return html`<ol class="lines">${lines.map((line, index) => html`<li key=${index}><time datetime=${line.at}>${exactTime(line.at)}</time>
    <b>${word(EVENTS, line.event)}</b>${line.detail ? html` <span class="quiet wrap">${line.detail}</span>` : null}</li>`)}</ol>`;
}

/** How many keys are read at once for a preview. */
const AT_ONCE = 8;

/** The keys as they are now, with the revisions that the decision is made on. */
async function loadPreview(keys) {
  const seen = [];
  for (let from = 0; from < keys.length; from += AT_ONCE) {
    const some = keys.slice(from, from + AT_ONCE);
    seen.push(...await Promise.all(some.map((one) => ask("GET", `idempotency/keys/${encodeURIComponent(one.id)}`))));
  }
  return seen;
}

/** Several at once: what will be changed is shown first, and what became of each afterwards. */
function Bulk({ keys, letters, close }) {
  const { value: seen, failure } = useLoaded(() => loadPreview(keys), []);
  const preview = seen ?? keys;
  const [results, setResults] = useState(null);
  const run = async (resolution) => {
    const done = {};
    for (const one of preview) {
      try {
        await ask("POST", `idempotency/keys/${encodeURIComponent(one.id)}/resolve`, { ...resolution, revision: one.revision });
        done[one.id] = "resolved";
      } catch (error) {
        done[one.id] = error.message;
      }
      setResults({ ...done });
    }
  };
  const table = html`<div class="scroll preview" tabindex="0" role="region" aria-label="What will be changed"><table class="plain">
    <thead><tr><th scope="col">Key</th><th scope="col">Request</th><th scope="col">${results ? "Result" : "What is known"}</th></tr></thead>
    <tbody>${preview.map((one) => html`<tr key=${one.id}><th scope="row" class="mono key">${one.key}</th><td class="mono clip">${one.method} ${one.path}</td>
      <td class="wrap">${results ? results[one.id] ?? "…" : html`${`unknown for ${span(Date.now() - Date.parse(one.last_run_at))} `}<${Why} one=${one} letters=${letters} /><br />
        <span class="quiet">asked next: </span><${Asked} one=${one} />`}</td></tr>`)}</tbody></table></div>`;
  const finished = results && Object.keys(results).length === preview.length;
  return html`<${Dialog} wide title=${`Resolve ${preview.length} key${preview.length === 1 ? "" : "s"}`} onClose=${close}>
    <p class="quiet measure">${results ? "A key that somebody else has settled meanwhile is left as it is." : "These keys get the same outcome and the same reason. The provider is asked about each of them."}</p>
    ${failure ? html`<${Notice} kind="error">${failure.message}<//>` : null}
    ${table}
    ${finished ? html`<div class="dialog-foot"><button type="button" class="primary" onClick=${close}>Done</button></div>`
      : !seen ? html`<p class="quiet" role="status">Loading…</p>`
      : html`<${ResolveForm} count=${preview.length} onSubmit=${run} onCancel=${close} />`}
  <//>`;
}
