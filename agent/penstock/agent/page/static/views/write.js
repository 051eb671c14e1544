/** The writes that belong to a detail, and the form of an order. */
import {html, useState} from "../markup.js";
import {Editor} from "./editor.js";
import {Form} from "./form.js";

/**
 * @typedef {import("../types.js").WriteBody} WriteBody
 * @typedef {import("../types.js").WriteKind} WriteKind
 * @typedef {import("../types.js").Act} Act
 */

/** Seconds that a pause and a quarantine last unless the user types another number. */
const SECONDS = 600;

/** The details that have writes. */
export const WRITABLE = new Set(["engine", "peer", "policy"]);

/**
 * The writes that belong to a detail.
 *
 * @param {{panel: import("../types.js").Panel, detail: import("../messages.js").Detail, again: () => void, act: Act}} props `again` asks for the detail
 */
export function Writes({panel, detail, again, act}) {
  switch (panel.kind) {
    case "engine": {
      const body = {engine: panel.engine};
      return html`<${Order} kind="pause" title=${`Pause ${panel.engine}`} body=${body} act=${act} />
        <${Order} kind="pause" title=${`Resume ${panel.engine}`} body=${{...body, undo: true}} act=${act} />`;
    }
    case "peer": {
      const body = {engine: panel.engine, peer: panel.peer};
      return html`<${Order} kind="quarantine" title=${`Quarantine ${panel.peer}`} body=${body} act=${act} />
        <${Order} kind="quarantine" title=${`Release ${panel.peer}`} body=${{...body, undo: true}} act=${act} />`;
    }
    case "policy":
      return html`${detail.generation ? html`<${Editor} name=${panel.name} detail=${detail} again=${again} act=${act} />` : null}
        <${Form} kind="undo" title="Undo the last change" body=${{name: panel.name, generation: detail.generation}} eager=${true} after=${again} act=${act} />`;
    default:
      return null;
  }
}

/**
 * An order: for some seconds, unless it takes one back.
 *
 * @param {{kind: WriteKind, title: string, body: WriteBody, act: Act}} props
 */
function Order({kind, title, body, act}) {
  const [seconds, setSeconds] = useState(SECONDS);
  return html`<${Form} kind=${kind} title=${title} body=${body.undo ? body : {...body, seconds}} act=${act}>
    ${!body.undo &&
    html`<label>
      for seconds
      <input
        type="number"
        name="seconds"
        min="1"
        required
        value=${seconds}
        onInput=${(/** @type {Event} */ event) => setSeconds(Number(/** @type {HTMLInputElement} */ (event.target).value))}
      />
    </label>`}
  <//>`;
}
