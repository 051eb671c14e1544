/** What the page is narrowed down to and which detail is open, and both as the fragment of the address. Pure. */

/**
 * @typedef {import("./types.js").Filter} Filter
 * @typedef {import("./types.js").PanelKind} PanelKind
 * @typedef {import("./types.js").Panel} Panel
 * @typedef {import("./messages.js").Screen} Screen
 * @typedef {import("./messages.js").FleetMap} FleetMap
 */

/** @type {Filter} */
export const NO_FILTER = Object.freeze({engine: "", peer: "", field: "", node: ""});

const KINDS = new Set(["request", "peer", "engine", "condition", "policy", "policies", "engines", "events"]);

/**
 * Returns a panel with the parts that are not named left empty.
 *
 * @param {PanelKind} kind
 * @param {Partial<Panel>} [parts]
 * @returns {Panel}
 */
export function panelOf(kind, parts = {}) {
  return {engine: "", peer: "", id: "", name: "", ...parts, kind};
}

/** @param {Filter} filter */
export function isFiltered(filter) {
  return Object.values(filter).some(Boolean);
}

/**
 * Reads a fragment; what it does not know is left out.
 *
 * @param {string} fragment with or without "#"
 * @returns {{filter: Filter, panel: Panel | null}}
 */
export function fromFragment(fragment) {
  const values = new URLSearchParams(fragment.replace(/^#/, ""));
  /** @param {string} name */
  const value = (name) => values.get(name) ?? "";
  const kind = value("open");
  return {
    filter: {engine: value("engine"), peer: value("peer"), field: value("field"), node: value("node")},
    panel: KINDS.has(kind)
      ? panelOf(/** @type {PanelKind} */ (kind), {
          engine: value("open-engine"),
          peer: value("open-peer"),
          id: value("open-id"),
          name: value("open-name"),
        })
      : null,
  };
}

/**
 * Writes a fragment, without "#"; it is empty where nothing is filtered and nothing open.
 *
 * @param {Filter} filter
 * @param {Panel | null} panel
 */
export function toFragment(filter, panel) {
  const values = new URLSearchParams();
  const parts = {
    ...filter,
    open: panel?.kind ?? "",
    "open-engine": panel?.engine ?? "",
    "open-peer": panel?.peer ?? "",
    "open-id": panel?.id ?? "",
    "open-name": panel?.name ?? "",
  };
  for (const [name, value] of Object.entries(parts)) {
    if (value) {
      values.set(name, value);
    }
  }
  return values.toString();
}

/**
 * Returns whether something of an engine and a peer is shown. A field stands for the engines that have it in force, a node of
 * the map for its engines, and for their peers that are its addresses; one that is not on the map lets all through.
 *
 * @param {Filter} filter
 * @param {Screen | null} screen
 * @param {FleetMap | null} [map]
 * @returns {(engine: string, peer: string) => boolean}
 */
export function matcher(filter, screen, map) {
  const box = boxOf(map, filter.node);
  const [named, addresses] = [new Set(box?.engines), new Set(box?.peers)];
  const rows = filter.field ? (screen?.policy.rows ?? []).filter((row) => row.field === filter.field) : [];
  const engines = new Set(rows.flatMap((row) => row.engineKeys));
  return (engine, peer) =>
    (!filter.engine || engine === filter.engine) &&
    (!filter.peer || peer === filter.peer) &&
    (!filter.field || engines.has(engine)) &&
    (named.size + addresses.size === 0 || named.has(engine) || addresses.has(peer));
}

/**
 * Returns the screen with only what the filter lets through. The verdict's sentence and the banners stay: they are of all.
 *
 * @param {Screen} screen
 * @param {Filter} filter
 * @param {FleetMap | null} [map]
 * @returns {Screen}
 */
export function filtered(screen, filter, map) {
  if (!isFiltered(filter)) {
    return screen;
  }
  const matches = matcher(filter, screen, map);
  /** @param {string} engine */
  const column = (engine) => matches(engine, filter.peer) || screen.peers.rows.some((row) => matches(engine, row.address));
  const kept = screen.peers.engines.filter(column);
  const rows = screen.peers.rows
    .filter((row) => !filter.peer || row.address === filter.peer)
    .map((row) => ({
      ...row,
      cells: row.cells
        .filter((cell) => kept.includes(cell.engine))
        .map((cell) => (matches(cell.engine, row.address) ? cell : {...cell, condition: /** @type {const} */ ("none")})),
    }))
    .filter((row) => row.cells.some((cell) => cell.condition !== "none"));
  const causes = screen.verdict.causes.filter(
    (cause) => (!filter.peer || cause.peer === filter.peer) && cause.engines.some((engine) => matches(engine, cause.peer)),
  );
  return {
    ...screen,
    verdict: {...screen.verdict, causes},
    peers: {...screen.peers, engines: kept, rows},
    waits: {...screen.waits, rows: screen.waits.rows.filter((row) => matches(row.engine, row.peer))},
    policy: {
      ...screen.policy,
      rows: screen.policy.rows.filter(
        (row) =>
          (!filter.field || row.field === filter.field) && (!filter.engine || row.engineKeys.includes(filter.engine)),
      ),
    },
    engines: {...screen.engines, rows: screen.engines.rows.filter((row) => matches(row.key, filter.peer))},
  };
}

/**
 * Returns the box of a map by its name, or null.
 *
 * @param {FleetMap | null | undefined} map
 * @param {string} name
 */
export function boxOf(map, name) {
  return (name && map?.columns.flatMap((column) => column.boxes).find((box) => box.name === name)) || null;
}
