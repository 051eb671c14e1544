import assert from "node:assert/strict";
import {afterEach, test} from "node:test";
import {panelOf} from "../../../../agent/penstock/agent/page/static/filter.js";
import {address, write} from "../../../../agent/penstock/agent/page/static/requests.js";

const fetchOfNode = globalThis.fetch;
afterEach(() => {
  globalThis.fetch = fetchOfNode;
});

test("A detail has its address, and names in it are escaped", () => {
  assert.equal(address(panelOf("request", {id: "a&b"})), "/api/request?id=a%26b");
  assert.equal(address(panelOf("peer", {engine: "n/s/0", peer: "h:1"})), "/api/peer?engine=n%2Fs%2F0&peer=h%3A1");
  assert.equal(address(panelOf("engine", {engine: "n/s/0"})), "/api/engine?key=n%2Fs%2F0");
  assert.equal(address(panelOf("condition", {name: "peer_slow", peer: "h:1", engine: "a/0"})), "/api/condition?kind=peer_slow&peer=h%3A1&engine=a%2F0");
  assert.equal(address(panelOf("policy", {name: "p"})), "/api/policy?name=p");
  assert.equal(address(panelOf("events", {peer: "h:1"})), "/api/events?peer=h%3A1&seconds=900&limit=200");
  assert.equal(address(panelOf("policies")), "/api/policies");
});

test("A write says what no other site's form can say", async () => {
  let asked;
  globalThis.fetch = async (where, options) => {
    asked = {where, options};
    return Response.json({sentence: "done", sentences: [], sections: [], command: ""});
  };
  await write("pause", {engine: "n/s/0", seconds: 60, dryRun: true, reason: "test"});
  assert.equal(asked.where, "/api/write/pause");
  assert.equal(asked.options.method, "POST");
  assert.equal(asked.options.headers["Content-Type"], "application/json");
  assert.equal(asked.options.headers["X-Penstock"], "page");
  assert.deepEqual(JSON.parse(asked.options.body), {engine: "n/s/0", seconds: 60, dryRun: true, reason: "test"});
});

test("A refusal is the server's sentence", async () => {
  globalThis.fetch = async () => Response.json({error: "Name an engine."}, {status: 400});
  await assert.rejects(write("pause", {dryRun: true, reason: ""}), {message: "Name an engine."});
});

test("An answer that is not JSON, and none, are sentences too", async () => {
  globalThis.fetch = async () => new Response("<html>", {status: 502});
  await assert.rejects(write("pause", {dryRun: true, reason: ""}), {message: "The server answered 502, and not in JSON."});
  globalThis.fetch = async () => {
    throw new TypeError("fetch failed");
  };
  await assert.rejects(write("pause", {dryRun: true, reason: ""}), {message: "The server cannot be reached."});
});
