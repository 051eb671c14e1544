import assert from "node:assert/strict";
import {test} from "node:test";
import {marksAt, marksOf, said} from "../../../../agent/penstock/agent/page/static/marks.js";
import {messages, NOW} from "./support.js";

const all = () => true;
const entry = (kind, changes = {}) => ({...messages().log.entries[0], kind, sentence: `${kind} of it`, ...changes});

/** A screen so many seconds later, its verdict and engines changed. */
function screen(seconds, verdict = {}, rows = null, leftOut = 0) {
  const {screen: one} = messages();
  return {...one, now: NOW + seconds * 1000, verdict: {...one.verdict, ...verdict}, engines: {...one.engines, ...(rows ? {rows} : {}), leftOut}};
}

test("Entries that change something have marks, failures have none", () => {
  const kinds = ["policy_applied", "rotation_changed", "source_lost", "source_stopped", "server_stopping", "transfer_failure", "load_outcome"];
  const marks = marksOf([], kinds.map((kind) => entry(kind)), all);
  assert.deepEqual(marks.map((mark) => mark.kind), ["policy", "engine", "engine", "engine", "engine"]);
  assert.equal(marks[0].text, "policy_applied of it");
});

test("A quarantine begins with its warning and ends without", () => {
  const marks = marksOf([], [entry("quarantine_changed", {severity: "warning"}), entry("quarantine_changed", {severity: "info"})], all);
  assert.deepEqual(marks.map((mark) => mark.kind), ["begins", "ends"]);
});

test("A cause that appears begins, and one that is gone has ended", () => {
  const marks = marksOf([screen(0, {causes: []}), screen(5), screen(10), screen(15, {causes: [], state: "ok"})], [], all);
  assert.deepEqual(marks.map((mark) => [mark.kind, mark.time]), [["begins", NOW + 5000], ["ends", NOW + 15_000]]);
  assert.match(marks[0].text, /refuses connections/);
});

test("A verdict that is not known, or leaves causes out, does not tell that one is gone", () => {
  for (const verdict of [{causes: [], state: "unknown"}, {causes: [], leftOut: 3}]) {
    assert.deepEqual(marksOf([screen(0), screen(5, verdict), screen(10)], [], all), []);
  }
});

test("Engines come and go; of an engine that was left out of a list nothing is known", () => {
  const [one, other] = messages().screen.engines.rows;
  const marks = marksOf([screen(0, {}, [one]), screen(5, {}, [{...one, connected: false}]), screen(10, {}, [one, other])], [], all);
  assert.deepEqual(marks.map((mark) => mark.text), ["serving/decode-0/0 is away", "serving/decode-0/0 is connected"]);
  assert.equal(marksOf([screen(0, {}, []), screen(5, {}, [one])], [], all).length, 1);
  assert.deepEqual(marksOf([screen(0, {}, [], 7), screen(5, {}, [one])], [], all), []);
});

test("Marks are those that the filter lets through, oldest first", () => {
  const entries = [entry("source_lost", {engine: "a", time: 20}), entry("source_lost", {engine: "b", time: 10}), entry("source_lost", {engine: "a", time: 10})];
  assert.deepEqual(marksOf([], entries, (engine) => engine === "a").map((mark) => mark.time), [10, 20]);
  assert.deepEqual(marksOf([screen(0, {causes: []}), screen(5)], [], (engine) => engine === "a"), []);
});

test("A slot has the marks of its time, and of many the first are said", () => {
  const marks = [0, 4999, 5000, 5001, 9999].map((time) => ({time, kind: "policy", text: `at ${time}`}));
  assert.equal(said(marksAt(marks, 0, 5000)), "◆ at 0; ◆ at 4999");
  assert.equal(said(marksAt(marks, 5000, 5000)), "◆ at 5000; ◆ at 5001 and 1 more");
  assert.deepEqual(marksAt(marks, null, 5000), []);
  assert.equal(said([]), "");
});
