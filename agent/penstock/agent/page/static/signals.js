/** The signals of the last 15 minutes: messages put together, the six plots, and their numbers as people read them. Pure. */
import {clock} from "./format.js";
import {WINDOW} from "./scrub.js";
import {say} from "./units.js";

/**
 * @typedef {import("./messages.js").Signals} Signals
 * @typedef {import("./messages.js").Values} Values
 * @typedef {import("./types.js").Series} Series
 * @typedef {import("./types.js").PlotKind} PlotKind
 * @typedef {import("./types.js").Reading} Reading
 */

/** Gates, the lowest layer first; the colour of each is `--gate-NAME` of the style sheets. */
export const GATES = ["queue", "handshake_queue", "peer", "transfer", "recompute", "own_prefill", "encoder"];
/** What is of the requests that ended. */
const OF_REQUESTS = new Set([...GATES, "ttftP50", "ttftP99", "failed", "recomputed"]);
const DASHED = [5, 3];
/** Slots after which a value is not the newest any more. */
const LATE = 3;

/** @type {PlotKind[]} */
export const PLOTS = [
  {
    id: "requests",
    title: "Requests ended, per second",
    hint: "Requests that ended; each engine counts its own part",
    series: [{name: "ended", unit: "rate", colour: "accent", key: "requests"}],
  },
  {
    id: "ttft",
    title: "Time to first token",
    hint: "Lines: p50 and p99 of the requests. Layers: the mean time at each gate; together they are the mean",
    series: [
      ...GATES.toReversed().map((key) => /** @type {Series} */ ({name: key.replace("_", " "), unit: "seconds", colour: `gate-${key}`, key, layer: true})),
      {name: "p50", unit: "seconds", colour: "text", key: "ttftP50", dash: DASHED},
      {name: "p99", unit: "seconds", colour: "text", key: "ttftP99"},
    ],
  },
  {
    id: "queue",
    title: "Requests in the engines",
    hint: "Requests that run and that wait: the newest count of each slot",
    series: [
      {name: "running", unit: "count", colour: "accent", key: "running"},
      {name: "waiting", unit: "count", colour: "warning", key: "waiting", dash: DASHED},
    ],
  },
  {
    id: "loads",
    title: "Loads and bytes, per second",
    hint: "Transfers that ended, left axis, and their bytes, right axis. In: into the engines; out: what they send, not what is read from them",
    series: [
      {name: "in", unit: "rate", colour: "accent", key: "loadsIn"},
      {name: "out", unit: "rate", colour: "past", key: "loadsOut", dash: DASHED},
      {name: "bytes in", unit: "bytes", colour: "accent", key: "bytesIn", dash: [1, 2]},
      {name: "bytes out", unit: "bytes", colour: "past", key: "bytesOut", dash: [5, 2, 1, 2]},
    ],
  },
  {
    id: "failed",
    title: "Requests failed or recomputed, share",
    hint: "Of the requests that ended: with an error; with tokens computed again before the first",
    series: [
      {name: "failed", unit: "share", colour: "error", key: "failed", alarm: true},
      {name: "recomputed", unit: "share", colour: "warning", key: "recomputed", dash: DASHED, alarm: true},
    ],
  },
  {
    id: "held",
    title: "KV blocks held, share of the cache",
    hint: "Blocks that no request computes with: leases, loads in flight, pinned transfers, saves",
    series: [{name: "held", unit: "share", colour: "accent", key: "held"}],
  },
];

/**
 * @param {Series} series
 * @param {Signals} signals
 * @returns {Values}
 */
export function valuesOf({key}, signals) {
  return /** @type {any} */ (signals)[key] ?? signals.gates[key] ?? [];
}

/** @param {Signals} signals */
function lengthOf(signals) {
  return signals.requests.length;
}

/**
 * Puts a message to what the tab has. A whole one, and one of other slots or another engine, replaces it.
 *
 * @param {Signals | null} before
 * @param {Signals} message
 * @returns {Signals}
 */
export function merged(before, message) {
  if (!before || message.whole || before.step !== message.step || before.engine !== message.engine) {
    return message;
  }
  const place = Math.round((message.from - before.from) / message.step);
  const length = Math.max(lengthOf(before), place + lengthOf(message));
  const first = Math.max(0, length - Math.ceil(WINDOW / message.step) - 1);
  /** @param {any} old @param {any} fresh @returns {any} with the lists of both joined */
  const joined = (old, fresh) =>
    Object.fromEntries(
      Object.entries(fresh).map(([name, values]) => [
        name,
        !Array.isArray(values)
          ? values
          : Array.from({length: length - first}, (_, index) => {
              const slot = index + first - place;
              return (slot >= 0 && slot < lengthOf(message) ? values[slot] : old[name]?.[index + first]) ?? null;
            }),
      ]),
    );
  return {...joined(before, message), from: before.from + first * message.step, gates: joined(before.gates, message.gates)};
}

