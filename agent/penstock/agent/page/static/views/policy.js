/** The policy in force, by field, with who set it. */
import {panelOf} from "../filter.js";
import {span} from "../format.js";
import {html} from "../markup.js";
import {Copy, Name, Part, Rows} from "./parts.js";

/**
 * @param {{shown: import("../types.js").Selection, act: import("../types.js").Act}} props
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
  return html`<${Part} id="policy" title="Policy in force" note=${notes.filter(Boolean).join("; ")} none=${!policy?.rows.length && none}>
    ${policy !== undefined &&
      policy.rows.length > 0 &&
      html`<${Rows} label="Policy in force" columns=${["field", "value", "set by", "engines"]}>
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
        <//>`}
  <//>`;
}
