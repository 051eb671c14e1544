/** A detail in layers: what stands open, the ways on from it, and what unfolds. */
import {html} from "../markup.js";
import {Sections} from "./sections.js";
import {useEngine} from "./signals.js";

/**
 * @typedef {import("../messages.js").Section} Section
 * @typedef {import("../types.js").Live} Live
 */

/**
 * A request is its time first, then a sentence. `children` are the ways on: last of what stands open, but before long lists. `writes`
 * come before all lists.
 *
 * @param {{found: import("../messages.js").Detail, kind: import("../types.js").PanelKind, state: import("../types.js").State, act: import("../types.js").Act, writes?: import("../markup.js").Children, children?: import("../markup.js").Children}} props
 */
export function Layers({found, kind, writes, state, act, children}) {
  const asked = useEngine(engineOf(found.sections), state.hello?.source === "bundle");
  /** @type {Live} */
  const live = {state, asked};
  const said = kind === "request" ? 1 : found.sentences.length;
  const folded = found.sections.filter(isFolded);
  const rest = found.sentences.slice(said);
  const layered = folded.length > 0 || rest.length > 0;
  const bars = found.sections.filter((section) => kind === "request" && section.kind === "waterfall");
  const open = found.sections.filter((section) => !isFolded(section) && !bars.includes(section));
  return html`<${Sections} sections=${bars} act=${act} />
    ${found.sentences.slice(0, said).map((sentence) => html`<p>${sentence}</p>`)}
    ${writes}
    ${found.traceUrl && html`<p><a href=${found.traceUrl} target="_blank" rel="noopener noreferrer">Open the trace</a></p>`}
    ${!layered && children}
    <${Sections} sections=${open} act=${act} live=${live} />
    ${layered &&
    html`${children}
      <section>
        <details>
          <summary>All that is known</summary>
          ${rest.map((sentence) => html`<p>${sentence}</p>`)}
          <${Sections} sections=${folded} act=${act} live=${live} />
        </details>
      </section>`}`;
}

/** @param {Section} section */
function isFolded(section) {
  return "folded" in section && section.folded === true;
}

/**
 * Returns whose signals the plots are; "" for all together.
 *
 * @param {Section[]} sections
 */
function engineOf(sections) {
  const plot = sections.find((section) => section.kind === "plot");
  return plot?.kind === "plot" ? plot.engine : "";
}
