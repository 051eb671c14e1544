/** The keys, and what is what. */
import {html} from "../markup.js";
import {Dialog} from "./panel.js";

/** The guide's table of keys is compared with this one. */
export const KEYS = [
  ["?", "this help"],
  ["1 2 3 4 5", "to the verdict, the peers, the waits, the failures, the policy"],
  ["s", "to the signals; in a plot ← → move by 5 s, Home and End to its ends, Enter goes back to that moment"],
  ["m", "to the map; a click on a node or an edge filters everything by it"],
  ["t", "to the time slider; ← → move it by 5 s, Page Up and Page Down by a minute and a half, End is now"],
  ["l", "back to now"],
  ["n, p, e", "engines, policies, events"],
  ["Escape", "closes what is open; else takes the filter away; else goes back to now"],
];

/**
 * @param {{state: import("../types.js").State, act: import("../types.js").Act}} props
 */
export function Help({state, act}) {
  if (!state.help) {
    return null;
  }
  const hello = state.hello;
  return html`<${Dialog} label="Help and keys" onClose=${() => act.help(false)}>
    <header class="part">
      <h2>Help and keys</h2>
      <button type="button" onClick=${() => act.help(false)}>Close</button>
    </header>
    <table>
      <thead>
        <tr><th scope="col">key</th><th scope="col">where it goes</th></tr>
      </thead>
      <tbody>
        ${KEYS.map(([key, what]) => html`<tr><th scope="row"><kbd>${key}</kbd></th><td>${what}</td></tr>`)}
      </tbody>
    </table>
    <p>A click on the name of an engine, a peer or a field filters everything by it. The address holds filter and panel: send it.</p>
    <p>The button at the end of a row copies the agentctl command that shows the same.</p>
    <p>Rows keep their order while the pointer or the focus is among them.</p>
    ${hello &&
    html`<p class="note">
      Penstock ${hello.version}, ${hello.source} ${hello.name}.
      ${hello.writable ? ` Writes are allowed, as ${hello.user}.` : hello.source === "bundle" ? " A bundle does not change." : hello.token ? " To write, open the link that agentctl page prints." : " This page only reads (--page-write is not set)."}
    </p>`}
  <//>`;
}
