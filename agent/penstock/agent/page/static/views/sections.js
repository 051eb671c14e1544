/** The sections that details and dry runs are made of: tables, waterfalls and text. */
import {panelOf} from "../filter.js";
import {clock, lasting} from "../format.js";
import {html} from "../markup.js";
import {Minutes, PlotOf} from "./evidence.js";
import {Copy, Name, Scrolled} from "./parts.js";

/**
 * @typedef {import("../messages.js").Section} Section
 * @typedef {import("../types.js").Act} Act
 * @typedef {import("../types.js").Live} Live
 */

/**
 * @param {{sections: Section[], act: Act, live?: Live}} props `live`: what plots are drawn from, where there are some
 */
export function Sections({sections, act, live}) {
  return sections.map((section) => html`<${SectionView} key=${`${section.kind} ${section.title}`} section=${section} act=${act} live=${live} />`);
}

/**
 * @param {{section: Section, act: Act, live?: Live}} props
 */
function SectionView({section, act, live}) {
  const title = html`<h3>${section.title}</h3>`;
  switch (section.kind) {
    case "table":
      return html`<section>${title}<${Table} section=${section} act=${act} /></section>`;
    case "waterfall":
      return html`<section>${title}<${Waterfall} section=${section} /></section>`;
    case "plot":
      return live && html`<section><${PlotOf} section=${section} live=${live} act=${act} /></section>`;
    case "minutes":
      return live && html`<section>${title}<${Minutes} section=${section} state=${live.state} /></section>`;
    case "text":
      return html`<section>${title}<pre tabindex="0" role="group" aria-label=${section.title}>${section.text.split("\n").map(textLine)}</pre></section>`;
  }
}

/**
 * Marks the lines of a diff; the sign stays, so that the colour says nothing alone.
 *
 * @param {string} line
 */
function textLine(line) {
  const kind = line.startsWith("+") ? "added" : line.startsWith("-") ? "removed" : "";
  return html`<span class=${kind}>${line}${"\n"}</span>`;
}

/**
 * @param {{section: import("../messages.js").TableSection, act: Act}} props
 */
function Table({section, act}) {
  if (section.rows.length === 0) {
    return html`<p class="empty">${section.sentence || "There is nothing."}</p>`;
  }
  const copied = section.rows.some((row) => row.command);
  return html`<${Scrolled} label=${section.title}>
      <table>
        <thead>
          <tr>
            ${section.columns.map((column) => html`<th scope="col">${column}</th>`)}
            ${copied && html`<th scope="col"><span class="unseen">command</span></th>`}
          </tr>
        </thead>
        <tbody>
          ${section.rows.map(
            (row) =>
              html`<tr>
                ${row.cells.map((cell, index) => {
                  const link = index === linked(row) ? row.link : null;
                  const content = link
                    ? html`<${Name} text=${cell} title="Open it" onClick=${() => act.open(panelOf(link.kind, link))} />`
                    : cell;
                  return index === 0 ? html`<th scope="row">${content}</th>` : html`<td>${content}</td>`;
                })}
                ${copied && html`<td class="command"><${Copy} command=${row.command ?? ""} /></td>`}
              </tr>`,
          )}
        </tbody>
      </table>
    <//>
    ${section.sentence && html`<p class="note">${section.sentence}</p>`}`;
}

/**
 * Returns which cell of a row opens what the row links to: the one that names it, else the first.
 *
 * @param {{cells: string[], link?: import("../messages.js").Link | null}} row
 */
function linked({cells, link}) {
  const name = link?.id || link?.name || link?.peer || link?.engine;
  return Math.max(0, name ? cells.findIndex((cell) => cell === name || cell.startsWith(`${name} `)) : 0);
}

/**
 * The spans of both sides on one time axis, each with what it says below it, and the gates of a request in its bar.
 *
 * @param {{section: import("../messages.js").WaterfallSection}} props
 */
function Waterfall({section}) {
  if (section.rows.length === 0) {
    return html`<p class="empty">${section.sentence || "There is nothing."}</p>`;
  }
  const length = Math.max(1, section.end - section.start);
  /** @param {number} time */
  const x = (time) => (Math.min(Math.max(time - section.start, 0), length) / length) * 300;
  return html`<p class="note">from ${clock(section.start)}, ${lasting(length)} in all</p>
    <table class="waterfall">
      <thead>
        <tr>
          <th scope="col">span</th>
          <th scope="col">after</th>
          <th scope="col">for</th>
          <th scope="col">when</th>
        </tr>
      </thead>
      ${section.rows.map(
        (row) => html`<tbody class=${row.state}>
          <tr>
            <th scope="row">${row.name} <small>${row.side}</small></th>
            <td class="number">${lasting(row.start - section.start)}</td>
            <td class="number">${lasting(row.end - row.start)}</td>
            <td>
              <svg viewBox="0 0 300 12" preserveAspectRatio="none" aria-hidden="true">
                <rect class="axis" x="0" y="5.5" width="300" height="1" />
                <rect x=${x(row.start)} y="1" width=${Math.max(2, x(row.end) - x(row.start))} height="10" />
                ${(row.gates ?? []).map(({gate, start, end}) => html`<rect fill=${`var(--gate-${gate})`} x=${x(start)} y="1" width=${x(end) - x(start)} height="10" />`)}
              </svg>
            </td>
          </tr>
          ${(row.text || row.gates?.length || row.state !== "ok") &&
          html`<tr>
            <td class="said" colspan="4">${row.text}${row.state === "ok" ? "" : ` (${row.state})`}<${Gates} row=${row} /></td>
          </tr>`}
        </tbody>`,
      )}
    </table>
    ${section.sentence && html`<p class="note">${section.sentence}</p>`}`;
}

/**
 * The gates of a request by their colours.
 *
 * @param {{row: import("../messages.js").WaterfallRow}} props
 */
function Gates({row}) {
  return (row.gates ?? []).map(
    ({gate, start, end}) => html` <span class="gate">
      <svg viewBox="0 0 8 8" aria-hidden="true"><rect width="8" height="8" fill=${`var(--gate-${gate})`} /></svg>
      ${" "}${gate.replaceAll("_", " ")} ${lasting(end - start)}
    </span>`,
  );
}
