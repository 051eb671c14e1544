import assert from "node:assert/strict";
import {test} from "node:test";
import {alone, drawn, listed, merged, moved, PLOTS, reading, slotAt, spoken, table, timesOf} from "../../../../agent/penstock/agent/page/static/signals.js";
import {say} from "../../../../agent/penstock/agent/page/static/units.js";
import {WINDOW} from "../../../../agent/penstock/agent/page/static/scrub.js";
import {heard, messages} from "./support.js";
import {next} from "../../../../agent/penstock/agent/page/static/state.js";

const plot = (id) => PLOTS.find((one) => one.id === id);
const {signals} = messages();

/** A message of slots that begin later, with one value everywhere. */
function later(slots, value, changes = {}) {
  const list = (values) => (Array.isArray(values) ? Array(changes.length ?? 2).fill(value) : values);
  const lists = (object) => Object.fromEntries(Object.entries(object).map(([name, values]) => [name, list(values)]));
  return {...lists(signals), gates: lists(signals.gates), from: signals.from + slots * signals.step, whole: false, ...changes};
}

test("The newest slots replace those that are there, and go on after them", () => {
  const both = merged(signals, later(3, 7));
  assert.deepEqual(both.requests, [12.4, 8.2, 3, 7, 7]);
  assert.deepEqual(both.gates.queue, [0.01, 0.02, 0.01, 7, 7]);
  assert.equal(both.from, signals.from);
});

test("Between two messages that do not touch nothing is known", () => {
  assert.deepEqual(merged(signals, later(6, 1)).held, [0.04, 0.05, 0.09, 0.12, null, null, 1, 1]);
});

test("A message of earlier slots leaves the later ones", () => {
  assert.deepEqual(merged(signals, later(-1, 1)).requests, [1, 8.2, 3, 0]);
});

test("A whole message, another engine's, and one of other slots replace all", () => {
  for (const change of [{whole: true}, {engine: "other"}, {step: 10_000}]) {
    const message = later(3, 7, change);
    assert.equal(merged(signals, message), message);
  }
  assert.equal(merged(null, later(3, 7)).requests.length, 2);
});

test("Of a day no more slots are kept than the window has, however long the tab slept", () => {
  let kept = signals;
  for (const slots of [100, 1000, 1001, 1_000_000]) {
    kept = merged(kept, later(slots, slots));
    assert.ok(kept.requests.length <= WINDOW / signals.step + 1);
    assert.equal(kept.requests.at(-1), slots);
    assert.equal(timesOf(kept).at(-1), signals.from + (slots + 1) * signals.step);
  }
  assert.equal(kept.requests.at(-3), null);
});

test("The state has the signals of the stream", () => {
  const state = next(heard(), {type: "signals", signals, now: 0});
  assert.equal(next(state, {type: "signals", signals: later(3, 7), now: 0}).signals.requests.length, 5);
});

test("A time is in the slot that begins at it or before it, and outside in none", () => {
  const times = [-1, 0, 4999, 5000, 19_999, 20_000].map((time) => slotAt(signals, signals.from + time));
  assert.deepEqual(times, [null, 0, 0, 1, 3, null]);
});

test("What is read out is the cursor's slot, else that of the moment, else the newest while it is new", () => {
  const end = signals.from + 20_000;
  assert.deepEqual(reading(signals, signals.from, end, end), {slot: 0, time: signals.from});
  assert.deepEqual(reading(signals, null, signals.from + 5000, end), {slot: 1, time: signals.from + 5000});
  assert.deepEqual(reading(signals, null, null, end + 14_999), {slot: 3, time: null});
  assert.deepEqual(reading(signals, null, null, end + 15_000), {slot: null, time: null});
  assert.deepEqual(reading(signals, null, 0, end), {slot: null, time: 0});
});

test("The keyboard moves by slots, from the newest, and not out of the plot", () => {
  const last = signals.from + 15_000;
  assert.deepEqual([moved(signals, null, -1), moved(signals, last, -1), moved(signals, last, 5), moved(signals, last, -99)], [last, last - 5000, last, signals.from]);
});

test("Layers stand on each other, the lowest gate first; one of nothing is not drawn, and lines are as they are", () => {
  const ttft = plot("ttft");
  const lists = new Map(drawn(ttft, signals).map((values, index) => [ttft.series[index].name, values]));
  const rounded = (values) => values.map((value) => value && Number(value.toFixed(3)));
  assert.deepEqual(rounded(lists.get("queue")), [0.01, 0.02, 0.01, null]);
  assert.deepEqual(rounded(lists.get("transfer")), [0.07, 0.39, 0.27, null]);
  assert.deepEqual(lists.get("recompute"), [null, null, null, null]);
  assert.deepEqual(lists.get("p99"), signals.ttftP99);
  assert.equal(ttft.series.findIndex((one) => one.name === "transfer") < ttft.series.findIndex((one) => one.name === "queue"), true);
  assert.deepEqual(listed(ttft, signals).map((one) => one.name), ["p50", "p99", "queue", "handshake queue", "peer", "transfer"]);
});

test("Only a value with none beside it is a point", () => {
  assert.deepEqual(alone([1, null, 2, 3, null, undefined, 4]), [0, 6]);
  assert.deepEqual(alone([]), []);
});

test("Values are said with their units, and what is not known is not 0", () => {
  const said = [
    [null, "rate"], [0, "rate"], [12.44, "rate"], [0.001, "rate"], [0.34, "seconds"], [0.0684, "seconds"], [2.4, "seconds"], [0, "seconds"],
    [0.163, "share"], [1, "share"], [31, "count"], [12_345, "count"], [999, "bytes"], [3.1e9, "bytes"], [0, "bytes"], [5e15, "bytes"],
  ].map(([value, unit]) => say(value, unit));
  assert.deepEqual(said, [
    "not known", "0/s", "12.4/s", "<0.01/s", "340 ms", "68 ms", "2.4 s", "0 s", "16.3 %", "100 %", "31", "12345", "999 B/s", "3.1 GB/s", "0 B/s", "5000 TB/s",
  ]);
});

test("A plot is said in words, and its table has each slot, the newest first", () => {
  assert.equal(spoken(plot("queue"), signals, {slot: 1, time: null}), "now: running 30, waiting 9");
  assert.match(spoken(plot("failed"), signals, {slot: null, time: signals.from}), /^\d\d:\d\d:\d\d: failed not known, recomputed not known$/);
  const {columns, rows} = table(plot("failed"), signals);
  assert.deepEqual(columns, ["failed", "recomputed"]);
  assert.deepEqual(rows.map((row) => row.cells), [["none ended", "none ended"], ["40 %", "30 %"], ["20 %", "10 %"], ["0 %", "0 %"]]);
  const blind = {...signals, requests: [12.4, 8.2, 3, null]};
  assert.deepEqual(table(plot("failed"), blind).rows[0].cells, ["not known", "not known"]);
  assert.deepEqual(table(plot("queue"), {...signals, running: [1, 2, 3, null]}).rows[0].cells[0], "not known");
  const long = {...signals, requests: Array(181).fill(1)};
  assert.equal(table(plot("requests"), long).rows.length, 180);
});
