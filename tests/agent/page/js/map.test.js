import assert from "node:assert/strict";
import {test} from "node:test";
import {NO_FILTER} from "../../../../agent/penstock/agent/page/static/filter.js";
import {BOX, filterOf, layout, lit} from "../../../../agent/penstock/agent/page/static/map.js";
import {selection} from "../../../../agent/penstock/agent/page/static/selection.js";
import {next} from "../../../../agent/penstock/agent/page/static/state.js";
import {heard, messages} from "./support.js";

const {map} = messages();

/** @param {string} name @param {object} [more] */
const box = (name, more = {}) => ({name, notes: [], kind: "", engines: [name], peers: [`at-${name}`], ...more});
/** @param {string} source @param {string} target @param {object} [more] */
const edge = (source, target, more = {}) => ({
  ...map.edges[0], source, target, words: ["kv 1 GB/s", "usually 9.6 GB/s"], engine: target, peer: `at-${source}`, ...more,
});
/** @param {string[][]} columns @param {any[]} edges */
const mapOf = (columns, edges) => ({...map, columns: columns.map((names) => ({title: "some", boxes: names.map((name) => box(name))})), edges});
const numbers = (/** @type {string} */ path) => [...path.matchAll(/-?[\d.]+/g)].map(Number);

test("No two boxes hide each other, and all are within the picture, at any width", () => {
  for (const columns of [[["a"]], [["a", "b"], ["c"]], [["a"], ["b", "c", "d"], ["e", "f"]], [["a"], ["b"], ["c"], ["d"], ["e"]]]) {
    for (const width of [280, 390, 480, 1200]) {
      const {boxes, height} = layout(mapOf(columns, []), width);
      for (const one of boxes) {
        assert.ok(one.x >= 0 && one.right <= width && one.right > one.x && one.y >= 0 && one.y + BOX <= height, `${one.box.name} at ${width}`);
        const hidden = boxes.filter((other) => other !== one && other.x < one.right && one.x < other.right && Math.abs(other.y - one.y) < BOX);
        assert.deepEqual(hidden, []);
      }
    }
  }
});

test("An edge goes from the right of one box to the left of the other, backwards too, and within a column around", () => {
  const {boxes, edges} = layout(mapOf([["a"], ["b", "c"]], [edge("a", "b"), edge("c", "a"), edge("b", "c"), edge("b", "b")]), 480);
  const at = Object.fromEntries(boxes.map((one) => [one.box.name, one]));
  const ends = edges.map(({path}) => numbers(path)).map((found) => [found[0], found.at(-2)]);
  assert.deepEqual(ends, [
    [at.a.right, at.b.x],
    [at.c.x, at.a.right],
    [at.b.right, at.c.right],
    [at.b.right, at.b.right],
  ]);
  assert.ok(edges.every(({arrow}) => numbers(arrow).every(Number.isFinite)));
});

test("Edges of the same two boxes stand beside each other", () => {
  const {edges} = layout(mapOf([["a"], ["b"]], [edge("a", "b"), edge("b", "a"), edge("a", "b")]), 480);
  assert.equal(new Set(edges.map(({path}) => numbers(path)[1])).size, 3);
});

test("A label has room and hides no other one; where it has none the worst edge has its own", () => {
  const many = [edge("a", "b", {words: ["first"]}), edge("a", "b", {words: ["second"]}), edge("a", "b", {words: ["third"]})];
  const labels = layout(mapOf([["a"], ["b"]], many), 480).edges;
  assert.equal(labels[0].label, "first");
  assert.ok(labels.some(({label}) => label === ""));
  assert.equal(layout(mapOf([["a"], ["b"]], [edge("a", "b")]), 600).edges[0].label, "kv 1 GB/s, usually 9.6 GB/s");
  assert.equal(layout(mapOf([["a"], ["b"]], [edge("a", "b")]), 420).edges[0].label, "kv 1 GB/s");
  assert.equal(layout(mapOf([["a"], ["b"]], [edge("a", "b")]), 200).edges[0].label, "");
  assert.equal(layout(mapOf([["a"], ["x"], ["b"]], [edge("a", "b")]), 900).edges[0].label, "");
});

test("An edge to what is not on the map is not drawn", () => {
  assert.deepEqual(layout(mapOf([["a"]], [edge("a", "gone")]), 480).edges, []);
});

test("What the filter is about is lit with its other ends; all where it names nothing on the map", () => {
  const drawn = mapOf([["a", "b"], ["c", "d"]], [edge("a", "c"), edge("b", "d")]);
  /** @param {object} filter */
  const names = (filter) => {
    const found = lit(drawn, {...NO_FILTER, ...filter});
    return [drawn.columns.flatMap(({boxes}) => boxes.filter(found.box)).map(({name}) => name).join(""), drawn.edges.filter(found.edge).length];
  };
  assert.deepEqual(names({node: "a"}), ["ac", 1]);
  assert.deepEqual(names({engine: "d"}), ["bd", 1]);
  assert.deepEqual(names({engine: "d", peer: "at-b"}), ["bd", 1]);
  assert.deepEqual(names({peer: "at-a"}), ["ac", 1]);
  assert.deepEqual(names({}), ["abcd", 2]);
  assert.deepEqual(names({node: "gone"}), ["abcd", 2]);
});

test("A click on an edge filters by who says it, on a sum by the end that is no group", () => {
  assert.deepEqual(filterOf(map, map.edges[0]), {engine: "serving/decode-0/0", peer: "10.0.0.12:5600", node: ""});
  const groups = {...map, columns: [{title: "prefills", boxes: [box("prefill", {kind: "group"})]}, {title: "decodes", boxes: [box("d")]}]};
  const sum = {engine: "", peer: ""};
  assert.deepEqual(filterOf(groups, edge("prefill", "d", sum)), {engine: "", peer: "", node: "d"});
  assert.deepEqual(filterOf(groups, edge("d", "prefill", sum)), {engine: "", peer: "", node: "d"});
});

test("The tab keeps maps as it keeps screens, and shows that of the moment", () => {
  let state = heard();
  for (const seconds of [0, 1, 60]) {
    state = next(state, {type: "map", map: {...map, now: map.now + seconds * 1000}, now: 0});
  }
  assert.deepEqual(state.maps.map(({now}) => now - map.now), [1000, 60_000]);
  assert.equal(selection(state).map?.now, map.now + 60_000);
  assert.equal(selection({...state, scrub: map.now + 30_000}).map?.now, map.now + 1000);
  assert.equal(selection({...state, scrub: map.now - 1}).map, null);
});
