/** What the tab knows, and what each message and each click makes of it. Pure. */
import {NO_FILTER} from "./filter.js";
import {kept, WINDOW} from "./scrub.js";
import {merged} from "./signals.js";

/**
 * @typedef {import("./types.js").State} State
 * @typedef {import("./types.js").Action} Action
 * @typedef {import("./messages.js").LogEntry} LogEntry
 */

/** Entries that the tab keeps: the newest. */
export const ENTRIES = 2000;

/** @type {State} */
export const NOTHING = Object.freeze({
  hello: null,
  screen: null,
  screens: [],
  minutes: [],
  signals: null,
  maps: [],
  entries: [],
  seen: new Set(),
  lastId: "",
  pulse: null,
  connected: false,
  reason: "",
  refused: "",
  outages: [],
  gaps: [],
  skew: 0,
  clock: 0,
  scrub: null,
  filter: NO_FILTER,
  panel: null,
  help: false,
});

/**
 * Returns the next state.
 *
 * @param {State} state
 * @param {Action} action
 * @returns {State}
 */
export function next(state, action) {
  switch (action.type) {
    case "hello":
      return {...state, hello: action.hello};
    case "screen":
      return synchronized({...state, screen: action.screen, screens: kept(state.screens, action.screen)}, action.screen.now, action.now);
    case "history":
      return {...state, minutes: action.minutes};
    case "signals":
      return {...state, signals: merged(state.signals, action.signals)};
    case "map":
      return {...state, maps: kept(state.maps, action.map)};
    case "log":
      return withEntries(state, action.entries, action.id);
    case "earlier":
      return withEarlier(state, action.entries);
    case "pulse":
      return synchronized({...state, pulse: action.pulse}, action.pulse.now, action.now);
    case "gap":
      return {...state, gaps: [...state.gaps, action.sentence].slice(-3), lastId: action.id || state.lastId};
    case "connected":
      return connected(ticked(state, action.now));
    case "lost":
      return lost(ticked(state, action.now), action.reason);
    case "refused":
      return {...state, refused: action.sentence};
    case "tick":
      return ticked(state, action.now);
    case "scrub":
      return {...state, scrub: action.time};
    case "filter":
      return {...state, filter: {...state.filter, ...action.part}};
    case "clear":
      return {...state, filter: NO_FILTER};
    case "open":
      return {...state, panel: action.panel};
    case "go":
      return {...state, filter: action.filter, panel: action.panel};
    case "help":
      return {...state, help: action.help};
  }
}

/**
 * @param {State} state
 * @param {LogEntry[]} entries
 * @param {string} id
 * @returns {State}
 */
function withEntries(state, entries, id) {
  const fresh = entries.filter((entry) => !state.seen.has(entry.position));
  const all = [...state.entries, ...fresh].slice(-ENTRIES);
  return {...state, entries: all, seen: new Set(all.map((entry) => entry.position)), lastId: id || state.lastId};
}

/**
 * Puts entries before those that the log has brought, without those that are there.
 *
 * @param {State} state
 * @param {LogEntry[]} entries
 * @returns {State}
 */
function withEarlier(state, entries) {
  const fresh = entries.filter((entry) => !state.seen.has(entry.position));
  const all = [...fresh, ...state.entries].sort((one, other) => one.time - other.time);
  return {...state, entries: all, seen: new Set(all.map((entry) => entry.position))};
}

/**
 * Sets the clock by the server's.
 *
 * @param {State} state
 * @param {number} server
 * @param {number} now
 * @returns {State}
 */
function synchronized(state, server, now) {
  return {...state, skew: server - now, clock: server};
}

/**
 * Moves the clock on, but that of a bundle, which stands at its time. A moment that has left the window is followed by the oldest that is in it.
 *
 * @param {State} state
 * @param {number} now
 * @returns {State}
 */
function ticked(state, now) {
  const clock = state.hello?.source === "bundle" ? state.clock : now + state.skew;
  return {...state, clock, scrub: state.scrub === null ? null : Math.max(state.scrub, clock - WINDOW)};
}

/**
 * @param {State} state
 * @returns {State}
 */
function connected(state) {
  const outages = state.outages
    .map((outage) => ({from: outage.from, to: outage.to ?? state.clock}))
    .filter((outage) => outage.to > state.clock - WINDOW);
  return {...state, connected: true, reason: "", refused: "", outages};
}

/**
 * Notes an outage. It begins once, however often the tab fails to connect; before the first connection there is none.
 *
 * @param {State} state
 * @param {string} reason
 * @returns {State}
 */
function lost(state, reason) {
  const begins = state.connected ? [{from: state.clock, to: null}] : [];
  return {...state, connected: false, reason: reason || state.reason, outages: [...state.outages, ...begins]};
}
