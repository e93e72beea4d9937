// What the gateway tells of itself every second, shared by all parts of the page; and whether it still does.

import { useEffect, useState } from "./vendor/preact-htm.js";
import { ask, signedOut } from "./api.js";

/** How many rows are kept: a quarter of an hour, as in the gateway. */
const KEPT = 900;
const RETRY_MS = 2000;
/** The gateway says something every second. After this much silence it does not answer. */
const SILENCE_MS = 2200;
/** Figures that are older than this are not those of now: the gateway lives, and its store is late. */
const LATE_MS = 5000;
/** How often the silence is measured. */
const LISTEN_MS = 200;
/** After so much silence the connection is made anew: the old one may lead nowhere. */
const RECONNECT_MS = 15_000;

const live = { sample: null, rows: [], connected: false, silent: false, late: false, heard: null };
const told = new Set();
let source = null;
let retry = null;
let watch = null;
/** When something was last heard, when figures last came, and when the connection was last made; by a clock that never jumps. */
let heardAt = 0;
let sampledAt = 0;
let dialledAt = 0;

function tell() {
  for (const update of told) update();
}

function row(values) {
  const [at, span, ...decided] = values;
  const [reserve, upstream, complete] = values.slice(7);
  const perSecond = decided.slice(0, 5).map((number) => (span ? (number * 1000) / span : 0));
  return { at: at / 1000, decided: perSecond, latency: { reserve, upstream, complete } };
}

function heard() {
  heardAt = performance.now();
  live.connected = true;
  live.silent = false;
}

function listen() {
  const now = performance.now();
  const silent = now - heardAt > SILENCE_MS;
  const late = !silent && live.sample != null && now - sampledAt > LATE_MS;
  if (silent !== live.silent || late !== live.late) {
    live.silent = silent;
    live.late = late;
    if (silent) live.connected = false;
    tell();
  }
  if (now - Math.max(heardAt, dialledAt) > RECONNECT_MS) dial();
}

/** A closed connection is one that was refused: because the session is over, or for a reason that passes. */
async function refused() {
  try {
    await ask("GET", "session");
  } catch (failure) {
    if (failure.status === 401) {
      signedOut();
      return;
    }
  }
  if (watch) retry = setTimeout(dial, RETRY_MS);
}

function dial() {
  clearTimeout(retry);
  source?.close();
  dialledAt = performance.now();
  const opened = new EventSource("events");
  source = opened;
  opened.addEventListener("alive", () => {
    heard();
    tell();
  });
  opened.addEventListener("history", (event) => {
    live.rows = JSON.parse(event.data).rows.map(row);
    heard();
    tell();
  });
  opened.addEventListener("sample", (event) => {
    const sample = JSON.parse(event.data);
    live.sample = sample;
    live.heard = Date.now();
    live.late = false;
    sampledAt = performance.now();
    heard();
    if (sample.row) {
      live.rows.push(row(sample.row));
      if (live.rows.length > KEPT) live.rows.shift();
    }
    tell();
  });
  opened.onerror = () => {
    live.connected = false;
    tell();
    // The browser gives up after an answer such as 401 or 503; this does not.
    if (opened === source && opened.readyState === EventSource.CLOSED) refused();
  };
}

/** Begins to listen. */
export function start() {
  stop();
  heardAt = performance.now();
  watch = setInterval(listen, LISTEN_MS);
  dial();
}

/** Stops listening. */
export function stop() {
  clearTimeout(retry);
  clearInterval(watch);
  watch = null;
  source?.close();
  source = null;
  live.connected = false;
  live.silent = false;
  live.late = false;
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
