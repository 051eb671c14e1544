/** The sections that one sees something in: a plot of the signals, and the minutes of an engine and a peer. */
import {minuteOfDay} from "../format.js";
import {marksOf} from "../marks.js";
import {html, useMemo, useState} from "../markup.js";
import {countsByMinute, WINDOW} from "../scrub.js";
import {PLOTS, reading, valuesOf} from "../signals.js";
import {noneSentence, One} from "./signals.js";
import {Bars} from "./timeline.js";

/**
 * @typedef {import("../types.js").State} State
 * @typedef {import("../types.js").MinuteCount} MinuteCount
 */

const MINUTE = 60_000;

/**
 * @param {{section: import("../messages.js").PlotSection, live: import("../types.js").Live, act: import("../types.js").Act}} props
 */
export function PlotOf({section, live: {state, asked}, act}) {
  const {engine, title, sentence} = section;
  const [cursor, setCursor] = useState(/** @type {number | null} */ (null));
  const marks = useMemo(
    () => marksOf(state.screens, state.entries, (one) => !engine || one === engine),
    [state.screens, state.entries, engine],
  );
  const plot = PLOTS.find(({id}) => id === section.plot);
  const signals = engine ? asked.signals : state.signals;
  if (!plot || !signals || signals.requests.length === 0) {
    const none = signals ? "Nothing is known of the last 15 minutes." : engine ? `Asking for the signals of ${engine} …` : noneSentence(state);
    return html`<h3>${title}</h3>
      <p class="empty">${asked.error || none}</p>`;
  }
  if (!plot.series.some((one) => valuesOf(one, signals).some((value) => value !== null))) {
    return html`<h3>${title}</h3>
      <p class="empty">No value of it is known in the last 15 minutes: this curve cannot show it.</p>`;
  }
  const read = reading(signals, cursor, state.scrub, state.clock);
  return html`<div class="plots">
      <${One} plot=${{...plot, title}} signals=${signals} state=${state} marks=${marks} read=${read} onCursor=${setCursor} act=${act} />
    </div>
    <p class="note">${[sentence, asked.error].filter(Boolean).join("; ")}</p>`;
}

/**
 * Counted from what the tab has. It is told of each failure, but of deferrals only until it is opened.
 *
 * @param {{section: import("../messages.js").MinutesSection, state: State}} props
 */
export function Minutes({section: {engine, peer, sentence}, state}) {
  if (!state.hello) {
    return html`<p class="empty">Waiting for the first answer.</p>`;
  }
  const counts = countsByMinute(state.minutes, state.entries, state.clock, (one, other) => (!engine || one === engine) && (!peer || other === peer));
  const opened = state.screens.at(0)?.now ?? state.clock;
  const late = state.clock - opened > MINUTE ? `; those after ${minuteOfDay(opened)}, when this tab was opened, are not known` : "";
  return html`<div class="minutes">
    ${/** @type {const} */ (["failures", "deferrals"]).map((of) => {
      const label = worded(of, counts) + (of === "deferrals" ? late : "");
      return html`<p>${label}</p>
        <${Bars} counts=${counts} of=${of} label=${label} from=${state.clock - WINDOW} opened=${opened} />`;
    })}
    <p class="note">from ${minuteOfDay(state.clock - WINDOW)} to ${minuteOfDay(state.clock)}${sentence && `; ${sentence}`}</p>
  </div>`;
}

/**
 * Says "failures: 12 in 15 minutes, 7 of them in the minute 14:02".
 *
 * @param {"failures" | "deferrals"} of
 * @param {MinuteCount[]} counts
 */
function worded(of, counts) {
  const total = counts.reduce((sum, count) => sum + count[of], 0);
  const worst = counts.reduce((one, other) => (other[of] > one[of] ? other : one));
  return `${of}: ${total || "none known"} in 15 minutes${total ? `, ${worst[of]} of them in the minute ${minuteOfDay(worst.time)}` : ""}`;
}
