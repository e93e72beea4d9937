// Small parts that every page uses.

import { html, useEffect, useRef, useState } from "./vendor/preact-htm.js";
import { MESSAGES, STATES, fullTime, since, word } from "./words.js";

/** The colours of the states of keys that mean the same for a message. */
const LIKE = { pending: "in_progress", delivered: "completed", dead: "failed_retryable", unknown: "unknown", discarded: "expired" };

export function State({ state }) {
  return html`<span class=${`badge state-${state}`}><i class="dot" aria-hidden="true"></i>${word(STATES, state)}</span>`;
}

/** The state of a message. */
export function Message({ state }) {
  return html`<span class=${`badge state-${LIKE[state]}`}><i class="dot" aria-hidden="true"></i>${word(MESSAGES, state)}</span>`;
}

/** A moment as a distance from now, with the exact time on hover and for readers. */
export function Time({ at }) {
  if (!at) return html`<span class="quiet">–</span>`;
  return html`<time datetime=${at} title=${fullTime(at)}>${since(at)}</time>`;
}

/** A moment with its date, and its distance from now. */
export function Dated({ at }) {
  if (!at) return html`<span class="quiet">–</span>`;
  return html`<time datetime=${at} title=${at}>${fullTime(at)}</time> <span class="quiet">${since(at)}</span>`;
}

/** A table that scrolls in its own box. In a narrow window each row becomes a block with its headings beside the
 * values, so that nothing is cut off; the roles keep it a table for screen readers. */
export function Rows({ label, children }) {
  const box = useRef(null);
  useEffect(() => {
    const table = box.current.querySelector("table");
    const heads = [...table.querySelectorAll("thead th")].map((head) => (head.querySelector(".hidden") ? "" : head.textContent));
    table.setAttribute("role", "table");
    for (const part of table.querySelectorAll("thead, tbody")) part.setAttribute("role", "rowgroup");
    for (const row of table.rows) {
      row.setAttribute("role", "row");
      [...row.cells].forEach((cell, index) => {
        const role = cell.tagName === "TD" ? "cell" : cell.scope === "row" ? "rowheader" : "columnheader";
        cell.setAttribute("role", role);
        if (row.cells.length === heads.length) cell.dataset.label = heads[index];
      });
    }
  });
  return html`<div ref=${box} class="scroll" tabindex="0" role="region" aria-label=${`Table: ${label}`}><table class="plain rows">${children}</table></div>`;
}

/** Newer and older pages. */
export function Pager({ cursors, setCursors, next }) {
  if (!next && cursors.length === 1) return null;
  return html`<nav class="pager" aria-label="Older and newer">
    <button type="button" disabled=${cursors.length === 1} onClick=${() => setCursors(cursors.slice(0, -1))}>Newer</button>
    <span class="quiet">Page ${cursors.length}</span>
    <button type="button" disabled=${!next} onClick=${() => setCursors([...cursors, next])}>Older</button>
  </nav>`;
}

export function Empty({ title, children }) {
  return html`<div class="empty">
    <svg class="empty-mark" viewBox="0 0 48 48" aria-hidden="true"><circle cx="24" cy="24" r="17" /><path d="M16 24.500 22 30 33 18" /></svg>
    <p class="empty-title">${title}</p>
    <p class="quiet">${children}</p>
  </div>`;
}

export function Notice({ kind = "info", children }) {
  return html`<div class=${`notice ${kind}`} role=${kind === "error" ? "alert" : "status"}>${children}</div>`;
}

export function Card({ title, aside, children, className = "" }) {
  const id = `card-${title.toLowerCase().replaceAll(/[^a-z]+/g, "-")}`;
  return html`<section class=${`card ${className}`} aria-labelledby=${id}>
    <header class="card-head"><h2 id=${id}>${title}</h2>${aside}</header>
    ${children}
  </section>`;
}

export function Facts({ rows }) {
  return html`<dl class="facts">${rows
    .filter(([, value]) => value != null && value !== "")
    .map(([name, value]) => html`<div key=${name}><dt>${name}</dt><dd>${value}</dd></div>`)}</dl>`;
}

/** A dialog that the browser itself keeps the focus in. */
export function Dialog({ title, onClose, children, wide = false }) {
  const box = useRef(null);
  useEffect(() => {
    const dialog = box.current;
    dialog.showModal();
    return () => dialog.close();
  }, []);
  return html`<dialog ref=${box} class=${wide ? "wide" : ""} aria-labelledby="dialog-title"
      onCancel=${(event) => { event.preventDefault(); onClose(); }}>
    <header class="dialog-head">
      <h2 id="dialog-title">${title}</h2>
      <button class="icon" type="button" aria-label="Close" onClick=${onClose}>
        <svg viewBox="0 0 20 20" aria-hidden="true"><path d="M5 5l10 10M15 5 5 15" /></svg>
      </button>
    </header>
    ${children}
  </dialog>`;
}

/** Runs `load` now, when `inputs` change, and every `every` milliseconds if given. */
export function useLoaded(load, inputs, every) {
  const [state, setState] = useState({ value: null, failure: null, loading: true });
  const again = useRef(() => {});
  useEffect(() => {
    let over = false;
    let under = 0;
    const run = async () => {
      under += 1;
      try {
        const value = await load();
        if (!over) setState({ value, failure: null, loading: false });
      } catch (failure) {
        if (!over) setState((was) => ({ ...was, failure, loading: false }));
      } finally {
        under -= 1;
      }
    };
    again.current = run;
    setState((was) => ({ ...was, loading: true }));
    run();
    // A gateway that is slow is not asked a second time before it has answered the first.
    const timer = every ? setInterval(() => document.hidden || under || run(), every) : null;
    return () => {
      over = true;
      clearInterval(timer);
    };
  }, inputs);
  return { ...state, again: () => again.current() };
}

/** Redraws every `ms`, for texts such as "3 s ago". */
export function useTick(ms = 1000) {
  const [, setTick] = useState(0);
  useEffect(() => {
    const timer = setInterval(() => document.hidden || setTick((tick) => tick + 1), ms);
    return () => clearInterval(timer);
  }, [ms]);
}
