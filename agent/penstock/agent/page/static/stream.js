/**
 * The one connection of the tab: server-sent events into actions.
 *
 * The browser reconnects by itself and sends Last-Event-ID. Where it gives up (an answer that is no stream), where the server
 * says `bye` and where nothing comes for a while, this connects anew after the last position, ever later and never at the same
 * time as other tabs.
 */

import {whyRefused} from "./requests.js";
import {tokenOfTab} from "./token.js";

/**
 * @typedef {import("./types.js").Action} Action
 * @typedef {import("./types.js").Source} Source
 * @typedef {import("./types.js").Surroundings} Surroundings
 */

const SECONDS = 900;
/** A pulse comes every 2 s; without any for so long the connection is dead, whatever TCP thinks. */
export const SILENCE = 8000;
export const FIRST_DELAY = 1000;
export const LONGEST_DELAY = 30_000;
/** EventSource.CLOSED, which tests do not have. */
const CLOSED = 2;

/**
 * Returns how long to wait before an attempt: twice as long each time, and between half and all of that.
 *
 * @param {number} attempts that have failed since the last message
 * @param {number} random from 0 to 1
 */
export function delay(attempts, random) {
  return Math.min(LONGEST_DELAY, FIRST_DELAY * 2 ** Math.min(attempts, 10)) * (0.5 + random / 2);
}

/** The stream of one tab; `stop` ends it. */
export class Stream {
  /**
   * @param {(action: Action) => void} dispatch
   * @param {Surroundings} surroundings
   */
  constructor(dispatch, surroundings) {
    this.dispatch = dispatch;
    this.surroundings = surroundings;
    this.after = "";
    this.attempts = 0;
    /** @type {Source | null} */
    this.source = null;
    /** @type {unknown} */
    this.timer = null;
  }

  start() {
    const address = `/api/stream?${this.after ? `after=${encodeURIComponent(this.after)}` : `seconds=${SECONDS}`}`;
    const source = this.surroundings.open(address);
    this.source = source;
    /**
     * Hears one kind of message; one of a source that has been replaced is dropped.
     *
     * @param {string} name
     * @param {(data: any, id: string, now: number) => void} then
     */
    const on = (name, then) => {
      source.addEventListener(name, (event) => {
        if (this.source === source) {
          const message = /** @type {MessageEvent} */ (event);
          this.heard();
          then(JSON.parse(message.data), message.lastEventId, this.surroundings.now());
        }
      });
    };
    on("hello", (hello, _id, now) => {
      this.attempts = 0;
      this.dispatch({type: "hello", hello, now});
      this.dispatch({type: "connected", now});
    });
    on("screen", (screen, _id, now) => this.dispatch({type: "screen", screen, now}));
    on("history", (history, _id, now) => this.dispatch({type: "history", minutes: history.minutes, now}));
    on("earlier", (earlier, _id, now) => this.dispatch({type: "earlier", entries: earlier.entries, now}));
    on("signals", (signals, _id, now) => this.dispatch({type: "signals", signals, now}));
    on("map", (map, _id, now) => this.dispatch({type: "map", map, now}));
    on("pulse", (pulse, _id, now) => this.dispatch({type: "pulse", pulse, now}));
    on("log", (log, id, now) => {
      this.after = id || this.after;
      this.dispatch({type: "log", entries: log.entries, id, now});
    });
    on("gap", (gap, id, now) => {
      this.after = id || this.after;
      this.dispatch({type: "gap", sentence: gap.sentence, id, now});
    });
    on("bye", (bye) => this.again(bye.sentence, 1));
    source.addEventListener("error", () => {
      if (this.source === source) {
        if (source.readyState === CLOSED) {
          this.again("", 0);
          this.ask(address);
        } else {
          this.dispatch({type: "lost", reason: "", now: this.surroundings.now()});
        }
      }
    });
    this.heard();
  }

  /**
   * Asks why a connection was refused.
   *
   * @param {string} address
   */
  async ask(address) {
    const sentence = await this.surroundings.why(address);
    if (sentence && !this.source) {
      this.dispatch({type: "refused", sentence});
    }
  }

  stop() {
    this.surroundings.cancel(this.timer);
    this.source?.close();
    this.source = null;
  }

  /** Begins to wait for the next message. */
  heard() {
    this.surroundings.cancel(this.timer);
    this.timer = this.surroundings.later(() => this.again("nothing came for a while", 0), SILENCE);
  }

  /**
   * Closes the connection and opens another one later.
   *
   * @param {string} reason
   * @param {number} more attempts to count beside this one
   */
  again(reason, more) {
    this.stop();
    this.dispatch({type: "lost", reason, now: this.surroundings.now()});
    const wait = delay(this.attempts + more, this.surroundings.random());
    this.attempts += 1;
    this.timer = this.surroundings.later(() => this.start(), wait);
  }
}

/**
 * Returns what a stream needs, of the browser.
 *
 * @returns {Surroundings}
 */
export function browser() {
  return {
    // The one request that cannot say it in a header.
    open: (address) => new EventSource(tokenOfTab() ? `${address}&token=${encodeURIComponent(tokenOfTab())}` : address),
    why: whyRefused,
    now: () => Date.now(),
    random: () => Math.random(),
    later: (run, milliseconds) => setTimeout(run, milliseconds),
    cancel: (timer) => clearTimeout(timer),
  };
}
