/** The table of peers and engines: what is the matter between each two. */
import {panelOf} from "../filter.js";
import {counted, lasting, minuteOfDay, span} from "../format.js";
import {html} from "../markup.js";
import {Copy, Name, Part, Scrolled, Sentence, useHeldOrder} from "./parts.js";

/**
 * @typedef {import("../messages.js").PeerCell} PeerCell
 * @typedef {import("../messages.js").PeerRow} PeerRow
 * @typedef {import("../types.js").Act} Act
 * @typedef {import("../types.js").Selection} Selection
 */

/**
 * @param {{shown: Selection, clock: number, act: Act}} props
 */
export function Peers({shown, clock, act}) {
  const peers = shown.screen?.peers;
  if (!peers) {
    return html`<${MinuteOfPeers} shown=${shown} act=${act} />`;
  }
  const filteredOut = (shown.whole?.peers.rows.length ?? 0) - peers.rows.length;
  const note = [
    peers.leftOut === null ? `the worst ${peers.rows.length}` : peers.leftOut > 0 ? `the worst ${peers.rows.length} of ${peers.total}` : "",
    filteredOut > 0 ? `${filteredOut} hidden by the filter` : "",
  ].filter(Boolean);
  return html`<${Table} peers=${peers} engines=${shown.whole?.engines.rows ?? []} unlisted=${shown.unlisted} note=${note.join("; ")} clock=${clock} act=${act} />`;
}

/**
 * @param {{peers: import("../messages.js").Peers, engines: import("../messages.js").Engine[], unlisted: string, note: string, clock: number, act: Act}} props
 */
function Table({peers, engines, unlisted, note, clock, act}) {
  const {shown, held, handlers} = useHeldOrder(peers.rows, (/** @type {PeerRow} */ row) => row.address);
  const known = new Map(engines.map((engine) => [engine.key, engine]));
  const sentence = peers.rows.length === 0 && note ? "The filter hides all peers." : peers.sentence || "No peer is known.";
  const none = shown.length === 0 && (unlisted ? html`<${Unlisted} engine=${unlisted} act=${act} />` : sentence);
  const timed = peers.rows.some((row) => row.cells.some((cell) => cell.p99 !== null)) ? "a time is the p99 of waits in the last minute" : "";
  return html`<${Part} id="peers" title="Peers by engine" note=${[note, timed, held ? "order held" : ""].filter(Boolean).join("; ")} none=${none}>
    ${shown.length > 0 &&
      html`<${Scrolled} label="Peers by engine">
          <table ...${handlers}>
            <thead>
              <tr>
                <th scope="col">peer</th>
                ${peers.engines.map((key) => html`<${Heading} key=${key} engineKey=${key} engine=${known.get(key)} clock=${clock} act=${act} />`)}
                <th scope="col"><span class="unseen">command</span></th>
              </tr>
            </thead>
            <tbody>
              ${shown.map((row) => html`<${Row} key=${row.address} row=${row} act=${act} />`)}
            </tbody>
          </table>
        <//>`}
  <//>`;
}

/**
 * The engine of the filter is none of the worst, whose peers the table has.
 *
 * @param {{engine: string, act: Act}} props
 */
function Unlisted({engine, act}) {
  const links = [{text: engine, title: `Open ${engine}`, onClick: () => act.open(panelOf("engine", {engine}))}];
  return html`<${Sentence} text=${`The table has the worst engines only: the peers of ${engine} are in its details.`} links=${links} />`;
}

/**
 * @param {{engineKey: string, engine: import("../messages.js").Engine | undefined, clock: number, act: Act}} props
 */
function Heading({engineKey, engine, clock, act}) {
  const away = engine && !engine.connected;
  const since = engine?.lastSeen ? ` ${span((clock - engine.lastSeen) / 1000)}` : "";
  return html`<th scope="col" class=${away ? "away" : ""}>
    <${Name} text=${engineKey} title=${`Show only ${engineKey}`} onClick=${() => act.filter({engine: engineKey})} />
    <span class="note">${engine?.role ?? ""}${away ? ` away${since}` : ""}</span>
  </th>`;
}

/**
 * @param {{row: PeerRow, act: Act}} props
 */
function Row({row, act}) {
  return html`<tr>
    <th scope="row">
      <${Name} text=${row.peer} title=${`Show only ${row.peer}`} onClick=${() => act.filter({peer: row.address})} />
      ${row.address !== row.peer && html`<span class="note">${row.address}</span>`}
    </th>
    ${row.cells.map(
      (cell) =>
        html`<td key=${cell.engine} class=${`condition ${cell.condition}`}>
          ${cell.condition === "none"
            ? html`<span class="nothing">–</span>`
            : html`<button
                type="button"
                class="cell"
                title=${[cell.reason, waited(cell)].filter(Boolean).join("; ") || cell.text}
                onClick=${() => act.open(panelOf("peer", {engine: cell.engine, peer: row.address}))}
              >
                ${cell.text || cell.condition}
              </button>`}
        </td>`,
    )}
    <td class="command"><${Copy} command=${row.command} /></td>
  </tr>`;
}

/**
 * Says how long requests waited for a peer, now and before.
 *
 * @param {PeerCell} cell
 */
function waited({p99, p99Before}) {
  const before = p99Before === null ? "" : `, ${lasting(p99Before * 1000)} in the hour before`;
  return p99 === null ? "" : `p99 of waits in the last minute ${lasting(p99 * 1000)}${before}`;
}

/**
 * What the journal counted in a minute before the tab was opened.
 *
 * @param {{shown: Selection, act: Act}} props
 */
function MinuteOfPeers({shown, act}) {
  const minute = shown.minute;
  if (!minute) {
    return html`<${Part} id="peers" title="Peers by engine" none=${shown.note ? "The journal has no counts of that minute." : "Waiting for the first answer."} />`;
  }
  const title = `Failures and deferrals from ${minuteOfDay(minute.time)} to ${minuteOfDay(minute.time + 60_000)}`;
  const none = minute.cells.length === 0 && "The journal has no failure and no deferral of that minute.";
  return html`<${Part} id="peers" title=${title} none=${none}>
    ${minute.cells.length > 0 &&
      html`<${Scrolled} label=${title}>
          <table>
            <thead>
              <tr><th scope="col">peer</th><th scope="col">engine</th><th scope="col">counts</th></tr>
            </thead>
            <tbody>
              ${minute.cells.map(
                (cell) =>
                  html`<tr key=${`${cell.peer} ${cell.engine}`}>
                    <th scope="row"><${Name} text=${cell.peer} title="Show only this peer" onClick=${() => act.filter({peer: cell.peer})} /></th>
                    <td><${Name} text=${cell.engine} title="Show only this engine" onClick=${() => act.filter({engine: cell.engine})} /></td>
                    <td>${counted(cell.failures, "failure")}, ${counted(cell.deferrals, "deferral")}</td>
                  </tr>`,
              )}
            </tbody>
          </table>
        <//>`}
  <//>`;
}
