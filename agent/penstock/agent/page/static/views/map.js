/** The fleet map: who sends state to whom, and in which state that is; as a picture, and as a table. */
import {clock, counted} from "../format.js";
import {BOX, filterOf, layout, lit} from "../map.js";
import {html, useLayoutEffect, useMemo, useRef, useState} from "../markup.js";
import {Name, Part, Scrolled} from "./parts.js";

/**
 * @typedef {import("../messages.js").FleetMap} FleetMap
 * @typedef {import("../types.js").State} State
 * @typedef {import("../types.js").Act} Act
 */

/** Milliseconds after which a map says of when it is: that of a large fleet is made less often. */
const OLD = 15_000;
/** Pixels of a screen that has room for all, and rows of the other lists that leave some. */
const TALL = 950;
const FEW = 6;

/**
 * @param {{state: State, shown: import("../types.js").Selection, act: Act}} props
 */
export function MapView({state, shown, act}) {
  const [chosen, setChosen] = useState(/** @type {boolean | null} */ (null));
  const open = chosen ?? hasRoom(shown);
  const map = shown.map;
  const nodes = map?.columns.flatMap((column) => column.boxes) ?? [];
  if (!map || nodes.length === 0) {
    return html`<${Part} id="map" title="Map" none=${map ? "No engine is known." : noneSentence(state)} />`;
  }
  const bad = map.edges.filter((edge) => edge.state === "error" || edge.state === "warning").length;
  const notes = [
    `${counted(map.edges.length, "edge")}${bad ? `, ${bad} in trouble` : ""}; rates are means of 15 minutes`,
    map.sentence,
    shown.moment - map.now > OLD ? `of ${clock(map.now)}` : "",
  ];
  const line = notes.filter(Boolean).join("; ");
  return html`<${Part} id="map" title="Map" note=${open ? line : ""} none=${!open && line}>
    <div class="more">
      <button type="button" class="quiet" aria-expanded=${open} onClick=${() => setChosen(!open)}>${open ? "hide" : "show"}</button>
      <details class="numbers">
        <summary>table</summary>
        <${Table} map=${map} act=${act} />
      </details>
    </div>
    ${open && html`<${Picture} map=${map} filter=${state.filter} act=${act} />`}
  <//>`;
}

/**
 * Returns whether the picture has room beside the lists of its column, unless somebody says what they want.
 *
 * @param {import("../types.js").Selection} shown
 */
function hasRoom({screen}) {
  return innerHeight >= TALL || (screen ? screen.waits.rows.length + screen.policy.rows.length <= FEW : true);
}

/** @param {State} state */
function noneSentence(state) {
  if (state.maps.length > 0) {
    return "The map of that time is not known to this tab.";
  }
  return state.screen ? "This server has sent no map yet; one of an older version sends none." : "Waiting for the first answer.";
}

/**
 * @param {{map: FleetMap, filter: import("../types.js").Filter, act: Act}} props
 */
function Picture({map, filter, act}) {
  const box = useRef(/** @type {HTMLElement | null} */ (null));
  const [width, setWidth] = useState(0);
  useLayoutEffect(() => {
    const element = /** @type {HTMLElement} */ (box.current);
    const sized = new ResizeObserver(() => setWidth(element.clientWidth));
    sized.observe(element);
    setWidth(element.clientWidth);
    return () => sized.disconnect();
  }, []);
  const placed = useMemo(() => layout(map, width), [map, width]);
  const shown = lit(map, filter);
  return html`<div class="map" ref=${box} tabindex="0" role="group" aria-label="Map, as a picture; its table has the same">
    ${width > 0 &&
    html`<svg width=${width} height=${placed.height}>
      <g aria-hidden="true">
        ${placed.titles.map(({text, x}) => html`<text class="title" x=${x} y="12">${text}</text>`)}
        ${placed.edges.toReversed().map(
          ({edge, path, arrow, label, x, y}) =>
            html`<g
              key=${`${edge.source} ${edge.target} ${edge.cells[2]}`}
              class=${`edge ${edge.state}${shown.edge(edge) ? "" : " dim"}`}
              onClick=${() => act.filter(filterOf(map, edge))}
            >
              <title>${`${edge.source} → ${edge.target}: ${edge.words.join(", ")}`}</title>
              <path class="wide" d=${path} />
              <path d=${path} stroke-width=${edge.width} stroke-dasharray=${edge.dashes} />
              <path class="arrow" d=${arrow} />
              ${label && html`<text x=${x} y=${y}>${label}</text>`}
            </g>`,
        )}
      </g>
      ${placed.boxes.map(
        ({box: {name, notes, kind}, x, y, right}) =>
          html`<foreignObject key=${name} x=${x} y=${y} width=${right - x} height=${BOX}>
            <button
              type="button"
              class=${`node ${kind}${placed.boxes.some((one) => one.box.name === name && shown.box(one.box)) ? "" : " dim"}`}
              title=${[name, ...notes].join(", ")}
              aria-pressed=${filter.node === name}
              onClick=${() => act.filter({engine: "", peer: "", node: filter.node === name ? "" : name})}
            >
              <b>${name}</b> <small>${notes.join(", ")}</small>
            </button>
          </foreignObject>`,
      )}
    </svg>`}
  </div>`;
}

/**
 * @param {{map: FleetMap, act: Act}} props
 */
function Table({map, act}) {
  if (map.edges.length === 0) {
    return html`<p class="empty">Nothing moves: no engine here has a peer.</p>`;
  }
  return html`<${Scrolled} label="Map">
    <table>
      <thead>
        <tr>
          ${map.headers.map((header) => html`<th scope="col">${header.toLowerCase()}</th>`)}
        </tr>
      </thead>
      <tbody>
        ${map.edges.map(
          (edge) =>
            html`<tr key=${edge.cells.slice(0, 3).join(" ")}>
              ${edge.cells.map((cell, index) =>
                index === 0
                  ? html`<th scope="row"><${Name} text=${cell} title="Show only this" onClick=${() => act.filter(filterOf(map, edge))} /></th>`
                  : html`<td>${cell}</td>`,
              )}
            </tr>`,
        )}
      </tbody>
    </table>
  <//>`;
}
