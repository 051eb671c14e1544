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
 * Says a date, "2026-11-24", in the browser's time zone.
 *
 * @param {number} time milliseconds
 */
export function dateOf(time) {
  const date = new Date(time);
  return [date.getFullYear(), date.getMonth() + 1, date.getDate()].map((part) => String(part).padStart(2, "0")).join("-");
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

/**
 * Cuts a sentence at the names that it says, each once, so that they can be clicked.
 *
 * @param {string} sentence
 * @param {readonly string[]} names
 * @returns {{text: string, name: boolean}[]} in order; together they are the sentence
 */
export function pieces(sentence, names) {
  let parts = [{text: sentence, name: false}];
  for (const name of names.filter(Boolean).sort((one, other) => other.length - one.length)) {
    const index = parts.findIndex((part) => !part.name && placeOf(part.text, name) >= 0);
    if (index >= 0) {
      const text = parts[index].text;
      const place = placeOf(text, name);
      const cut = [
        {text: text.slice(0, place), name: false},
        {text: name, name: true},
        {text: text.slice(place + name.length), name: false},
      ];
      parts = [...parts.slice(0, index), ...cut.filter((part) => part.text), ...parts.slice(index + 1)];
    }
  }
  return parts;
}

/**
 * Returns a name for people: a character that cannot be printed, or changes the direction of text, as its number.
 *
 * @param {string} name
 */
export function printable(name) {
  return name.replace(/[\p{C}\p{Zl}\p{Zp}]/gu, (found) => `\\u${found.codePointAt(0)?.toString(16).padStart(4, "0")}`);
}

/**
 * Finds a name as a word of its own; -1 where it is only a part of another.
 *
 * @param {string} text
 * @param {string} name
 */
function placeOf(text, name) {
  const inWord = /[\p{L}\p{N}]/u;
  let place = text.indexOf(name);
  while (place >= 0 && (inWord.test(text[place - 1] ?? "") || inWord.test(text[place + name.length] ?? ""))) {
    place = text.indexOf(name, place + 1);
  }
  return place;
}
