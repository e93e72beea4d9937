// Numbers, times and states as people read them.

export const STATES = {
  in_progress: "In progress",
  completed: "Completed",
  failed_retryable: "Failed, retryable",
  unknown: "Unknown",
  expired: "Expired",
};

export const MESSAGES = {
  pending: "Pending",
  delivered: "Delivered",
  dead: "Given up",
  unknown: "May have arrived",
  discarded: "Discarded",
};

/** What became of requests. Keys whose outcome is unknown are counted elsewhere: this is about their retries. */
export const DECISIONS = {
  new: "Executed",
  replayed: "Replayed",
  waited: "Waited first",
  refused: "Refused",
  unknown: "Refused: outcome unknown",
};

/** What a message waits for. */
export const WAITS = {
  no_such_target: "This gateway has no such target",
  due_time: "Not due yet",
  next_attempt: "Waits for its next attempt",
  receiver: "Waits for the receiver's answer",
  earlier_message: "Waits for an earlier message with its ordering key",
  delivery: "Is about to be sent",
};

export const ACTORS = {
  executor: "Gateway",
  sweeper: "Lease check",
  reaper: "Expiry",
  reconciler: "Provider check",
  operator: "Operator",
};

export const EVENTS = {
  reserved: "Reserved",
  completed: "Completed",
  executed_again: "Executed again",
  executed_after_expiry: "Executed after expiry",
  released: "Released",
  became_unknown: "Became unknown",
  lease_lapsed: "Lease lapsed",
  late_result: "Late result",
  stream_broken: "Answer broke off",
  release_was_wrong: "Release was wrong",
  duplicate_execution_suspected: "Double execution suspected",
  reconciled: "Reconciled",
  evidence_kept: "Evidence kept",
  inconclusive: "Provider check inconclusive",
  negative_answer: "Provider did not find it",
  webhook_taken: "Webhook received",
  query_proven: "Query shown to work",
  dead_lettered: "Became a dead letter",
  resolved: "Resolved",
  extended: "Extended",
  forgotten: "Forgotten",
  erased: "Erased",
  expired: "Expired",
  response_shown: "Answer viewed",
  message_retried: "Message retried",
  message_discarded: "Message discarded",
  loss_accepted: "Loss of keys accepted",
};

/** What shadow mode says would have become of a request. */
export const WOULD = {
  execute: "Executed",
  execute_again: "Executed again after a release",
  execute_after_expiry: "Executed after expiry",
  replay: "Duplicate answered",
  wait: "Duplicate answered after a wait",
  refuse_in_progress: "Refused: first one still running",
  refuse_mismatch: "Refused: key reused",
  refuse_unknown: "Refused: outcome unknown",
  refuse_not_stored: "Refused: answer too large to store",
  refuse_expired: "Refused: key expired",
  refuse_missing: "Refused: no key",
  pass_without_key: "Passed unprotected: no key",
  refuse_invalid: "Refused: invalid key",
  refuse_too_large: "Refused: body too large",
  refuse_unauthenticated: "Refused: no credential",
  refuse_limited: "Refused: limit reached",
  refuse_too_old: "Refused: request too old",
  unobserved: "Not observed",
};

/** "1 key", "2 keys". */
export function plural(number, noun) {
  return number === 1 ? noun : `${noun}s`;
}

/** The word of a closed list, or the word itself with its underscores opened. */
export function word(list, name) {
  return list[name] ?? String(name ?? "").replaceAll("_", " ");
}

const grouped = new Intl.NumberFormat("en");
const compact = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });

export function count(number) {
  if (number == null) return "–";
  return number < 100_000 ? grouped.format(number) : compact.format(number);
}

export function rate(number) {
  if (number == null) return "–";
  if (number === 0) return "0";
  return number < 10 ? number.toFixed(1) : count(Math.round(number));
}

export function bytes(number) {
  if (number < 1024) return `${number} B`;
  if (number < 1024 * 1024) return `${(number / 1024).toFixed(1)} KiB`;
  return `${(number / 1024 / 1024).toFixed(1)} MiB`;
}

/** A length of time, in milliseconds, in its two largest units. */
export function span(ms) {
  const whole = Math.max(0, ms);
  if (whole < 1) return whole > 0 ? `${whole.toFixed(2)} ms` : "0 ms";
  if (whole < 1000) return `${whole < 10 ? whole.toFixed(1) : Math.round(whole)} ms`;
  const seconds = whole / 1000;
  if (seconds < 10) return `${seconds.toFixed(1)} s`;
  if (seconds < 60) return `${Math.round(seconds)} s`;
  const minutes = Math.floor(seconds / 60);
  if (minutes < 60) return `${minutes} min ${Math.floor(seconds % 60)} s`;
  const hours = Math.floor(minutes / 60);
  if (hours < 48) return `${hours} h ${minutes % 60} min`;
  return `${Math.floor(hours / 24)} d ${hours % 24} h`;
}

/** A time of day with its milliseconds. */
export function exactTime(at) {
  const date = new Date(at);
  return `${day.format(date)}, ${clock.format(date)}.${String(date.getMilliseconds()).padStart(3, "0")}`;
}

/** The day alone, without its year. */
export function dayOf(at) {
  return shortDay.format(new Date(at));
}

/** The zone that times are shown in. */
export const ZONE = Intl.DateTimeFormat().resolvedOptions().timeZone;

/** How long ago, or how far ahead, a moment is. */
export function since(at, now = Date.now()) {
  const ms = now - Date.parse(at);
  if (Math.abs(ms) < 1500) return "now";
  return ms >= 0 ? `${span(ms)} ago` : `in ${span(-ms)}`;
}

const clock = new Intl.DateTimeFormat("en-GB", {
  hour: "2-digit", minute: "2-digit", second: "2-digit", hour12: false,
});
const day = new Intl.DateTimeFormat("en-GB", { day: "numeric", month: "short", year: "numeric" });

const shortDay = new Intl.DateTimeFormat("en-GB", { day: "numeric", month: "short" });

export function timeOfDay(at) {
  return clock.format(new Date(at));
}

export function fullTime(at) {
  const date = new Date(at);
  return `${day.format(date)}, ${clock.format(date)}`;
}
