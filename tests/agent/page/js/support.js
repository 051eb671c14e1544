/** What the tests share: the messages of the contract, a state that has heard them, and a browser that tests hold in hand. */
import {readFileSync} from "node:fs";
import {next, NOTHING} from "../../../../agent/penstock/agent/page/static/state.js";

/** The messages of one stream, as docs/reference/page.md says them; a copy for each test. */
export const messages = () => JSON.parse(readFileSync(new URL("fixtures/stream.json", import.meta.url), "utf8"));

/** The server's clock at the last of them. */
export const NOW = 1800000900000;

/** The state of a tab whose clock is the server's and that has heard all messages. */
export function heard(changes = {}) {
  const stream = {...messages(), ...changes};
  return [
    {type: "hello", hello: stream.hello, now: NOW},
    {type: "connected", now: NOW},
    {type: "history", minutes: stream.history.minutes, now: NOW},
    {type: "log", entries: stream.log.entries, id: "1044", now: NOW},
    {type: "screen", screen: stream.screen, now: NOW},
    {type: "pulse", pulse: stream.pulse, now: NOW},
  ].reduce(next, NOTHING);
}

/** One connection that a test plays the server of. */
export class FakeSource {
  readyState = 1;
  closed = false;

  constructor(address) {
    this.address = address;
    this.listeners = new Map();
  }

  addEventListener(name, listener) {
    this.listeners.set(name, listener);
  }

  close() {
    this.closed = true;
  }

  say(name, data, lastEventId = "") {
    this.listeners.get(name)({data: JSON.stringify(data), lastEventId});
  }

  fail(readyState) {
    this.readyState = readyState;
    this.listeners.get("error")({});
  }
}

/** The surroundings of a stream, with a clock that only tests move. */
export class FakeBrowser {
  constructor() {
    this.sources = [];
    this.timers = new Map();
    this.refusals = new Map();
    this.time = NOW;
    this.count = 0;
  }

  open = (address) => {
    this.sources.push(new FakeSource(address));
    return this.sources.at(-1);
  };

  why = async (address) => this.refusals.get(address) ?? "";

  now = () => this.time;

  random = () => 0.5;

  later = (run, milliseconds) => {
    this.count += 1;
    this.timers.set(this.count, {run, at: this.time + milliseconds});
    return this.count;
  };

  cancel = (timer) => this.timers.delete(timer);

  /** Moves the clock on and runs what is due by then. */
  pass(milliseconds) {
    this.time += milliseconds;
    for (const [timer, {run, at}] of [...this.timers]) {
      if (at <= this.time) {
        this.timers.delete(timer);
        run();
      }
    }
  }
}
