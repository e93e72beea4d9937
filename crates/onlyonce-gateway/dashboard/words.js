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
  dead: "Dead",
  unknown: "Unknown",
  discarded: "Discarded",
};

export const DECISIONS = {
  new: "New",
  replayed: "Replayed",
  waited: "Waited",
  refused: "Refused",
  unknown: "Unknown",
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
  duplicate_execution_suspected: "Duplicate suspected",
  reconciled: "Reconciled",
  evidence_kept: "Evidence kept",
  inconclusive: "Inconclusive",
  negative_answer: "Not found",
  webhook_taken: "Webhook",
  query_proven: "Query proven",
  dead_lettered: "Dead letter",
  resolved: "Resolved",
  extended: "Extended",
  forgotten: "Forgotten",
  erased: "Erased",
  expired: "Expired",
  response_shown: "Answer shown",
  message_retried: "Message sent again",
  message_discarded: "Message discarded",
};

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

export function timeOfDay(at) {
  return clock.format(new Date(at));
}

export function fullTime(at) {
  const date = new Date(at);
  return `${day.format(date)}, ${clock.format(date)}`;
}
