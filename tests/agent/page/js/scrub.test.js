import assert from "node:assert/strict";
import {test} from "node:test";
import {countsByMinute, inOrder, kept, minuteAt, outageAt, screenAt, STEP, WINDOW} from "../../../../agent/penstock/agent/page/static/scrub.js";
import {messages, NOW} from "./support.js";

const all = () => true;
const at = (time) => ({now: time});

test("Of each step the newest screen is kept, and of a day not more than the window holds", () => {
  let screens = [];
  for (let time = 0; time < 24 * 3600; time += 1) {
    screens = kept(screens, at(NOW + time * 1000));
  }
  const last = NOW + (24 * 3600 - 1) * 1000;
  assert.equal(screens.at(-1).now, last);
  assert.ok(screens.length <= WINDOW / STEP + 2, `${screens.length} screens`);
  assert.ok(screens[0].now <= last - WINDOW && screens[1].now > last - WINDOW);
});

test("A clock that is set back leaves no screen of the future", () => {
  const screens = kept(kept([], at(NOW)), at(NOW - 60_000));
  assert.deepEqual(screens, [at(NOW - 60_000)]);
});

test("A moment shows the last screen that came before it", () => {
  const screens = [at(NOW), at(NOW + 7000), at(NOW + 60_000)];
  assert.equal(screenAt(screens, NOW - 1), null);
  assert.equal(screenAt(screens, NOW), screens[0]);
  assert.equal(screenAt(screens, NOW + 59_999), screens[1]);
  assert.equal(screenAt([], NOW), null);
});

test("An outage has its beginning and not its end; one that lasts has no end", () => {
  const outages = [{from: 10, to: 20}, {from: 30, to: null}];
  assert.deepEqual([9, 10, 19, 20, 30, 99].map((time) => outageAt(outages, time) !== null), [false, true, true, false, true, true]);
});

test("A time falls into the minute that the journal counted", () => {
  const {minutes} = messages().history;
  assert.equal(minuteAt(minutes, minutes[0].time + 59_999), minutes[0]);
  assert.equal(minuteAt(minutes, minutes[0].time - 1), null);
});

test("Failures by minute are the journal's before the tab and the entries' after, and no minute counts twice", () => {
  const {history, log} = messages();
  const counts = countsByMinute(history.minutes, log.entries, NOW, all);
  assert.equal(counts.length, 15);
  assert.equal(counts.at(-1).time, Math.floor(NOW / 60_000) * 60_000);
  assert.deepEqual(counts.filter((count) => count.failures).map((count) => count.failures), [3, 9, 1]);
  const outcome = {...log.entries[1], kind: "load_outcome", position: "1042/1"};
  assert.deepEqual(countsByMinute(history.minutes, [...log.entries, outcome], NOW, all), counts);
  const minute = log.entries[1].time - (log.entries[1].time % 60_000);
  const both = [...history.minutes, {time: minute, cells: [{engine: "e", peer: "p", failures: 1, deferrals: 0}]}];
  assert.equal(countsByMinute(both, log.entries, NOW, all).find((count) => count.time === minute).failures, 1);
});

test("Failures by minute are those that the filter lets through", () => {
  const {history, log} = messages();
  const counts = countsByMinute(history.minutes, log.entries, NOW, (engine) => engine === "serving/decode-1/0");
  assert.deepEqual(counts.filter((count) => count.failures).map((count) => count.failures), [1]);
});

test("Rows that are held keep their places; new ones come last, gone ones go", () => {
  const rows = ["d", "c", "b", "a"];
  assert.deepEqual(inOrder(["a", "x", "b", "c"], rows, (row) => row), ["a", "b", "c", "d"]);
  assert.deepEqual(rows, ["d", "c", "b", "a"]);
});
