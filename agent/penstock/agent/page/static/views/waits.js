/** Who waits now, and for what. */
import {panelOf} from "../filter.js";
import {span} from "../format.js";
import {html} from "../markup.js";
import {Copy, Name, Part, Rows, Sentence, useHeldOrder} from "./parts.js";

/**
 * @param {{shown: import("../types.js").Selection, act: import("../types.js").Act}} props
 */
export function Waits({shown, act}) {
  const waits = shown.screen?.waits;
  const {shown: rows, held, handlers} = useHeldOrder(waits?.rows ?? [], (row) => `${row.engine} ${row.request}`);
  const more = waits ? waits.total - (shown.whole?.waits.rows.length ?? 0) : 0;
  const hidden = (shown.whole?.waits.rows.length ?? 0) - rows.length;
  const notes = [
    more > 0 ? `the oldest ${rows.length} of ${waits?.total}` : "",
    waits && waits.unnamed > 0 ? `${waits.unnamed} without a name` : "",
    hidden > 0 ? `${hidden} hidden by the filter` : "",
    held ? "order held" : "",
  ];
  return html`<${Part} id="waits" title="Waits now" note=${notes.filter(Boolean).join("; ")} none=${rows.length === 0 && emptySentence(waits, hidden)}>
    ${rows.length > 0 &&
      html`<${Rows} label="Waits now" columns=${["for", "request", "what it waits for"]} handlers=${handlers}>
          ${rows.map(
            (row) =>
              html`<tr key=${`${row.engine} ${row.request}`}>
                <td class="number">${span((shown.moment - row.since) / 1000)}</td>
                <th scope="row">
                  <${Name} text=${row.request} title="Open this request" onClick=${() => act.open(panelOf("request", {id: row.requestId || row.request}))} />${" "}
                  <${Name} text=${row.engine} title="Show only this engine" onClick=${() => act.filter({engine: row.engine})} />
                </th>
                <td>
                  <${Sentence}
                    text=${row.sentence || row.reason}
                    links=${[{text: row.peer, title: "Show only this peer", onClick: () => act.filter({peer: row.peer})}]}
                  />
                </td>
                <td class="command"><${Copy} command=${row.command} /></td>
              </tr>`,
          )}
        <//>`}
  <//>`;
}

/**
 * @param {import("../messages.js").Waits | undefined} waits
 * @param {number} hidden
 */
function emptySentence(waits, hidden) {
  if (!waits) {
    return "Who waited is not known of that time.";
  }
  return hidden > 0 ? "The filter hides all waits." : waits.sentence || "No request waits.";
}
