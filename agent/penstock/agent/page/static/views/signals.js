/** The signals: six plots of the last 15 minutes, each with its newest values, and its table. */
import {boxOf, matcher} from "../filter.js";
import {clock, counted} from "../format.js";
import {marksAt, marksOf, said, SIGNS} from "../marks.js";
import {html, useEffect, useMemo, useState} from "../markup.js";
import {signalsOf} from "../requests.js";
import {STEP, WINDOW} from "../scrub.js";
import {listed, PLOTS, reading, sayAt, table} from "../signals.js";
import {Scrolled} from "./parts.js";
import {Plot} from "./plot.js";

/**
 * @typedef {import("../messages.js").Signals} Signals
 * @typedef {import("../types.js").State} State
 * @typedef {import("../types.js").Act} Act
 */

const EVERY = 5000;

/**
 * @param {{state: State, act: Act}} props
 */
export function SignalsView({state, act}) {
  const {peer, field, node} = state.filter;
  const map = state.maps.at(-1) ?? null;
  const engines = boxOf(map, node)?.engines ?? [];
  const engine = state.filter.engine || (engines.length === 1 ? engines[0] : "");
  const asked = useEngine(engine, state.hello?.source === "bundle");
  const signals = engine ? asked.signals : state.signals;
  const [cursor, setCursor] = useState(/** @type {number | null} */ (null));
  const marks = useMemo(
    () => marksOf(state.screens, state.entries, matcher(state.filter, state.screen, map)),
    [state.screens, state.entries, state.filter, map],
  );
  if (!signals || signals.requests.length === 0) {
    return html`<section id="signals" class="none" tabindex="-1" aria-labelledby="signals-title">
      <h2 id="signals-title">Signals</h2>
      <p class="empty">${asked.error || (signals ? "Nothing is known of the last 15 minutes." : engine ? `Asking for the signals of ${engine} …` : noneSentence(state))}</p>
    </section>`;
  }
  const read = reading(signals, cursor, state.scrub, state.clock);
  // A slot is as wide as two pixels: a sign is found from beside it, too.
  const here = marksAt(marks, read.time && read.time - 2 * signals.step, 5 * signals.step);
  const known = read.slot === null ? null : signals.known?.[read.slot];
  const part = known && known < signals.engines ? `${known} of ` : "";
  const whose = engine ? `of ${engine}` : signals.engines === 1 ? "of the one engine" : `of ${part}${counted(signals.engines, "engine")} together`;
  const notes = [whose, signals.leftOut ? `${signals.leftOut} without room are not counted` : "", peer || field || (node && !engine) ? "not filtered by peer, field or group" : "", asked.error];
  return html`<section id="signals" class="signals" tabindex="-1" aria-labelledby="signals-title">
    <header class="part">
      <h2 id="signals-title">Signals</h2>
      <p class="note">${notes.filter(Boolean).join("; ")}</p>
      <p class="here">${read.time === null ? "" : clock(read.time)} ${said(here)}</p>
      <${Key} marks=${marks} />
    </header>
    <div class="plots">
      ${PLOTS.map((plot) => html`<${One} key=${plot.id} id=${`signal-${plot.id}`} plot=${plot} signals=${signals} state=${state} marks=${marks} read=${read} onCursor=${setCursor} act=${act} />`)}
    </div>
  </section>`;
}

/**
 * One plot with its values and its table.
 *
 * @param {{id?: string, plot: import("../types.js").PlotKind, signals: Signals, state: State, marks: readonly import("../types.js").Mark[], read: import("../types.js").Reading, onCursor: (time: number | null) => void, act: Act}} props
 */
export function One({id, plot, signals, state, marks, read, onCursor, act}) {
  const end = Math.floor(state.clock / STEP) * STEP;
  return html`<article id=${id}>
    <header>
      <h3 title=${plot.hint}>${plot.title}</h3>
      <${Table} plot=${plot} signals=${signals} marks=${marks} />${" "}
      <${Legend} plot=${plot} signals=${signals} read=${read} />
    </header>
    <${Plot}
      plot=${plot}
      signals=${signals}
      range=${{from: end - WINDOW, to: end}}
      marks=${marks}
      read=${read}
      scrub=${state.scrub}
      onCursor=${onCursor}
      onPick=${(/** @type {number} */ time) => act.scrub(time >= end ? null : time)}
    />
  </article>`;
}

