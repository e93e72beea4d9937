// The form in which an operator says what became of one unknown key, or of several.

import { html, useState } from "./vendor/preact-htm.js";
import { Notice } from "./parts.js";

/** Refusals that an operator may overrule for one key at a time. */
const OVERRULED = new Set(["inconclusive", "too_early"]);

/** `onSubmit` gets the resolution as the admin API takes it; what it throws is shown. `count` is how many keys it
 * is for: several get their answers from the provider, and a release of several is confirmed by their number. */
export function ResolveForm({ count = 1, onSubmit, onCancel }) {
  const [outcome, setOutcome] = useState(null);
  const [busy, setBusy] = useState(false);
  const [failure, setFailure] = useState(null);
  const choose = (value) => {
    setOutcome(value);
    setFailure(null);
  };
  const submit = async (event) => {
    event.preventDefault();
    const form = new FormData(event.currentTarget);
    const release = outcome === "failed_retryable";
    const resolution = { outcome: release ? outcome : "completed", reason: form.get("reason") };
    if (release) resolution.force = form.get("force") === "on";
    if (outcome === "provider") resolution.response = "provider";
    if (outcome === "given") {
      const headers = form.get("type") ? { "Content-Type": form.get("type") } : {};
      resolution.response = { status: Number(form.get("status")), headers, body: form.get("body") };
    }
    setBusy(true);
    setFailure(null);
    try {
      await onSubmit(resolution);
    } catch (error) {
      setFailure(error);
    } finally {
      setBusy(false);
    }
  };
  const choice = (value, title, text) => html`<label class="choice"><input type="radio" name="outcome" value=${value} required
    checked=${outcome === value} onChange=${() => choose(value)} /><span><b>${title}</b> ${text}</span></label>`;
  const releases = outcome === "failed_retryable";
  const keys = count === 1 ? "this key" : `${count} keys`;
  return html`<form class="resolve" onSubmit=${submit}>
    <fieldset><legend>What you found</legend>
      ${choice("provider", "It happened.", "The provider is asked, and retries get its answer.")}
      ${count === 1 ? choice("given", "It happened.", "Retries get an answer that I enter.") : null}
      ${choice("failed_retryable", "It did not happen.", "The provider is asked first. The next retry executes it.")}
    </fieldset>
    ${outcome === "given" ? html`<div class="answer-fields">
      <label>Status<input name="status" type="number" min="200" max="599" defaultValue="201" required /></label>
      <label>Content-Type<input name="type" defaultValue="application/json" /></label>
      <label class="full">Body<textarea name="body" rows="3" spellcheck=${false}></textarea></label>
    </div>` : null}
    <label>Reason, for the audit<input name="reason" required maxlength="500" autocomplete="off" /></label>
    ${releases && count > 1 ? html`<label>Type ${count} to release ${keys}<input name="confirm" required pattern=${String(count)}
      autocomplete="off" inputmode="numeric" title=${`The number of keys: ${count}`} /></label>` : null}
    ${failure ? html`<${Notice} kind="error">${failure.message}<//>` : null}
    ${releases && OVERRULED.has(failure?.code) && count === 1 ? html`<label class="choice"><input type="checkbox" name="force" required />
      <span><b>Release it anyway.</b> I have checked in the provider's own records that it did not happen and can no longer happen.</span></label>` : null}
    <div class="form-foot">
      ${onCancel ? html`<button type="button" onClick=${onCancel}>Cancel</button>` : null}
      <button class=${releases ? "danger" : "primary"} type="submit" disabled=${busy || !outcome}>${busy ? "Working…" : releases ? `Release ${keys}` : `Complete ${keys}`}</button>
    </div>
  </form>`;
}
