/** Times and counts as people read them. Pure. */

/**
 * Says a time of day, "10:42:10", in the browser's time zone.
 *
 * @param {number} time milliseconds
 */
export function clock(time) {
  const date = new Date(time);
  return [date.getHours(), date.getMinutes(), date.getSeconds()].map((part) => String(part).padStart(2, "0")).join(":");
}

/**
 * Says a time of day without seconds, "10:42".
 *
 * @param {number} time milliseconds
 */
export function minuteOfDay(time) {
  return clock(time).slice(0, 5);
}

/**
 * Says a duration in one unit, "1 s", "3 min", "2 h", "4 d"; a negative one is "0 s".
 *
 * @param {number} seconds
 */
export function span(seconds) {
  const whole = Math.max(0, Math.floor(seconds));
  if (whole < 90) {
    return `${whole} s`;
  }
  if (whole < 90 * 60) {
    return `${Math.floor(whole / 60)} min`;
  }
  if (whole < 36 * 3600) {
    return `${Math.floor(whole / 3600)} h`;
  }
  return `${Math.floor(whole / 86400)} d`;
}

/**
 * Says a number of things, "1 failure", "3 failures".
 *
 * @param {number} count
 * @param {string} one
 * @param {string} [many]
 */
export function counted(count, one, many = `${one}s`) {
  return `${count} ${count === 1 ? one : many}`;
}

/**
 * Says milliseconds for a waterfall, "340 ms" or "2.41 s".
 *
 * @param {number} milliseconds
 */
export function lasting(milliseconds) {
  return milliseconds < 1000 ? `${Math.round(milliseconds)} ms` : `${(milliseconds / 1000).toFixed(2)} s`;
}
