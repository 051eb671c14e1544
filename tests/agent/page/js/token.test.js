import assert from "node:assert/strict";
import {afterEach, beforeEach, test} from "node:test";
import {authorization, divided, takeToken, tokenOfTab} from "../../../../agent/penstock/agent/page/static/token.js";
import {detail, whyRefused, write} from "../../../../agent/penstock/agent/page/static/requests.js";
import {panelOf} from "../../../../agent/penstock/agent/page/static/filter.js";

const before = {location: globalThis.location, history: globalThis.history, sessionStorage: globalThis.sessionStorage, fetch: globalThis.fetch};
let kept;
let addresses;

const set = (name, value) => Object.defineProperty(globalThis, name, {value, configurable: true, writable: true});

beforeEach(() => {
  kept = new Map();
  addresses = [];
  set("sessionStorage", {getItem: (name) => kept.get(name) ?? null, setItem: (name, value) => kept.set(name, value)});
  set("history", {replaceState: (_state, _title, address) => addresses.push(address)});
});

afterEach(() => Object.entries(before).forEach(([name, value]) => set(name, value)));

const at = (hash) => set("location", {hash, pathname: "/", search: ""});

test("A fragment is divided into the token and what else the page knows of it", () => {
  assert.deepEqual(divided("#token=abc&engine=a%2F0&open=policies"), {token: "abc", rest: "engine=a%2F0&open=policies"});
  assert.deepEqual(divided("engine=x"), {token: "", rest: "engine=x"});
  assert.deepEqual(divided(""), {token: "", rest: ""});
});

test("The token leaves the address, and stays in the tab", () => {
  at("#token=first&engine=a");
  assert.equal(takeToken(), true);
  assert.deepEqual(addresses, ["/#engine=a"]);
  assert.equal(kept.size, 1);
  at("#engine=a");
  assert.equal(takeToken(), false);
  assert.deepEqual(authorization(), {Authorization: "Bearer first"});
  at("#token=second");
  takeToken();
  assert.equal(addresses.at(-1), "/");
  assert.equal(tokenOfTab(), "second");
});

test("A browser that keeps nothing has the token until it loads the page again", () => {
  const refuse = () => {
    throw new Error("SecurityError");
  };
  set("sessionStorage", {getItem: refuse, setItem: refuse});
  at("#token=third");
  assert.equal(takeToken(), true);
  assert.equal(tokenOfTab(), "third");
});

test("Questions and writes carry it in their header, never in their address", async () => {
  at("#token=fourth");
  takeToken();
  const asked = [];
  set("fetch", async (where, options) => {
    asked.push({where, header: options.headers.Authorization});
    return Response.json({});
  });
  await detail(panelOf("policies"), new AbortController().signal);
  await write("pause", {dryRun: true, reason: ""});
  assert.deepEqual(asked, [
    {where: "/api/policies", header: "Bearer fourth"},
    {where: "/api/write/pause", header: "Bearer fourth"},
  ]);
});

test("A refused stream says why, if that is for want of a token", async () => {
  set("fetch", async () => Response.json({error: "Run it."}, {status: 401}));
  assert.equal(await whyRefused("/api/stream?seconds=900"), "Run it.");
  set("fetch", async () => Response.json({error: "other"}, {status: 403}));
  assert.equal(await whyRefused("/api/stream?seconds=900"), "");
  set("fetch", async () => {
    throw new TypeError("down");
  });
  assert.equal(await whyRefused("/api/stream?seconds=900"), "");
});
