/** The policy in force, by field, with who set it; and the engines. */
import {panelOf} from "../filter.js";
import {span} from "../format.js";
import {html} from "../markup.js";
import {Copy, Name, Part, Scrolled} from "./parts.js";

/** @typedef {import("../app.js").Act} Act */

/**
 * @param {{shown: import("../selection.js").Selection, act: Act}} props
 */
export function Policy({shown, act}) {
  const policy = shown.screen?.policy;
  const whole = shown.whole?.policy;
  const hidden = (whole?.rows.length ?? 0) - (policy?.rows.length ?? 0);
  const more = whole !== undefined && whole.total > whole.rows.length;
  const notes = [
    more ? `the first ${whole.rows.length} of ${whole.total}` : "",
    hidden > 0 ? `${hidden} hidden by the filter` : "",
  ];
  const filtered = more ? "The filter hides all fields that are listed." : "The filter hides all fields.";
  const none = policy ? (hidden > 0 ? filtered : policy.sentence) : "The policy of that time is not known to this tab.";
  return html`<${Part} id="policy" title="Policy in force" note=${notes.filter(Boolean).join("; ")}>
    ${!policy || policy.rows.length === 0
      ? html`<p class="empty">${none}</p>`
      : html`<${Scrolled} label="Policy in force">
          <table>
            <thead>
              <tr>
                <th scope="col">field</th>
                <th scope="col">value</th>
                <th scope="col">set by</th>
                <th scope="col">engines</th>
                <th scope="col"><span class="unseen">command</span></th>
              </tr>
            </thead>
            <tbody>
              ${policy.rows.map(
                (row) =>
                  html`<tr key=${`${row.field} ${row.value} ${row.policy}`}>
                    <th scope="row"><${Name} text=${row.field} title="Show only engines with this field" onClick=${() => act.filter({field: row.field})} /></th>
                    <td><code>${row.value}</code>${!row.inForce && html` <span class="pending">not in force everywhere</span>`}</td>
                    <td>
                      <${Name} text=${row.policy} title="Open this policy" onClick=${() => act.open(panelOf("policy", {name: row.policy}))} />${" "}
                      <span class="note">${row.author}${row.changed ? `, ${span((shown.moment - row.changed) / 1000)} ago` : ""}</span>
                    </td>
                    <td class="number" title=${row.engineKeys.join(" ")}>${row.engines}</td>
                    <td class="command"><${Copy} command=${row.command} /></td>
                  </tr>`,
              )}
            </tbody>
          </table>
        <//>`}
  <//>`;
}

/**
 * All engines, for the panel of engines.
 *
 * @param {{engines: {rows: import("../messages.js").Engine[], total: number, leftOut: number} | undefined, moment: number, act: Act}} props
 */
export function Engines({engines, moment, act}) {
  if (!engines || engines.rows.length === 0) {
    return html`<p class="empty">No engine is known.</p>`;
  }
  return html`<${Scrolled} label="Engines">
    <table>
      <thead>
        <tr>
          <th scope="col">engine</th>
          <th scope="col">role</th>
          <th scope="col">model</th>
          <th scope="col">state</th>
          <th scope="col">policy</th>
          <th scope="col"><span class="unseen">command</span></th>
        </tr>
      </thead>
      <tbody>
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
      </tbody>
    </table>
    ${engines.leftOut > 0 && html`<p class="note">${engines.leftOut} more of ${engines.total} are left out.</p>`}
  <//>`;
}
