/** Marks in the plots: where conditions begin and end, policies change, engines come and go. Pure. */

/**
 * @typedef {import("./messages.js").Screen} Screen
 * @typedef {import("./messages.js").LogEntry} LogEntry
 * @typedef {import("./types.js").Mark} Mark
 * @typedef {import("./types.js").MarkKind} MarkKind
 * @typedef {import("./types.js").Matches} Matches
 */

/**
 * Of each kind its sign, its words and its colour.
 *
 * @type {Record<MarkKind, {sign: string, words: string, colour: string}>}
 */
export const SIGNS = {
  begins: {sign: "▼", words: "a condition begins", colour: "error"},
  ends: {sign: "△", words: "a condition ends", colour: "ok"},
  policy: {sign: "◆", words: "a policy changes", colour: "accent"},
  engine: {sign: "●", words: "an engine comes or goes", colour: "text"},
};

/** @type {Map<string, MarkKind>} */
const KINDS = new Map([
  ["policy_applied", "policy"],
  ["rotation_changed", "engine"],
  ["source_lost", "engine"],
  ["source_stopped", "engine"],
  ["server_stopping", "engine"],
]);

/**
 * Returns the marks, oldest first.
 *
 * @param {readonly Screen[]} screens oldest first
 * @param {readonly LogEntry[]} entries
 * @param {Matches} matches
 * @returns {Mark[]}
 */
export function marksOf(screens, entries, matches) {
  const pairs = screens.slice(1).map((screen, index) => /** @type {const} */ ([screens[index], screen]));
  return [
    ...entries.flatMap((entry) => (matches(entry.engine, entry.peer) ? ofEntry(entry) : [])),
    ...pairs.flatMap(([before, after]) => [...ofCauses(before, after, matches), ...ofEngines(before, after, matches)]),
  ].sort((one, other) => one.time - other.time);
}

/**
 * @param {LogEntry} entry
 * @returns {Mark[]}
 */
function ofEntry({kind, severity, time, sentence}) {
  const opens = severity === "warning" ? "begins" : "ends";
  const found = kind === "quarantine_changed" ? opens : KINDS.get(kind);
  return found ? [{time, kind: found, text: sentence}] : [];
}

/**
 * What one verdict has and the next one has not. A verdict that is not known, or leaves causes out, does not tell that one is gone.
 *
 * @param {Screen} before
 * @param {Screen} after
 * @param {Matches} matches
 * @returns {Mark[]}
 */
function ofCauses(before, after, matches) {
  /** @param {Screen} one @param {Screen} other @param {MarkKind} kind */
  const only = (one, other, kind) => {
    const known = new Set(other.verdict.causes.map(nameOf));
    const told = other.verdict.state !== "unknown" && other.verdict.leftOut === 0;
    return one.verdict.causes
      .filter((cause) => told && !known.has(nameOf(cause)) && (cause.engines.length === 0 || cause.engines.some((engine) => matches(engine, cause.peer))))
      .map((cause) => ({time: after.now, kind, text: cause.sentence}));
  };
  return [...only(after, before, "begins"), ...only(before, after, "ends")];
}

/** @param {import("./messages.js").Cause} cause */
function nameOf(cause) {
  return `${cause.kind} ${cause.peer}`;
}

/**
 * @param {Screen} before
 * @param {Screen} after
 * @param {Matches} matches
 * @returns {Mark[]}
 */
function ofEngines(before, after, matches) {
  const known = new Map(before.engines.rows.map((engine) => [engine.key, engine.connected]));
  return after.engines.rows.flatMap(({key, connected}) => {
    const was = known.has(key) ? known.get(key) : before.engines.leftOut > 0 ? connected : false;
    return was === connected || !matches(key, "") ? [] : [{time: after.now, kind: "engine", text: `${key} ${connected ? "is connected" : "is away"}`}];
  });
}

/**
 * Returns the marks of a slot.
 *
 * @param {readonly Mark[]} marks
 * @param {number | null} time the beginning of the slot
 * @param {number} step
 */
export function marksAt(marks, time, step) {
  return time === null ? [] : marks.filter((mark) => mark.time >= time && mark.time < time + step);
}

/**
 * Says marks in one line: of many the first.
 *
 * @param {readonly Mark[]} marks
 */
export function said(marks) {
  const more = marks.length > 2 ? ` and ${marks.length - 2} more` : "";
  return marks.slice(0, 2).map((mark) => `${SIGNS[mark.kind].sign} ${mark.text}`).join("; ") + more;
}
