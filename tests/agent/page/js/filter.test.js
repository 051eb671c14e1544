import assert from "node:assert/strict";
import {test} from "node:test";
import {filtered, fromFragment, NO_FILTER, panelOf, toFragment} from "../../../../agent/penstock/agent/page/static/filter.js";
import {messages} from "./support.js";

const {map, screen} = messages();

test("A fragment says filter and panel, whatever the names are made of", () => {
  for (const name of ["serving/decode-0/0", "a&b=c#d", "<img onerror=x>", "ü %20+ 日本", ""]) {
    const filter = {engine: name, peer: name, field: name, node: name};
    const panel = panelOf("peer", {engine: name, peer: name, id: name, name});
    assert.deepEqual(fromFragment(`#${toFragment(filter, panel)}`), {filter, panel});
  }
});

test("An unknown panel and unknown words of a fragment are left out", () => {
  assert.deepEqual(fromFragment("#open=shell&x=y&engine=a"), {filter: {...NO_FILTER, engine: "a"}, panel: null});
  assert.equal(toFragment(NO_FILTER, null), "");
});

test("Without a filter the screen is the same", () => {
  assert.equal(filtered(screen, NO_FILTER), screen);
});

test("An engine leaves its column, its waits and its fields, and takes away what is of others", () => {
  const one = filtered(screen, {...NO_FILTER, engine: "serving/decode-1/0"});
  assert.deepEqual(one.peers.engines, ["serving/decode-1/0"]);
  assert.deepEqual(one.peers.rows.map((row) => [row.peer, row.cells.length]), [["10.0.0.14:5600", 1]]);
  assert.deepEqual(one.waits.rows, []);
  assert.deepEqual(one.policy.rows.map((row) => row.field), ["kvLoadFailure.action", "quarantine.after"]);
  assert.deepEqual(one.engines.rows.map((row) => row.key), ["serving/decode-1/0"]);
  assert.deepEqual(one.verdict.causes, []);
});

test("The verdict's sentence and the banners are of all, whatever is filtered", () => {
  const one = filtered(screen, {engine: "serving/decode-1/0", peer: "nobody", field: "none"});
  assert.equal(one.verdict.sentence, screen.verdict.sentence);
  assert.deepEqual(one.banners, screen.banners);
});

test("A peer leaves its row, its waits and its causes", () => {
  const one = filtered(screen, {...NO_FILTER, peer: "10.0.0.12:5600"});
  assert.deepEqual(one.peers.rows.map((row) => row.peer), ["10.0.0.12:5600"]);
  assert.equal(one.waits.rows.length, 1);
  assert.equal(one.verdict.causes.length, 1);
});

test("A field stands for the engines that have it in force", () => {
  const one = filtered(screen, {...NO_FILTER, field: "quarantine.after"});
  assert.deepEqual(one.peers.engines, ["serving/decode-1/0"]);
  assert.deepEqual(one.policy.rows.map((row) => row.field), ["quarantine.after"]);
  assert.deepEqual(one.waits.rows, []);
});

test("A node of the map is its engines, and their peers that are its addresses", () => {
  const peer = filtered(screen, {...NO_FILTER, node: "10.0.0.12:5600"}, map);
  assert.deepEqual(peer.peers.rows.map((row) => row.address), ["10.0.0.12:5600"]);
  assert.ok(peer.peers.rows.every((row) => row.cells.length === peer.peers.engines.length));
  const engine = filtered(screen, {...NO_FILTER, node: "serving/decode-1/0"}, map);
  assert.deepEqual(engine.peers.engines, ["serving/decode-1/0"]);
  assert.deepEqual(engine.engines.rows.map((row) => row.key), ["serving/decode-1/0"]);
});

test("A node that is not on the map lets all through", () => {
  const all = filtered(screen, {...NO_FILTER, node: "gone"}, map);
  assert.deepEqual(all.peers.rows, screen.peers.rows);
  assert.deepEqual(filtered(screen, {...NO_FILTER, node: "gone"}, null).waits.rows, screen.waits.rows);
});
