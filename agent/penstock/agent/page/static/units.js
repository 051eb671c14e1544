/** Values of signals as people read them, with their units. Pure. */

/** @typedef {import("./types.js").Unit} Unit */

/**
 * Says a value with its unit; one that is not known is not 0.
 *
 * @param {number | null | undefined} value
 * @param {Unit} unit
 */
export function say(value, unit) {
  if (value === null || value === undefined) {
    return "not known";
  }
  switch (unit) {
    case "rate":
      return `${digits(value)}/s`;
    case "seconds":
      return value < 1 && value > 0 ? `${digits(value * 1000, 0)} ms` : `${digits(value)} s`;
    case "share":
      return `${digits(value * 100)} %`;
    case "bytes":
      return bytes(value);
    case "count":
      return digits(value);
  }
}

/**
 * @param {number} value
 * @param {number} [ofTens] places of a value from 10 to 100
 */
function digits(value, ofTens = 1) {
  const places = value >= 100 ? 0 : value >= 10 ? ofTens : 2;
  const rounded = Number(value.toFixed(places));
  return value > 0 && rounded === 0 ? "<0.01" : String(rounded);
}

/** @param {number} value */
function bytes(value) {
  const power = value < 1000 ? 0 : Math.min(4, Math.floor(Math.log10(value) / 3));
  return `${digits(value / 1000 ** power)} ${["B", "kB", "MB", "GB", "TB"][power]}/s`;
}
