import assert from "node:assert/strict";
import {test} from "node:test";
import {selection, freshness, tokenBanners} from "../../../../agent/penstock/agent/page/static/selection.js";
import {ENTRIES, next, NOTHING} from "../../../../agent/penstock/agent/page/static/state.js";
import {heard, messages, NOW} from "./support.js";

test("What comes twice is shown once, and what comes anew beside it is shown", () => {
  const {entries} = messages().log;
  const later = {...entries[2], position: "1044/0"};
  const state = next(heard(), {type: "log", entries: [...entries, later], id: "1045", now: NOW});
  assert.deepEqual(state.entries.map((entry) => entry.position), ["1041/0", "1042/0", "1043/0", "1044/0"]);
  assert.equal(state.lastId, "1045");
});

test("An equal position of another agent is another entry", () => {
  const {entries} = messages().log;
  const other = {...entries[1], position: `pod-1 ${entries[1].position}`};
  assert.equal(next(heard(), {type: "log", entries: [other], id: "", now: NOW}).entries.length, 4);
});

test("Entries from before the tab come before, and none of them twice", () => {
  const {entries} = messages().log;
  const before = {...entries[0], position: "7/0", time: NOW - 800_000};
  const state = next(heard(), {type: "earlier", entries: [before, ...entries], now: NOW});
  assert.deepEqual(state.entries.map((entry) => entry.position), ["7/0", "1041/0", "1042/0", "1043/0"]);
  const again = next(state, {type: "log", entries: [before], id: "", now: NOW});
  assert.equal(again.entries.length, 4);
});

test("A tab keeps the newest entries only", () => {
  const entries = Array.from({length: ENTRIES + 5}, (_, number) => ({...messages().log.entries[1], position: `${number}/0`}));
  const state = next(NOTHING, {type: "log", entries, id: "9", now: NOW});
  assert.equal(state.entries.length, ENTRIES);
  assert.equal(state.entries[0].position, "5/0");
  assert.equal(state.seen.size, ENTRIES);
});

test("The age of the data is of the server's clock, whatever the tab's is", () => {
  const {pulse, hello} = messages();
  const skewed = NOW - 3_600_000;
  let state = [{type: "hello", hello, now: skewed}, {type: "connected", now: skewed}, {type: "pulse", pulse, now: skewed}].reduce(next, NOTHING);
  assert.deepEqual(freshness(state), {text: "data 1 s old", state: "live"});
  state = next(state, {type: "tick", now: skewed + 60_000});
  assert.deepEqual(freshness(state), {text: "data 61 s old", state: "late"});
});

test("An outage begins once, is said with its time, and ends", () => {
  let state = next(heard(), {type: "lost", reason: "", now: NOW + 2000});
  state = next(state, {type: "lost", reason: "the agent stops", now: NOW + 9000});
  assert.equal(state.outages.length, 1);
  assert.match(freshness(state).text, /^disconnected since \d\d:\d\d:\d\d; data 10 s old; the agent stops$/);
  assert.equal(freshness(state).state, "lost");
  state = next(state, {type: "connected", now: NOW + 12_000});
  assert.deepEqual(state.outages, [{from: NOW + 2000, to: NOW + 12_000}]);
  assert.equal(freshness(state).state, "live");
});

test("Before the first connection a tab is connecting, and there is no outage", () => {
  const state = next(NOTHING, {type: "lost", reason: "", now: NOW});
  assert.equal(freshness(state).text, "connecting; no data yet");
  assert.deepEqual(state.outages, []);
});

test("A relay says how many agents answered, also if all did", () => {
  const hello = {...messages().hello, source: "relay"};
  const pulse = (answered) => ({...messages().pulse, agents: {asked: 4, answered, missing: []}});
  assert.equal(freshness(heard({hello, pulse: pulse(4)})).text, "data 1 s old; relay: 4 of 4 agents answered");
  assert.deepEqual(freshness(heard({hello, pulse: pulse(3)})), {text: "data 1 s old; relay: 3 of 4 agents answered", state: "late"});
});

