// The admin API as the pages use it: one way to ask, one kind of failure.

/** How long a question may take. A change has no such limit: giving up on one would not undo it. */
const QUESTION_MS = 10_000;

/** What went wrong, in words that can be shown. */
export class Failure extends Error {
  constructor(status, detail, code) {
    super(detail);
    this.status = status;
    this.code = code;
  }
}

let onSignedOut = () => {};

/** Has `act` called when a session turns out to be over. */
export function whenSignedOut(act) {
  onSignedOut = act;
}

/** Says that the session is over. */
export function signedOut() {
  onSignedOut();
}

/** Asks, and gives the answer's JSON; throws a Failure for anything but success. */
export async function ask(method, path, body) {
  const headers = { "X-OnlyOnce-Page": "1" };
  if (body !== undefined) headers["Content-Type"] = "application/json";
  let answer;
  let text;
  try {
    answer = await fetch(path, {
      method,
      headers,
      body: body === undefined ? undefined : JSON.stringify(body),
      credentials: "same-origin",
      signal: method === "GET" ? AbortSignal.timeout(QUESTION_MS) : undefined,
    });
    text = await answer.text();
  } catch {
    throw new Failure(0, "The gateway does not answer.");
  }
  let value = null;
  try {
    value = text ? JSON.parse(text) : null;
  } catch {
    // Not JSON: only the status is known then.
  }
  if (answer.ok) return value;
  if (answer.status === 401 && path !== "session") onSignedOut();
  throw new Failure(answer.status, value?.detail ?? `The gateway answered ${answer.status}.`, value?.code);
}

/** A query string of what is not empty. */
export function query(fields) {
  const given = Object.entries(fields).filter(([, value]) => value !== "" && value != null);
  return given.length ? `?${new URLSearchParams(given)}` : "";
}
