// Messages on their way out: by state, and a person's word on those that could not be delivered.

import { html, useEffect, useState } from "./vendor/preact-htm.js";
import { ask, query } from "./api.js";
import { Card, Dialog, Empty, Message, Notice, Pager, Rows, Time, useLoaded, useTick } from "./parts.js";
import { WAITS, bytes, word } from "./words.js";

const PAGE = 50;
/** What waits for a person, and each state by itself. */
const VIEWS = [["dead,unknown", "Dead letters"], ["pending", "Pending"], ["delivered", "Delivered"], ["discarded", "Discarded"]];
const NOTHING = {
  "dead,unknown": ["No dead letters", "Every message was delivered or is still being attempted."],
  pending: ["No pending messages", "A message appears here when the transaction that wrote it has committed."],
  delivered: ["No delivered messages", "Delivered messages are kept for a while, then deleted."],
  discarded: ["No discarded messages", "Messages that an operator discarded are kept for a while, then deleted."],
};

/** `asked` holds the view and the target as they stand in the address. */
export function Outbox({ role, asked, counts }) {
  useTick(5000);
  const state = VIEWS.some(([view]) => view === asked.get("state")) ? asked.get("state") : VIEWS[0][0];
  const target = asked.get("target") ?? "";
  const [cursors, setCursors] = useState([null]);
  const [told, setTold] = useState(null);
  const [discarding, setDiscarding] = useState(null);
  const [forcing, setForcing] = useState(null);
  const cursor = cursors[cursors.length - 1];
  useEffect(() => {
    setCursors([null]);
    setTold(null);
  }, [state, target]);
  const { value, failure, again } = useLoaded(
    () => ask("GET", `outbox${query({ state, target, cursor, limit: PAGE })}`).then((page) => ({ ...page, of: state })),
    [state, target, cursor],
    3000,
  );
  const messages = value?.of === state ? value.messages : null;
  const retry = async (message) => {
    try {
      await ask("POST", `outbox/${message.id}/retry`, {});
      setTold({ text: `${message.downstream_key} will be sent again under the same key.` });
    } catch (error) {
      if (error.code === "may_have_arrived") setForcing(message);
      else setTold({ kind: "error", text: error.message });
    }
    again();
  };
  const submit = (event) => {
    event.preventDefault();
    location.hash = `/outbox${query({ state, target: new FormData(event.currentTarget).get("target").trim() })}`;
  };
  const count = (view) => (counts ? view.split(",").reduce((sum, one) => sum + (counts[one] ?? 0), 0) : null);
  return html`
    <h1 tabindex="-1">Outbox</h1>
    <p class="quiet measure">Messages written in a transaction and delivered to their targets after it commits. A message that could not be delivered becomes a dead letter and waits for an operator.</p>
    ${failure ? html`<${Notice} kind="error">${failure.message}<//>` : null}
    ${told ? html`<${Notice} kind=${told.kind}>${told.text}<//>` : null}
    <div class="segments spaced" role="group" aria-label="Which">${VIEWS.map(([view, label]) => html`<button key=${view} type="button" aria-pressed=${view === state}
      onClick=${() => { location.hash = `/outbox${query({ state: view, target })}`; }}>${label}${count(view) == null ? "" : ` ${count(view)}`}</button>`)}</div>
    <form class="search" role="search" onSubmit=${submit} key=${target}>
      <label>Target<input name="target" defaultValue=${target} autocomplete="off" spellcheck=${false} /></label>
      <button class="primary" type="submit">Search</button>
      ${target ? html`<a class="button" href=${`#/outbox${query({ state })}`}>Clear</a>` : null}
    </form>
    ${messages && !messages.length ? html`<${Empty} title=${NOTHING[state][0]}>${NOTHING[state][1]}<//>` : null}
    ${messages?.length ? html`<${List} messages=${messages} decides=${role === "operator" && state === VIEWS[0][0]} retry=${retry} discard=${setDiscarding} />` : null}
    ${messages ? html`<${Pager} cursors=${cursors} setCursors=${setCursors} next=${value.next} />` : null}
    ${discarding ? html`<${Discard} message=${discarding} close=${() => { setDiscarding(null); again(); }} />` : null}
    ${forcing ? html`<${Force} message=${forcing} close=${() => { setForcing(null); again(); }} />` : null}`;
}

function List({ messages, decides, retry, discard }) {
  return html`<${Card} title="Newest first"><${Rows} label="Messages"><thead><tr><th scope="col">Key</th><th scope="col">State</th><th scope="col">Target</th><th scope="col">Type</th>
      <th scope="col">Created</th><th scope="col">Due or delivered</th><th scope="col" class="number">Attempts</th><th scope="col" class="number">Size</th><th scope="col">Why</th>
      ${decides ? html`<th scope="col"><span class="hidden">Decide</span></th>` : null}</tr></thead>
    <tbody>${messages.map((one) => html`<tr key=${one.id}>
      <th scope="row" class="mono key" title=${one.id}>${one.key_id ? html`<a href=${`#/keys/${one.key_id}`}>${one.downstream_key}</a>` : one.downstream_key}</th>
      <td><${Message} state=${one.state} /></td>
      <td class="mono">${one.target}</td>
      <td class="mono clip" title=${one.type}>${one.type}</td>
      <td><${Time} at=${one.created_at} /></td>
      <td><${Time} at=${one.delivered_at ?? (one.state === "pending" ? one.due_at : null)} /></td>
      <td class="number">${one.attempts}</td>
      <td class="number">${bytes(one.bytes)}</td>
      <td class="wrap"><${Why} message=${one} /></td>
      ${decides ? html`<td class="buttons">
        <button type="button" class="small" aria-label=${`Retry ${one.downstream_key}`} onClick=${() => retry(one)}>Retry</button>
        <button type="button" class="small" aria-label=${`Discard ${one.downstream_key}`} onClick=${() => discard(one)}>Discard…</button></td>` : null}
    </tr>`)}</tbody><//><//>`;
}

/** Why a message is not delivered: what it waits for, and what the last attempt ended with. */
function Why({ message }) {
  const { waits_for: waits, last_error: error, target } = message;
  const text = waits === "no_such_target"
    ? html`<b class="bad-text">No target named <span class="mono">${target}</span> is configured at this gateway.</b> Add it under <code>outbox.targets</code>, or run a worker that has it.`
    : waits ? word(WAITS, waits) : null;
  return html`${text}${text && error ? html`<br />` : null}${error ? html`<span class=${text ? "quiet" : ""}>${text ? "Last error: " : ""}${error}</span>` : null}`;
}

/** What may have arrived is sent again only on somebody's word, which goes to the audit. */
function Force({ message, close }) {
  const [failure, setFailure] = useState(null);
  const submit = async (event) => {
    event.preventDefault();
    const reason = new FormData(event.currentTarget).get("reason");
    try {
      await ask("POST", `outbox/${message.id}/retry`, { reason, force: true });
      close();
    } catch (error) {
      setFailure(error);
    }
  };
  return html`<${Dialog} title="Send a message that may have arrived" onClose=${close}>
    <p><span class="mono">${message.downstream_key}</span> to <span class="mono">${message.target}</span> may have arrived, and the receiver no longer recognises its key:
      if it is sent again, it may take effect twice. Check with the receiver first.</p>
    <form onSubmit=${submit}>
      <label>Reason, for the audit<input name="reason" required maxlength="500" autocomplete="off" /></label>
      ${failure ? html`<${Notice} kind="error">${failure.message}<//>` : null}
      <div class="form-foot"><button type="button" onClick=${close}>Cancel</button><button class="danger" type="submit">Send it anyway</button></div>
    </form>
  <//>`;
}

/** A discarded message is never sent again, so a reason is asked for. */
function Discard({ message, close }) {
  const [failure, setFailure] = useState(null);
  const submit = async (event) => {
    event.preventDefault();
    const reason = new FormData(event.currentTarget).get("reason");
    try {
      await ask("POST", `outbox/${message.id}/discard`, { reason });
      close();
    } catch (error) {
      setFailure(error);
    }
  };
  return html`<${Dialog} title="Discard a message" onClose=${close}>
    <p><span class="mono">${message.downstream_key}</span> to <span class="mono">${message.target}</span> will never be sent again. ${message.state === "unknown"
      ? "It may have arrived already." : ""}</p>
    <form onSubmit=${submit}>
      <label>Reason, for the audit<input name="reason" required maxlength="500" autocomplete="off" /></label>
      ${failure ? html`<${Notice} kind="error">${failure.message}<//>` : null}
      <div class="form-foot"><button type="button" onClick=${close}>Cancel</button><button class="danger" type="submit">Discard</button></div>
    </form>
  <//>`;
}
