/** Where the boxes and the edges of the fleet map stand, in pixels. Pure. */
import {boxOf} from "./filter.js";

/**
 * @typedef {import("./messages.js").FleetMap} FleetMap
 * @typedef {import("./messages.js").MapBox} MapBox
 * @typedef {import("./messages.js").MapEdge} MapEdge
 * @typedef {{box: MapBox, x: number, y: number, right: number}} Placed
 * @typedef {{edge: MapEdge, path: string, arrow: string, label: string, x: number, y: number}} Drawn
 */

export const BOX = 34;
const ROW = 42;
const TITLE = 18;
const WIDEST = 180;
/** What stands between two columns, of the width of a box, by the number of columns. */
const GAP = [0, 0, 0.9, 0.6];
const LOOP = 30;
/** Pixels of a character of a label, of a line, and between edges of the same two boxes. */
const CHARACTER = 5.6;
const LINE = 13;
const BESIDE = 9;

/**
 * Places a map in a width. Columns stand beside each other, edges go from the right of one box to the left of the other, and
 * within a column around. A label that would hide another one, or has no room, is left out: the table has all of them.
 *
 * @param {FleetMap} map
 * @param {number} width
 * @returns {{width: number, height: number, titles: {text: string, x: number}[], boxes: Placed[], edges: Drawn[]}}
 */
export function layout(map, width) {
  const count = Math.max(1, map.columns.length);
  const space = width - (count === 1 ? 2 * LOOP : LOOP);
  const wide = Math.min(WIDEST, Math.floor(space / (count + (count - 1) * (GAP[count] ?? 0.5))));
  const apart = count === 1 ? 0 : (space - count * wide) / (count - 1);
  const rows = Math.max(1, ...map.columns.map((column) => column.boxes.length));
  const height = TITLE + rows * ROW;
  const boxes = map.columns.flatMap(({boxes: some}, place) =>
    some.map((box, row) => {
      const x = place * (wide + apart);
      return {box, x, y: TITLE + ((rows - some.length) * ROW) / 2 + row * ROW, right: x + wide};
    }),
  );
  const places = new Map(boxes.map((placed) => [placed.box.name, placed]));
  const titles = map.columns.map((column, place) => ({text: column.title, x: place * (wide + apart)}));
  return {width, height, titles, boxes, edges: drawn(map.edges, places, apart)};
}

/**
 * @param {MapEdge[]} edges the worst first
 * @param {Map<string, Placed>} places
 * @param {number} apart pixels between two columns
 * @returns {Drawn[]}
 */
function drawn(edges, places, apart) {
  /** @type {Map<string, number>} */
  const beside = new Map();
  /** @type {{left: number, right: number, y: number}[]} */
  const taken = [];
  return edges.flatMap((edge) => {
    const [source, target] = [places.get(edge.source), places.get(edge.target)];
    if (!source || !target) {
      return [];
    }
    const pair = [edge.source, edge.target].sort().join(" ");
    const number = beside.get(pair) ?? 0;
    beside.set(pair, number + 1);
    const shift = Math.ceil(number / 2) * (number % 2 ? BESIDE : -BESIDE);
    const within = source.x === target.x;
    const x = [source.right, within || source.x > target.x ? target.right : target.x];
    const y = [source.y + BOX / 2 + shift, target.y + BOX / 2 + shift];
    if (source === target) {
      y[0] -= BESIDE;
      y[1] += BESIDE;
    }
    // One to the left begins at the left and ends at the right.
    const back = source.x > target.x;
    x[0] = back ? source.x : x[0];
    const bend = within ? LOOP : Math.abs(x[1] - x[0]) / 2;
    const ahead = back ? -1 : 1;
    const behind = within ? 1 : -ahead;
    const path = `M${x[0]} ${y[0]}C${x[0] + ahead * bend} ${y[0]} ${x[1] + behind * bend} ${y[1]} ${x[1]} ${y[1]}`;
    const size = 4 + edge.width / 2;
    const arrow = `M${x[1]} ${y[1]}l${behind * 1.6 * size} ${-size}v${2 * size}z`;
    const middle = within ? x[0] : (x[0] + x[1]) / 2;
    const line = (y[0] + y[1]) / 2 - 2 - edge.width / 2;
    // One that passes other columns has no room of its own.
    const label = within || Math.abs(x[1] - x[0]) > apart + 1 ? "" : fitting(edge.words, apart - 16);
    const half = (label.length * CHARACTER) / 2;
    const hides = taken.some((one) => Math.abs(one.y - line) < LINE && one.left < middle + half && middle - half < one.right);
    if (label && !hides) {
      taken.push({left: middle - half, right: middle + half, y: line});
    }
    return [{edge, path, arrow, label: hides ? "" : label, x: middle, y: line}];
  });
}

/**
 * Returns as many words as have room, from the first one on.
 *
 * @param {string[]} words
 * @param {number} room pixels
 */
function fitting(words, room) {
  /** @param {number} count */
  const said = (count) => words.slice(0, count).join(", ");
  let count = words.length;
  while (count > 0 && said(count).length * CHARACTER > room) {
    count -= 1;
  }
  return said(count);
}

/**
 * Returns which boxes and edges the filter is about; all where it names none that is on the map.
 *
 * @param {FleetMap} map
 * @param {import("./types.js").Filter} filter
 * @returns {{box: (box: MapBox) => boolean, edge: (edge: MapEdge) => boolean}}
 */
export function lit(map, filter) {
  const node = boxOf(map, filter.node);
  /** @param {MapBox} box */
  const asks = (box) =>
    box === node || box.engines.includes(filter.engine) || box.peers.includes(filter.peer) || box.engines.some((one) => node?.engines.includes(one));
  const found = new Set(map.columns.flatMap((column) => column.boxes.filter(asks)).map((box) => box.name));
  const both = Boolean(filter.engine && filter.peer);
  /** @param {MapEdge} edge */
  const touched = ({source, target}) => (both ? found.has(source) && found.has(target) : found.has(source) || found.has(target));
  const ends = new Set(map.edges.filter(touched).flatMap((edge) => [edge.source, edge.target]));
  return {
    box: ({name}) => found.size === 0 || found.has(name) || ends.has(name),
    edge: (edge) => found.size === 0 || touched(edge),
  };
}

/**
 * Returns what a click on an edge filters by: its two ends as one of them says it; of a sum the end that is no group, else the
 * one that gets.
 *
 * @param {FleetMap} map
 * @param {MapEdge} edge
 * @returns {Partial<import("./types.js").Filter>}
 */
export function filterOf(map, edge) {
  if (edge.engine) {
    return {engine: edge.engine, peer: edge.peer, node: ""};
  }
  return {engine: "", peer: "", node: boxOf(map, edge.source)?.kind === "group" ? edge.target : edge.source};
}