/**
 * Returns the beginnings of the slots.
 *
 * @param {Signals} signals
 */
export function timesOf(signals) {
  return signals.requests.map((_, slot) => signals.from + slot * signals.step);
}

/**
 * Returns which slot a time falls into, or null.
 *
 * @param {Signals} signals
 * @param {number} time
 */
export function slotAt(signals, time) {
  const slot = Math.floor((time - signals.from) / signals.step);
  return slot >= 0 && slot < lengthOf(signals) ? slot : null;
}

/**
 * Returns the slot that is read out: that of the cursor, else that of the moment that is looked at, else the newest. What has not come
 * for a while is not the newest.
 *
 * @param {Signals} signals
 * @param {number | null} cursor
 * @param {number | null} scrub
 * @param {number} now
 * @returns {Reading}
 */
export function reading(signals, cursor, scrub, now) {
  const time = cursor ?? scrub;
  if (time !== null) {
    return {slot: slotAt(signals, time), time};
  }
  const end = signals.from + lengthOf(signals) * signals.step;
  return {slot: lengthOf(signals) > 0 && now - end < LATE * signals.step ? lengthOf(signals) - 1 : null, time: null};
}

/**
 * Returns the slot that so many steps from a time leads to, within the window.
 *
 * @param {Signals} signals
 * @param {number | null} time null: from the newest
 * @param {number} steps
 */
export function moved(signals, time, steps) {
  const last = lengthOf(signals) - 1;
  const slot = time === null ? last : Math.round((time - signals.from) / signals.step) + steps;
  return signals.from + Math.min(Math.max(slot, 0), last) * signals.step;
}

/**
 * Returns what is drawn of each series: a layer stands on those after it, which are drawn over it, and one of nothing is none.
 *
 * @param {PlotKind} plot
 * @param {Signals} signals
 * @returns {Values[]}
 */
export function drawn(plot, signals) {
  /** @type {Values} */
  let ground = timesOf(signals).map(() => null);
  return plot.series
    .toReversed()
    .map((series) => {
      const values = valuesOf(series, signals);
      if (!series.layer) {
        return values;
      }
      ground = ground.map((below, slot) => (values[slot] === null ? below : (below ?? 0) + (values[slot] ?? 0)));
      return isUsed(series, signals) ? ground : ground.map(() => null);
    })
    .reverse();
}

/**
 * @param {Series} series
 * @param {Signals} signals
 */
function isUsed(series, signals) {
  return !series.layer || valuesOf(series, signals).some((value) => value !== null && value > 0);
}

/**
 * Returns the series of the legend: the lines, then the layers from the lowest one, without those of nothing.
 *
 * @param {PlotKind} plot
 * @param {Signals} signals
 */
export function listed(plot, signals) {
  const used = plot.series.filter((series) => isUsed(series, signals));
  return [...used.filter((series) => !series.layer), ...used.filter((series) => series.layer).reverse()];
}

/**
 * Returns values that have none beside them: no line goes through them.
 *
 * @param {ArrayLike<number | null | undefined>} values
 */
export function alone(values) {
  /** @param {number} slot */
  const known = (slot) => values[slot] !== null && values[slot] !== undefined;
  return Array.from(values, (_, slot) => slot).filter((slot) => known(slot) && !known(slot - 1) && !known(slot + 1));
}

/**
 * Says what a series has in a slot: of requests, where none ended, there is nothing to know.
 *
 * @param {Series} series
 * @param {Signals} signals
 * @param {number | null} slot
 */
export function sayAt(series, signals, slot) {
  const value = slot === null ? null : valuesOf(series, signals)[slot];
  const none = slot !== null && value === null && signals.requests[slot] === 0 && OF_REQUESTS.has(series.key);
  return none ? "none ended" : say(value, series.unit);
}

/**
 * Says what a plot shows of a slot, for those who do not see it.
 *
 * @param {PlotKind} plot
 * @param {Signals} signals
 * @param {Reading} read
 */
export function spoken(plot, signals, read) {
  const values = listed(plot, signals).map(
    (series) => `${series.name} ${sayAt(series, signals, read.slot)}`,
  );
  return `${read.time === null ? "now" : clock(read.time)}: ${values.join(", ")}`;
}

/**
 * Returns a plot's numbers as rows, the newest first.
 *
 * @param {PlotKind} plot
 * @param {Signals} signals
 * @returns {{columns: string[], rows: {time: number, cells: string[]}[]}}
 */
export function table(plot, signals) {
  const series = listed(plot, signals);
  const rows = timesOf(signals).map((time, slot) => ({time, cells: series.map((one) => sayAt(one, signals, slot))}));
  return {columns: series.map((one) => one.name), rows: rows.slice(-Math.ceil(WINDOW / signals.step)).reverse()};
}