/** @param {State} state */
export function noneSentence(state) {
  return state.screen ? "This server sends no signals: its version is older than this page's." : "Waiting for the first answer.";
}

/**
 * Asks for one engine's signals as long as the filter, or a panel, names it; those of a bundle once.
 *
 * @param {string} engine
 * @param {boolean} still
 */
export function useEngine(engine, still) {
  const [answer, setAnswer] = useState({engine: "", signals: /** @type {Signals | null} */ (null), error: ""});
  useEffect(() => {
    const gone = new AbortController();
    let timer = 0;
    const ask = async () => {
      try {
        const signals = await signalsOf(engine, gone.signal);
        setAnswer({engine, signals, error: ""});
      } catch (error) {
        const sentence = error instanceof Error ? error.message : String(error);
        gone.signal.aborted || setAnswer((before) => ({engine, signals: before.engine === engine ? before.signals : null, error: sentence}));
      }
      if (!still && !gone.signal.aborted) {
        timer = setTimeout(ask, EVERY);
      }
    };
    if (engine) {
      ask();
    }
    return () => {
      gone.abort();
      clearTimeout(timer);
    };
  }, [engine, still]);
  return engine && answer.engine === engine ? answer : {engine, signals: null, error: ""};
}

/**
 * The signs of the marks that there are.
 *
 * @param {{marks: readonly import("../types.js").Mark[]}} props
 */
function Key({marks}) {
  const kinds = new Set(marks.map((mark) => mark.kind));
  const signs = Object.entries(SIGNS).filter(([kind]) => kinds.has(/** @type {any} */ (kind)));
  return html`<p class="note">${signs.map(([, {sign, words}]) => html`<span>${sign} ${words}</span> `)}</p>`;
}

/**
 * What each line and each layer is, with its value.
 *
 * @param {{plot: import("../types.js").PlotKind, signals: Signals, read: import("../types.js").Reading}} props
 */
function Legend({plot, signals, read}) {
  return html`<p class="legend">
    ${listed(plot, signals).map((series) => {
      const colour = `var(--${series.colour})`;
      return html`<span key=${series.name}>
          <svg viewBox=${series.layer ? "0 0 8 8" : "0 0 16 8"} width=${series.layer ? 8 : 16} height="8" aria-hidden="true">
            ${series.layer
              ? html`<rect width="8" height="8" fill=${colour} />`
              : html`<path d="M0 4h16" stroke=${colour} stroke-width="2" stroke-dasharray=${(series.dash ?? []).join(" ")} />`}
          </svg>
          ${" "}${series.name} <b>${sayAt(series, signals, read.slot)}</b>
        </span> `;
    })}
  </p>`;
}

/**
 * The plot's numbers for those who cannot see it, made while it is open.
 *
 * @param {{plot: import("../types.js").PlotKind, signals: Signals, marks: readonly import("../types.js").Mark[]}} props
 */
function Table({plot, signals, marks}) {
  const [open, setOpen] = useState(false);
  return html`<details class="numbers" onToggle=${(/** @type {Event} */ event) => setOpen(/** @type {HTMLDetailsElement} */ (event.target).open)}>
    <summary aria-label=${`Table: ${plot.title}`}>table</summary>
    ${open && html`<${Numbers} plot=${plot} signals=${signals} marks=${marks} />`}
  </details>`;
}

/**
 * @param {{plot: import("../types.js").PlotKind, signals: Signals, marks: readonly import("../types.js").Mark[]}} props
 */
function Numbers({plot, signals, marks}) {
  const {columns, rows} = table(plot, signals);
  return html`<${Scrolled} label=${plot.title}>
    <table>
      <thead>
        <tr>
          ${["time", ...columns, "marks"].map((column) => html`<th scope="col">${column}</th>`)}
        </tr>
      </thead>
      <tbody>
        ${rows.map(
          ({time, cells}) =>
            html`<tr key=${time}>
              <th scope="row">${clock(time)}</th>
              ${cells.map((cell) => html`<td class="number">${cell}</td>`)}
              <td>${said(marksAt(marks, time, signals.step))}</td>
            </tr>`,
        )}
      </tbody>
    </table>
  <//>`;
}
