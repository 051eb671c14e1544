/** All engines, for the panel of engines. */
import {panelOf} from "../filter.js";
import {span} from "../format.js";
import {html} from "../markup.js";
import {Copy, Name, Rows} from "./parts.js";

/**
 * @param {{engines: {rows: import("../messages.js").Engine[], total: number, leftOut: number} | undefined, moment: number, act: import("../types.js").Act}} props
 */
export function Engines({engines, moment, act}) {
  if (!engines || engines.rows.length === 0) {
    return html`<p class="empty">No engine is known.</p>`;
  }
  return html`<${Rows} label="Engines" columns=${["engine", "role", "model", "state", "policy"]}>
    ${engines.rows.map(
      (row) =>
        html`<tr key=${row.key}>
          <th scope="row"><${Name} text=${row.key} title="Open this engine" onClick=${() => act.open(panelOf("engine", {engine: row.key}))} /></th>
          <td>${row.role}</td>
          <td>${row.model}</td>
          <td class=${row.connected ? "" : "condition failing"}>
            ${row.connected ? "connected" : `away${row.lastSeen ? ` ${span((moment - row.lastSeen) / 1000)}` : ""}`} ${row.sentence}
          </td>
          <td>${row.policy}</td>
          <td class="command"><${Copy} command=${row.command} /></td>
        </tr>`,
    )}
  <//>
    ${engines.leftOut > 0 && html`<p class="note">${engines.leftOut} more of ${engines.total} are left out.</p>`}`;
}
