/** Small parts that several views share. */
import {pieces} from "../format.js";
import {html, useEffect, useRef, useState} from "../markup.js";
import {inOrder} from "../scrub.js";

/** @typedef {import("../markup.js").Children} Children */

/**
 * Copies text. Where the browser does not let it (a page without HTTPS), the text is selected, for the keyboard to copy.
 *
 * @param {string} text
 * @param {HTMLInputElement | null} field
 * @returns {Promise<"copied" | "selected">}
 */
async function copy(text, field) {
  try {
    await navigator.clipboard.writeText(text);
    return "copied";
  } catch {
    field?.select();
    return field && document.execCommand("copy") ? "copied" : "selected";
  }
}

/**
 * A button that copies a row's command.
 *
 * @param {{command: string, text?: boolean}} props `text`: the command stands beside it
 */
export function Copy({command, text = false}) {
  const [done, setDone] = useState("");
  const field = useRef(/** @type {HTMLInputElement | null} */ (null));
  useEffect(() => {
    if (done === "copied") {
      const timer = setTimeout(() => setDone(""), 2000);
      return () => clearTimeout(timer);
    }
    return undefined;
  }, [done]);
  useEffect(() => {
    if (done === "asked") {
      copy(command, field.current).then(setDone);
    }
  }, [done]);
  if (!command) {
    return null;
  }
  const said = done === "copied" ? "copied" : `Copy ${command}`;
  return html`<span class="copy">
    ${text && html`<code>${command}</code>`}
    <button type="button" class="quiet" aria-label=${said} title=${said} onClick=${() => setDone("asked")}>
      ${done === "copied" ? html`<span class="done">copied</span>` : html`<${CopyIcon} />`}
    </button>
    ${(done === "asked" || done === "selected") &&
    html`<input
      ref=${field}
      readonly
      class=${done === "asked" ? "aside" : ""}
      aria-label="The command, to copy with the keyboard"
      value=${command}
      onBlur=${() => setDone("")}
    />`}
  </span>`;
}

function CopyIcon() {
  return html`<svg viewBox="0 0 16 16" width="14" height="14" aria-hidden="true">
    <path d="M5.5 1.5h8v10h-3M2.5 4.5h8v10h-8z" fill="none" stroke="currentColor" stroke-width="1.3" />
  </svg>`;
}

/**
 * A part of the page with its heading; an empty one is a line.
 *
 * @param {{id: string, title: string, note?: string, none?: Children, children?: Children}} props `none`: why it is empty
 */
export function Part({id, title, note = "", none = "", children}) {
  return html`<section id=${id} class=${none ? "none" : ""} tabindex="-1" aria-labelledby=${`${id}-title`}>
    <header class="part">
      <h2 id=${`${id}-title`}>${title}</h2>
      ${none && html`<p class="empty">${none}</p>`} ${note && html`<p class="note">${note}</p>`}
    </header>
    ${children}
  </section>`;
}

/**
 * What can be scrolled is reached by the keyboard.
 *
 * @param {{label: string, children?: Children}} props
 */
export function Scrolled({label, children}) {
  return html`<div class="scrolled" role="group" tabindex="0" aria-label=${label}>${children}</div>`;
}

/**
 * A table of rows, each with its command in the last column, which `columns` does not name.
 *
 * @param {{label: string, columns: string[], handlers?: object, children?: Children}} props
 */
export function Rows({label, columns, handlers = {}, children}) {
  return html`<${Scrolled} label=${label}>
    <table ...${handlers}>
      <thead>
        <tr>
          ${columns.map((column) => html`<th scope="col">${column}</th>`)}
          <th scope="col"><span class="unseen">command</span></th>
        </tr>
      </thead>
      <tbody>
        ${children}
      </tbody>
    </table>
  <//>`;
}

/**
 * A name that filters the page by itself, or opens something. It may break after a slash.
 *
 * @typedef {{text: string, title: string, onClick: () => void}} Link
 *
 * @param {Link} props
 */
export function Name({text, title, onClick}) {
  const parts = text.split(/(?<=\/)/);
  return text
    ? html`<button type="button" class="name" title=${title} onClick=${onClick}>
        ${parts.map((part, index) => (index === 0 ? part : html`<wbr />${part}`))}
      </button>`
    : null;
}

/**
 * A sentence in which names can be clicked; those that it does not say come after it.
 *
 * @param {{text: string, links: Link[]}} props
 */
export function Sentence({text, links}) {
  const parts = pieces(text, links.map((link) => link.text));
  const said = new Set(parts.filter((part) => part.name).map((part) => part.text));
  const rest = links.filter((link) => link.text && !said.has(link.text));
  return html`${parts.map((part) => (part.name ? html`<${Name} ...${links.find((link) => link.text === part.text)} />` : part.text))}
  ${rest.map((link) => html` <${Name} key=${link.text} ...${link} />`)}`;
}

/**
 * Keeps rows in their order while the pointer or the focus is among them.
 *
 * @template Row
 * @param {Row[]} rows
 * @param {(row: Row) => string} keyOf
 */
export function useHeldOrder(rows, keyOf) {
  const by = useRef({pointer: false, focus: false});
  const order = useRef(/** @type {string[]} */ ([]));
  const held = by.current.pointer || by.current.focus;
  const shown = held ? inOrder(order.current, rows, keyOf) : rows;
  const known = new Set(order.current);
  const more = held ? shown.filter((row) => !known.has(keyOf(row))).length : 0;
  if (!held) {
    order.current = rows.map(keyOf);
  }
  return {
    shown,
    held,
    more,
    handlers: {
      onPointerEnter: () => (by.current.pointer = true),
      onPointerLeave: () => (by.current.pointer = false),
      onFocusIn: () => (by.current.focus = true),
      onFocusOut: () => (by.current.focus = false),
    },
  };
}
