// A key's life as a picture. Columns are moments in their order, not to scale: a lease of a minute and
// an expiry of a day would not fit on one ruler. The time between two moments stands above them.

import { html, useEffect, useRef, useState } from "./vendor/preact-htm.js";
import { EVENTS, dayOf, fullTime, span, timeOfDay, word } from "./words.js";

const LANES = [
  ["attempt", "Attempts"], ["lease", "Lease"], ["settlement", "Settlement"], ["evidence", "Evidence"], ["operator", "Operator"],
];
const LANE_OF = {
  reserved: "attempt", executed_again: "attempt", executed_after_expiry: "attempt",
  reconciled: "evidence", evidence_kept: "evidence", inconclusive: "evidence", negative_answer: "evidence", webhook_taken: "evidence", query_proven: "evidence", dead_lettered: "evidence",
  resolved: "operator", extended: "operator", forgotten: "operator", response_shown: "operator",
};
const ENDS_ATTEMPT = new Set(["completed", "released", "became_unknown", "lease_lapsed"]);
const BEGINS_ATTEMPT = new Set(["reserved", "executed_again", "executed_after_expiry"]);

/** Below this width, in pixels, the moments are a list: a picture would have to be scrolled. */
const NARROW = 520;
const LEFT = 92;
/** The distance of two columns, in pixels: at least, and at most. */
const STEP = [132, 240];
const TOP = 72;
const LANE = 56;

/** The moments of a record in their order: what happened, and what is to come. */
function moments(record, now, room) {
  const list = record.history.map((line) => ({
    at: Date.parse(line.at), event: line.event, lane: LANE_OF[line.event] ?? "settlement",
    attempt: line.attempt, to: line.to, label: word(EVENTS, line.event), detail: line.detail,
  }));
  if (record.state === "in_progress") {
    list.push({ at: now, event: "now", lane: null, label: "Now" });
    if (record.lease_until) list.push({ at: Date.parse(record.lease_until), event: "lease_until", lane: null, label: "Lease ends", future: true });
  }
  if (record.state === "unknown" && record.reconcile_after) {
    list.push({ at: Date.parse(record.reconcile_after), event: "look", lane: "evidence", label: "Next look", future: Date.parse(record.reconcile_after) > now });
  }
  if (record.expires_at && record.state !== "expired") {
    list.push({ at: Date.parse(record.expires_at), event: "expires", lane: "settlement", label: "Expires", future: Date.parse(record.expires_at) > now, to: "expired" });
  }
  const step = Math.min(STEP[1], Math.max(STEP[0], (room - LEFT - 120) / Math.max(1, list.length - 1)));
  const placed = list.sort((a, b) => a.at - b.at).map((moment, index) => ({ ...moment, x: LEFT + 60 + index * step }));
  return { list: placed, step };
}

/** From where to where each attempt runs. */
function attempts(list) {
  const bars = [];
  let open = null;
  for (const moment of list) {
    if (BEGINS_ATTEMPT.has(moment.event)) {
      open = { from: moment, to: null, number: moment.attempt };
      bars.push(open);
    } else if (open && (ENDS_ATTEMPT.has(moment.event) || moment.event === "now")) {
      open.to = moment;
      if (moment.event !== "now") open = null;
    }
  }
  return bars;
}

const laneY = (name) => TOP + LANES.findIndex(([lane]) => lane === name) * LANE + LANE / 2 - 6;

function Mark({ moment }) {
  const y = laneY(moment.lane);
  const tone = moment.to ? `draw-state-${moment.to}` : moment.lane === "operator" ? "draw-operator" : "draw-plain";
  const title = `${moment.label}, ${fullTime(moment.at)}${moment.detail ? `: ${moment.detail}` : ""}`;
  return html`<g class=${moment.future ? "future" : ""}><title>${title}</title>
    <circle class=${tone} cx=${moment.x} cy=${y} r="7" />
    <text class="mark-label" x=${moment.x} y=${y + 22} text-anchor="middle">${moment.label}</text></g>`;
}

