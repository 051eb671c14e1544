/** What the tab keeps of the last 15 minutes, and what of it a moment shows. Pure. */

/**
 * @typedef {import("./messages.js").Screen} Screen
 * @typedef {import("./messages.js").Minute} Minute
 * @typedef {import("./messages.js").LogEntry} LogEntry
 * @typedef {import("./types.js").Outage} Outage
 * @typedef {import("./types.js").MinuteCount} MinuteCount
 */

/** How far back the slider goes, in milliseconds. */
export const WINDOW = 15 * 60 * 1000;
/** The slider's step, and the least distance of two screens that are kept. */
export const STEP = 5000;
const MINUTE = 60 * 1000;
/** The kind of entry that the journal counts as a failure; what became of the load is another entry. */
const FAILURE = "transfer_failure";

/**
 * Returns the screens, or the maps, with one more: the newest of each step is kept, and none from before the window.
 *
 * @template {{now: number}} Shown
 * @param {readonly Shown[]} screens oldest first
 * @param {Shown} screen
 * @returns {Shown[]}
 */
export function kept(screens, screen) {
  const step = Math.floor(screen.now / STEP);
  const before = screens.filter((one) => Math.floor(one.now / STEP) < step);
  // The last one before the window is what the window begins with.
  const first = before.findLastIndex((one) => one.now <= screen.now - WINDOW);
  return [...before.slice(Math.max(0, first)), screen];
}

/**
 * Returns the screen, or the map, that was shown at a time, or null where the tab has none so old.
 *
 * @template {{now: number}} Shown
 * @param {readonly Shown[]} screens oldest first
 * @param {number} time
 * @returns {Shown | null}
 */
export function screenAt(screens, time) {
  return screens.findLast((screen) => screen.now <= time) ?? null;
}

/**
 * Returns the outage that a time falls into, or null.
 *
 * @param {readonly Outage[]} outages
 * @param {number} time
 */
export function outageAt(outages, time) {
  return outages.find((outage) => outage.from <= time && (outage.to === null || time < outage.to)) ?? null;
}

/**
 * Returns the minute of the journal that a time falls into, or null.
 *
 * @param {readonly Minute[]} minutes
 * @param {number} time
 */
export function minuteAt(minutes, time) {
  return minutes.find((minute) => minute.time <= time && time < minute.time + MINUTE) ?? null;
}

/**
 * Counts failures and deferrals by minute, for the 15 minutes before `now`. The journal's counts end where the tab connects;
 * from then on the entries are counted. A minute that both know has the greater count.
 *
 * @param {readonly Minute[]} minutes
 * @param {readonly LogEntry[]} entries
 * @param {number} now
 * @param {(engine: string, peer: string) => boolean} matches
 * @returns {MinuteCount[]} oldest first
 */
export function countsByMinute(minutes, entries, now, matches) {
  const last = Math.floor(now / MINUTE) * MINUTE;
  const counts = new Map(
    Array.from({length: WINDOW / MINUTE}, (_, index) => {
      const time = last - WINDOW + (index + 1) * MINUTE;
      return [time, {time, failures: 0, deferrals: 0}];
    }),
  );
  for (const entry of entries) {
    const count = counts.get(Math.floor(entry.time / MINUTE) * MINUTE);
    if (count && entry.kind === FAILURE && matches(entry.engine, entry.peer)) {
      count.failures += 1;
    }
  }
  for (const minute of minutes) {
    const count = counts.get(Math.floor(minute.time / MINUTE) * MINUTE);
    if (count) {
      const cells = minute.cells.filter((cell) => matches(cell.engine, cell.peer));
      count.failures = Math.max(count.failures, total(cells.map((cell) => cell.failures)));
      count.deferrals = Math.max(count.deferrals, total(cells.map((cell) => cell.deferrals)));
    }
  }
  return [...counts.values()];
}

/** @param {number[]} numbers */
function total(numbers) {
  return numbers.reduce((sum, number) => sum + number, 0);
}

/**
 * Returns rows in the order in which they stand, new ones last, so that no row moves under the pointer.
 *
 * @template Row
 * @param {readonly string[]} order keys as they stand
 * @param {readonly Row[]} rows
 * @param {(row: Row) => string} keyOf
 * @returns {Row[]}
 */
export function inOrder(order, rows, keyOf) {
  const places = new Map(order.map((key, place) => [key, place]));
  /** @param {Row} row */
  const place = (row) => places.get(keyOf(row)) ?? order.length;
  return rows
    .map((row, index) => ({row, index}))
    .sort((one, other) => place(one.row) - place(other.row) || one.index - other.index)
    .map((item) => item.row);
}
