// What the gateway tells of itself every second, shared by all parts of the page.

import { useEffect, useState } from "./vendor/preact-htm.js";

/** How many rows are kept: a quarter of an hour, as in the gateway. */
const KEPT = 900;
const RETRY_MS = 2000;

const live = { sample: null, rows: [], connected: false };
const told = new Set();
let source = null;
let retry = null;

function tell() {
  for (const update of told) update();
}

function row(values) {
  const [at, span, ...decided] = values;
  const [reserve, upstream, complete] = values.slice(7);
  const perSecond = decided.slice(0, 5).map((number) => (span ? (number * 1000) / span : 0));
  return { at: at / 1000, decided: perSecond, latency: { reserve, upstream, complete } };
}

/** Begins to listen. */
export function start() {
  stop();
  source = new EventSource("events");
  source.addEventListener("history", (event) => {
    live.rows = JSON.parse(event.data).rows.map(row);
    live.connected = true;
    tell();
  });
  source.addEventListener("sample", (event) => {
    const sample = JSON.parse(event.data);
    live.sample = sample;
    live.connected = true;
    if (sample.row) {
      live.rows.push(row(sample.row));
      if (live.rows.length > KEPT) live.rows.shift();
    }
    tell();
  });
  source.onerror = () => {
    live.connected = false;
    // The browser gives up after an answer such as 401 or 503; this does not.
    if (source?.readyState === EventSource.CLOSED) retry = setTimeout(start, RETRY_MS);
    tell();
  };
}

/** Stops listening. */
export function stop() {
  clearTimeout(retry);
  source?.close();
  source = null;
  live.connected = false;
}

/** The newest state, redrawn as it comes. */
export function useLive() {
  const [, setTick] = useState(0);
  useEffect(() => {
    const update = () => setTick((tick) => tick + 1);
    told.add(update);
    return () => told.delete(update);
  }, []);
  return live;
}
