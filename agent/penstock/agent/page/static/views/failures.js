/** The last failures and changes, as sentences, the newest first. */
import {panelOf} from "../filter.js";
import {clock} from "../format.js";
import {html} from "../markup.js";
import {Copy, Name, Part, Rows, Sentence, useHeldOrder} from "./parts.js";

/** Rows in the page; the rest is one key away, in the events. */
const ROWS = 60;

/**
 * @param {{shown: import("../types.js").Selection, isFiltered: boolean, act: import("../types.js").Act}} props
 */
export function Failures({shown, isFiltered, act}) {
  const {shown: rows, more, handlers} = useHeldOrder(shown.entries.slice(0, ROWS), (entry) => entry.position);
  const waiting = more > 0 ? `${more} newer, below until you leave the table` : "";
  const note = [waiting, shown.entries.length > ROWS ? `the newest ${ROWS} of ${shown.entries.length}` : ""];
  const none = isFiltered ? "No failure and no change that the filter lets through." : "No failure and no change is known in the last 15 minutes.";
  return html`<${Part} id="failures" title="Failures and changes" note=${note.filter(Boolean).join("; ")} none=${rows.length === 0 && none}>
    ${rows.length > 0 &&
      html`<${Rows} label="Failures and changes" columns=${["time", "what happened", "engine"]} handlers=${handlers}>
          ${rows.map(
            (entry) =>
              html`<tr key=${entry.position} class=${`entry ${entry.severity}`}>
                <td class="number">${clock(entry.time)}</td>
                <td>
                  <${Sentence}
                    text=${entry.sentence}
                    links=${[
                      {text: entry.request, title: "Open this request", onClick: () => act.open(panelOf("request", {id: entry.requestId || entry.request}))},
                      {text: entry.peer, title: "Show only this peer", onClick: () => act.filter({peer: entry.peer})},
                      ...(entry.policies ?? []).map((name) => ({text: name, title: "Open this policy", onClick: () => act.open(panelOf("policy", {name}))})),
                    ]}
                  />
                </td>
                <td>
                  <${Name} text=${entry.engine} title="Show only this engine" onClick=${() => act.filter({engine: entry.engine})} />
                </td>
                <td class="command"><${Copy} command=${entry.command} /></td>
              </tr>`,
          )}
        <//>`}
  <//>`;
}
