// The form in which an operator says what became of one unknown key, or of several.

import { html, useState } from "./vendor/preact-htm.js";
import { Notice } from "./parts.js";

/** `onSubmit` gets the resolution as the admin API takes it; what it throws is shown. */
export function ResolveForm({ submitLabel, onSubmit, extra }) {
  const [outcome, setOutcome] = useState("completed");
  const [busy, setBusy] = useState(false);
  const [failure, setFailure] = useState(null);
  const submit = async (event) => {
    event.preventDefault();
    const form = new FormData(event.currentTarget);
    const resolution = { outcome, reason: form.get("reason") };
    if (outcome === "completed") {
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
  return html`<form class="resolve" onSubmit=${submit}>
    <fieldset><legend>What you found</legend>
      <label class="choice"><input type="radio" name="outcome" value="completed" checked=${outcome === "completed"} onChange=${() => setOutcome("completed")} />
        <span><b>It happened.</b> Retries get the answer below.</span></label>
      <label class="choice"><input type="radio" name="outcome" value="failed_retryable" checked=${outcome === "failed_retryable"} onChange=${() => setOutcome("failed_retryable")} />
        <span><b>It did not happen.</b> The next retry executes it.</span></label>
    </fieldset>
    ${outcome === "completed" ? html`<div class="answer-fields">
      <label>Status<input name="status" type="number" min="200" max="599" defaultValue="201" required /></label>
      <label>Content-Type<input name="type" defaultValue="application/json" /></label>
      <label class="full">Body<textarea name="body" rows="3" spellcheck=${false}></textarea></label>
    </div>` : null}
    <label>Reason, for the audit<input name="reason" required maxlength="500" autocomplete="off" /></label>
    ${extra}
    ${failure ? html`<${Notice} kind="error">${failure.message}<//>` : null}
    <div class="form-foot"><button class="primary" type="submit" disabled=${busy}>${busy ? "Working…" : submitLabel}</button></div>
  </form>`;
}