function Bar({ bar, record, lease }) {
  const y = laneY("attempt");
  const end = bar.to ?? bar.from;
  const width = Math.max(14, end.x - bar.from.x);
  const running = !bar.to || bar.to.event === "now";
  // What the lease covered: until the end of the attempt, or until it runs out.
  const leaseEnd = running ? lease?.x ?? end.x : end.x;
  return html`<g>
    <rect class=${running ? "attempt running" : "attempt"} x=${bar.from.x - 7} y=${y - 11} width=${width + 14} height="22" rx="6" />
    <text class="attempt-label" x=${bar.from.x + 4} y=${y + 4}>${`Attempt ${bar.number}`}</text>
    <rect class=${running ? "lease running" : "lease"} x=${bar.from.x - 3} y=${laneY("lease") - 4} width=${Math.max(14, leaseEnd - bar.from.x) + 6} height="8" rx="4" />
    ${running && record.waiters ? html`<text class="mark-label" x=${end.x} y=${y + 26} text-anchor="middle">${`${record.waiters} waiting`}</text>` : null}
  </g>`;
}

/** The same moments one below the other. */
function Moments({ list }) {
  const tone = (moment) => (moment.to ? `state-${moment.to}` : "state-expired");
  return html`<ol class="moments">${list.map((moment, index) => html`<li key=${index} class=${`${tone(moment)} ${moment.future ? "future" : ""}`}>
    <i class="dot" aria-hidden="true"></i><div><b>${BEGINS_ATTEMPT.has(moment.event) ? `${moment.label}, attempt ${moment.attempt}` : moment.label}</b>
    <span class="quiet">${fullTime(moment.at)}${index ? `, +${span(moment.at - list[index - 1].at)}` : ""}</span></div></li>`)}</ol>`;
}

export function Timeline({ record, now = Date.now() }) {
  const box = useRef(null);
  const [room, setRoom] = useState(0);
  useEffect(() => {
    const observer = new ResizeObserver(([entry]) => setRoom(entry.contentRect.width));
    observer.observe(box.current);
    return () => observer.disconnect();
  }, []);
  const { list, step } = moments(record, now, room);
  if (room && room < NARROW) return html`<div ref=${box}><${Moments} list=${list} /></div>`;
  const bars = attempts(list);
  const lease = list.find((moment) => moment.event === "lease_until");
  const width = Math.max(room, LEFT + 120 + (list.length - 1) * step);
  const height = TOP + LANES.length * LANE + 8;
  const told = list.map((moment) => `${moment.label} ${fullTime(moment.at)}`).join("; ");
  return html`<div ref=${box} class="scroll" tabindex="0" role="region" aria-label="Timeline, scrolls sideways">
    <svg class="timeline" width=${width} height=${height} viewBox=${`0 0 ${width} ${height}`} role="img" aria-label=${`Timeline: ${told}`}>
      ${LANES.map(([name, label], index) => html`<g key=${name}>
        <rect class=${index % 2 ? "lane odd" : "lane"} x="0" y=${TOP + index * LANE} width=${width} height=${LANE} />
        <text class="lane-label" x="12" y=${TOP + index * LANE + LANE / 2 - 2}>${label}</text></g>`)}
      ${list.map((moment, index) => html`<g key=${index}>
        <line class=${moment.future ? "moment future" : "moment"} x1=${moment.x} x2=${moment.x} y1=${TOP - 8} y2=${height - 8} />
        <text class="moment-time" x=${moment.x} y=${TOP - 32} text-anchor="middle">${dayOf(moment.at)}</text>
        <text class="moment-time" x=${moment.x} y=${TOP - 16} text-anchor="middle">${timeOfDay(moment.at)}</text>
        ${index ? html`<text class="moment-gap" x=${moment.x - step / 2} y=${TOP - 54} text-anchor="middle">${`+${span(moment.at - list[index - 1].at)}`}</text>` : null}
      </g>`)}
      ${bars.map((bar, index) => html`<${Bar} key=${index} bar=${bar} record=${record} lease=${lease} />`)}
      ${list.filter((moment) => moment.lane && moment.lane !== "attempt").map((moment, index) => html`<${Mark} key=${index} moment=${moment} />`)}
    </svg></div>`;
}
