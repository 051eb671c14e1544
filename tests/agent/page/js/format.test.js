import assert from "node:assert/strict";
import {test} from "node:test";
import {clock, counted, dateOf, lasting, pieces, span, printable} from "../../../../agent/penstock/agent/page/static/format.js";

test("A duration is said in one unit, and never a negative one", () => {
  const cases = [[-3, "0 s"], [0, "0 s"], [1.9, "1 s"], [89, "89 s"], [90, "1 min"], [5399, "89 min"], [5400, "1 h"], [129_600, "1 d"]];
  for (const [seconds, said] of cases) {
    assert.equal(span(seconds), said);
  }
});

test("A time of day is the browser's own", () => {
  assert.equal(clock(new Date(2026, 10, 24, 9, 5, 7).getTime()), "09:05:07");
});

test("A date is the browser's own", () => {
  assert.equal(dateOf(new Date(2026, 0, 4, 23, 59).getTime()), "2026-01-04");
});

test("One thing is singular, none and many are plural", () => {
  assert.deepEqual([0, 1, 2].map((count) => counted(count, "failure")), ["0 failures", "1 failure", "2 failures"]);
});

test("A waterfall's times are in milliseconds below a second", () => {
  assert.deepEqual([0.4, 340, 2414].map(lasting), ["0 ms", "340 ms", "2.41 s"]);
});

test("A sentence is cut at the names in it, and stays the same sentence", () => {
  const cut = pieces("load of r1 from 10.0.0.1:56 failed", ["10.0.0.1:56", "r1", ""]);
  assert.equal(cut.map((piece) => piece.text).join(""), "load of r1 from 10.0.0.1:56 failed");
  assert.deepEqual(cut.filter((piece) => piece.name).map((piece) => piece.text), ["r1", "10.0.0.1:56"]);
});

test("A name inside a longer name is not that name", () => {
  const cut = pieces("from 10.0.0.1:5600, then 10.0.0.1:56", ["10.0.0.1:56"]);
  assert.deepEqual(cut, [
    {text: "from 10.0.0.1:5600, then ", name: false},
    {text: "10.0.0.1:56", name: true},
  ]);
});

test("A name for people has no character that cannot be printed or turns text around", () => {
  assert.equal(printable("cmpl-1 é 😀"), "cmpl-1 é 😀");
  assert.equal(printable("a\u202eb\x1b\u2028\u{e0001}"), "a\\u202eb\\u001b\\u2028\\ue0001");
});
