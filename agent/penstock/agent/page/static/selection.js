/** What is shown: the moment and the filter applied to what the tab knows. Pure. */
import {filtered, matcher} from "./filter.js";
import {clock, counted, dateOf, span} from "./format.js";
import {countsByMinute, minuteAt, outageAt, screenAt} from "./scrub.js";

/**
 * @typedef {import("./types.js").State} State
 * @typedef {import("./types.js").Selection} Selection
 */

/** Milliseconds after which data is old: a large fleet is asked twice a minute. */
const LATE = 60_000;

/**
 * @param {State} state
 * @returns {Selection}
 */
export function selection(state) {
  const live = state.scrub === null;
  const moment = state.scrub ?? state.clock;
  const whole = live ? state.screen : screenAt(state.screens, moment);
  const map = live ? (state.maps.at(-1) ?? null) : screenAt(state.maps, moment);
  const matches = matcher(state.filter, whole ?? state.screen, map);
  return {
    screen: whole && filtered(whole, state.filter, map),
    whole,
    map,
    unlisted: whole?.peers.rows.length && !whole.peers.engines.includes(state.filter.engine) ? state.filter.engine : "",
    minute: whole ? null : minuteAt(state.minutes, moment),
    entries: state.entries.filter((entry) => (live || entry.time <= moment) && matches(entry.engine, entry.peer)).reverse(),
    counts: countsByMinute(state.minutes, state.entries, state.clock, matches),
    moment,
    note: live ? "" : noteOf(state, moment, whole),
  };
}

/**
 * @param {State} state
 * @param {number} moment
 * @param {import("./messages.js").Screen | null} screen
 */
function noteOf(state, moment, screen) {
  if (!screen) {
    const first = state.screens.at(0);
    const opened = state.hello?.source === "bundle" ? "The bundle was taken" : "This tab was opened";
    return first
      ? `${opened} at ${clock(first.now)}. Of the time before, it has the journal's counts per minute.`
      : "This tab has no screen yet.";
  }
  if (outageAt(state.outages, moment)) {
    return `This tab was not connected at that time. What it shows is of ${clock(screen.now)}.`;
  }
  return "";
}

/**
 * Returns the banner of a tab whose token is missing, or has ended.
 *
 * @param {State} state
 * @returns {import("./messages.js").Banner[]}
 */
export function tokenBanners(state) {
  const ended = state.hello?.token === "ended" ? "The token of this tab has ended, so that it only reads." : "";
  const sentence = state.refused || ended;
  return sentence ? [{kind: "token", severity: "warning", sentence, command: "agentctl page", leftOut: 0}] : [];
}

/**
 * Says how old the data is, and whether it still comes.
 *
 * @param {State} state
 * @returns {{text: string, state: "live" | "late" | "lost" | "bundle"}}
 */
export function freshness(state) {
  if (state.hello?.source === "bundle") {
    const taken = `as of ${dateOf(state.clock)} ${clock(state.clock)}`;
    const text = state.connected ? taken : ["disconnected", taken, state.reason].filter(Boolean).join("; ");
    return {text, state: state.connected ? "bundle" : "lost"};
  }
  const dataTime = Math.max(state.pulse?.dataTime ?? 0, state.screen?.dataTime ?? 0);
  const age = dataTime ? `data ${span((state.clock - dataTime) / 1000)} old` : "no data yet";
  if (!state.connected) {
    const outage = state.outages.find((one) => one.to === null);
    const text = outage ? `disconnected since ${clock(outage.from)}` : "connecting";
    return {text: [text, age, state.reason].filter(Boolean).join("; "), state: "lost"};
  }
  const agents = state.pulse?.agents;
  const missing = agents ? agents.asked - agents.answered : 0;
  const answered = agents && (missing > 0 || state.hello?.source === "relay")
    ? `${state.hello?.source === "relay" ? "relay: " : ""}${agents.answered} of ${counted(agents.asked, "agent")} answered`
    : "";
  const late = dataTime > 0 && state.clock - dataTime > LATE;
  return {text: [age, answered].filter(Boolean).join("; "), state: late || missing > 0 ? "late" : "live"};
}