test("A moment shows its screen, and the entries up to it", () => {
  const later = {...messages().screen, now: NOW + 60_000};
  let state = next(heard(), {type: "screen", screen: later, now: NOW + 60_000});
  state = next(state, {type: "scrub", time: NOW + 10_000});
  const shown = selection(state);
  assert.equal(shown.screen.now, NOW);
  assert.equal(shown.moment, NOW + 10_000);
  assert.equal(shown.note, "");
  const past = selection(next(state, {type: "scrub", time: NOW - 10_000}));
  assert.equal(past.screen, null);
  assert.match(past.note, /^This tab was opened at/);
  assert.deepEqual(past.entries.map((entry) => entry.position), ["1042/0", "1041/0"]);
});

test("The engine of the filter is unlisted where the table of peers has others only", () => {
  const {engines} = messages().screen.peers;
  const filtered = (engine) => selection(next(heard(), {type: "filter", part: {engine}}));
  assert.equal(filtered("").unlisted, "");
  assert.equal(filtered(engines[0]).unlisted, "");
  assert.equal(filtered("elsewhere/9").unlisted, "elsewhere/9");
  const none = {...messages().screen, peers: {...messages().screen.peers, engines: [], rows: []}};
  const empty = next(heard({screen: none}), {type: "filter", part: {engine: "elsewhere/9"}});
  assert.equal(selection(empty).unlisted, "");
});

test("A moment without connection says so, and of when its screen is", () => {
  let state = next(heard(), {type: "lost", reason: "", now: NOW + 2000});
  state = next(state, {type: "connected", now: NOW + 60_000});
  const shown = selection(next(state, {type: "scrub", time: NOW + 30_000}));
  assert.match(shown.note, /^This tab was not connected at that time\. What it shows is of \d\d:\d\d:\d\d\.$/);
});

test("A moment that leaves the window is followed by the oldest in it, and is never taken for now", () => {
  let state = next(heard(), {type: "scrub", time: NOW});
  state = next(state, {type: "tick", now: NOW + 3_600_000});
  assert.equal(state.scrub, NOW + 3_600_000 - 15 * 60_000);
});

test("What was lost to the journal is said, three of it", () => {
  const gap = (number) => ({type: "gap", sentence: `${number} entries are gone`, id: "7", now: NOW});
  const state = [1, 2, 3, 4].map(gap).reduce(next, heard());
  assert.deepEqual(state.gaps, ["2 entries are gone", "3 entries are gone", "4 entries are gone"]);
});

test("The time of a bundle stands still, and is said with its date", () => {
  const {hello} = messages();
  let state = heard({hello: {...hello, source: "bundle"}});
  const taken = state.clock;
  state = next(state, {type: "tick", now: NOW + 86_400_000});
  assert.equal(state.clock, taken);
  assert.match(freshness(state).text, /^as of \d{4}-\d\d-\d\d \d\d:\d\d:\d\d$/);
  assert.equal(freshness(state).state, "bundle");
  state = next(state, {type: "scrub", time: taken - 60_000});
  assert.match(selection(state).note, /^The bundle was taken at /);
  state = next(state, {type: "lost", reason: "the server is stopping", now: NOW + 86_400_000});
  assert.match(freshness(state).text, /^disconnected; as of .*; the server is stopping$/);
  assert.equal(freshness(state).state, "lost");
});

test("A tab without a token that it needs says how to get one", () => {
  assert.deepEqual(tokenBanners(heard()), []);
  const refused = next(NOTHING, {type: "refused", sentence: "Run it."});
  assert.deepEqual(tokenBanners(refused).map((banner) => [banner.sentence, banner.command]), [["Run it.", "agentctl page"]]);
  assert.deepEqual(tokenBanners(next(refused, {type: "connected", now: NOW})), []);
  const {hello} = messages();
  assert.equal(tokenBanners(heard({hello: {...hello, token: "ended"}})).length, 1);
  assert.deepEqual(tokenBanners(heard({hello: {...hello, token: "needed"}})), []);
});
