import assert from "node:assert/strict";
import {test} from "node:test";
import {delay, FIRST_DELAY, LONGEST_DELAY, SILENCE, Stream} from "../../../../agent/penstock/agent/page/static/stream.js";
import {FakeBrowser, messages} from "./support.js";

function started() {
  const browser = new FakeBrowser();
  const actions = [];
  const stream = new Stream((action) => actions.push(action), browser);
  stream.start();
  return {browser, actions, stream};
}

const types = (actions) => actions.map((action) => action.type);

test("Delays double, are bounded, and differ between tabs", () => {
  for (const attempts of [0, 1, 5, 100]) {
    const whole = Math.min(LONGEST_DELAY, FIRST_DELAY * 2 ** attempts);
    assert.equal(delay(attempts, 0), whole / 2);
    assert.equal(delay(attempts, 1), whole);
  }
});

test("Each message becomes its action", () => {
  const {browser, actions} = started();
  const [source] = browser.sources;
  const {hello, history, log, screen, pulse, signals} = messages();
  assert.equal(source.address, "/api/stream?seconds=900");
  source.say("hello", hello);
  source.say("history", history);
  source.say("log", log, "1044");
  source.say("screen", screen);
  source.say("pulse", pulse);
  source.say("gap", {sentence: "gone"}, "1050");
  source.say("earlier", log);
  source.say("signals", signals);
  assert.deepEqual(types(actions), ["hello", "connected", "history", "log", "screen", "pulse", "gap", "earlier", "signals"]);
  assert.equal(actions[3].id, "1044");
});

test("A connection that the browser makes again by itself is left to it", () => {
  const {browser, actions} = started();
  browser.sources[0].fail(0);
  assert.deepEqual(types(actions), ["lost"]);
  assert.equal(browser.sources[0].closed, false);
  browser.sources[0].say("hello", messages().hello);
  assert.equal(browser.sources.length, 1);
  assert.deepEqual(types(actions), ["lost", "hello", "connected"]);
});

test("A connection that the browser gives up is made again after the last position", () => {
  const {browser} = started();
  browser.sources[0].say("log", messages().log, "1044");
  browser.sources[0].fail(2);
  assert.equal(browser.sources[0].closed, true);
  browser.pass(FIRST_DELAY);
  assert.equal(browser.sources[1].address, "/api/stream?after=1044");
});

test("Failing again and again takes longer and longer, until something is heard", () => {
  const {browser} = started();
  browser.sources[0].fail(2);
  browser.pass(FIRST_DELAY);
  browser.sources[1].fail(2);
  browser.pass(FIRST_DELAY);
  assert.equal(browser.sources.length, 2);
  browser.pass(FIRST_DELAY);
  assert.equal(browser.sources.length, 3);
  browser.sources[2].say("hello", messages().hello);
  browser.sources[2].fail(2);
  browser.pass(FIRST_DELAY);
  assert.equal(browser.sources.length, 4);
});

test("A goodbye closes, says why, and is followed by another connection", () => {
  const {browser, actions} = started();
  browser.sources[0].say("bye", {reason: "slow", sentence: "This tab does not read."});
  assert.deepEqual(actions.map((action) => [action.type, action.reason]), [["lost", "This tab does not read."]]);
  assert.equal(browser.sources[0].closed, true);
  browser.pass(2 * FIRST_DELAY);
  assert.equal(browser.sources.length, 2);
});

test("Silence is taken for a dead connection; a pulse is not", () => {
  const {browser, actions} = started();
  browser.pass(SILENCE - 1);
  browser.sources[0].say("pulse", messages().pulse);
  browser.pass(SILENCE - 1);
  assert.deepEqual(types(actions), ["pulse"]);
  browser.pass(1);
  assert.deepEqual(types(actions), ["pulse", "lost"]);
  assert.equal(browser.sources[0].closed, true);
});

test("What a replaced connection still says is dropped", () => {
  const {browser, actions} = started();
  browser.sources[0].fail(2);
  browser.sources[0].say("pulse", messages().pulse);
  assert.deepEqual(types(actions), ["lost"]);
});

test("After the end nothing is opened any more", () => {
  const {browser, stream} = started();
  stream.stop();
  browser.pass(10 * LONGEST_DELAY);
  assert.equal(browser.sources.length, 1);
});

test("A connection that is refused for want of a token says so, until one is taken", async () => {
  const {browser, actions} = started();
  browser.refusals.set("/api/stream?seconds=900", "Run agentctl page.");
  browser.sources[0].fail(2);
  await Promise.resolve();
  await Promise.resolve();
  assert.deepEqual(types(actions), ["lost", "refused"]);
  assert.equal(actions[1].sentence, "Run agentctl page.");
  browser.refusals.clear();
  browser.pass(FIRST_DELAY);
  browser.sources[1].fail(2);
  await Promise.resolve();
  assert.deepEqual(types(actions), ["lost", "refused", "lost"]);
});
