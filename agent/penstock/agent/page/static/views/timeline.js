/** The last 15 minutes: failures by minute, and the slider that goes back in them. */
import {clock, counted, minuteOfDay, span} from "../format.js";
import {html} from "../markup.js";
import {STEP, WINDOW} from "../scrub.js";

const MINUTE = 60_000;
const HEIGHT = 14;

/**
 * @typedef {import("../types.js").State} State
 * @typedef {import("../types.js").Act} Act
 * @typedef {import("../types.js").Selection} Selection
 */

/**
 * Says that this is not now, as long as it is not.
 *
 * @param {{state: State, shown: Selection, act: Act}} props
 */
export function AsOf({state, shown, act}) {
  if (state.scrub === null) {
    return null;
  }
  return html`<div class="as-of" role="note" aria-label="Not now">
    <p>
      <b>as of ${clock(state.scrub)}, ${span((state.clock - state.scrub) / 1000)} ago</b> ${shown.note}
    </p>
    <button type="button" onClick=${() => act.scrub(null)}>${state.hello?.source === "bundle" ? "back" : "live"} ▸</button>
  </div>`;
}

/**
 * @param {{state: State, shown: Selection, act: Act}} props
 */
export function Timeline({state, shown, act}) {
  const end = Math.floor(state.clock / STEP) * STEP;
  const value = state.scrub === null ? end : Math.min(end, state.scrub);
  /** @param {Event} event */
  const moved = (event) => {
    const time = Number(/** @type {HTMLInputElement} */ (event.target).value);
    act.scrub(time >= end ? null : time);
  };
  const first = state.screens.at(0);
  const label = labelOf(shown.counts);
  return html`<section class="time" aria-label="The last 15 minutes">
    <span class="note">${minuteOfDay(end - WINDOW)}</span>
    <div class="track">
      <${Bars} counts=${shown.counts} of="failures" label=${label} from=${end - WINDOW} opened=${first ? first.now : end} />
      <input
        id="time"
        type="range"
        min=${end - WINDOW}
        max=${end}
        step=${STEP}
        value=${value}
        aria-label="Moment that is shown"
        aria-valuetext=${state.scrub === null ? "now" : `${clock(value)}, ${span((state.clock - value) / 1000)} ago`}
        onInput=${moved}
      />
    </div>
    <span class="note">now</span>
    <span class="note counted" aria-hidden="true">${label}</span>
  </section>`;
}

/**
 * Says how many failures there were, and in which minute most of them.
 *
 * @param {import("../types.js").MinuteCount[]} counts
 */
function labelOf(counts) {
  const total = counts.reduce((sum, count) => sum + count.failures, 0);
  const worst = counts.reduce((one, other) => (other.failures > one.failures ? other : one));
  return total === 0
    ? "No failure is known in the last 15 minutes"
    : `${counted(total, "failure")} in the last 15 minutes, ${worst.failures} in the minute ${minuteOfDay(worst.time)}`;
}

/**
 * Failures, or deferrals, of each minute. What is older than the tab is paler: of it there are counts only.
 *
 * @param {{counts: import("../types.js").MinuteCount[], of: "failures" | "deferrals", label: string, from: number, opened: number}} props
 */
export function Bars({counts, of, label, from, opened}) {
  const most = Math.max(1, ...counts.map((count) => count[of]));
  /** @param {number} time */
  const x = (time) => (Math.max(0, time - from) / WINDOW) * 900;
  return html`<svg viewBox=${`0 0 900 ${HEIGHT}`} preserveAspectRatio="none" role="img" aria-label=${label}>
    ${counts.filter((count) => count[of] > 0).map((count) => {
      const height = (count[of] / most) * (HEIGHT - 2);
      return html`<rect
        key=${count.time}
        class=${count.time < opened - MINUTE ? "older" : ""}
        x=${x(count.time)}
        y=${HEIGHT - 1 - height}
        width=${Math.max(0, x(count.time + MINUTE) - x(count.time) - 2)}
        height=${height + 1}
      />`;
    })}
  </svg>`;
}
