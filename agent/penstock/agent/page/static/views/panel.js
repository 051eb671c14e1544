/** The side panel with one detail. It is a modal dialog: the browser keeps the focus in it and gives it back. */
import {panelOf} from "../filter.js";
import {clock, printable} from "../format.js";
import {html, useEffect, useLayoutEffect, useRef, useState} from "../markup.js";
import {address, detail} from "../requests.js";
import {Engines} from "./engines.js";
import {Layers} from "./layers.js";
import {Copy} from "./parts.js";
import {WRITABLE, Writes} from "./write.js";

/**
 * @typedef {import("../types.js").Panel} Panel
 * @typedef {import("../messages.js").Detail} Detail
 * @typedef {import("../types.js").State} State
 * @typedef {import("../types.js").Act} Act
 */

/**
 * @param {{label: string, onClose: () => void, children?: import("../markup.js").Children}} props
 */
export function Dialog({label, onClose, children}) {
  const dialog = useRef(/** @type {HTMLDialogElement | null} */ (null));
  // Before it is seen: a key that is pressed then is the dialog's.
  useLayoutEffect(() => {
    dialog.current?.showModal();
    return () => dialog.current?.close();
  }, []);
  /** @param {MouseEvent} event */
  const outside = (event) => event.target === dialog.current && onClose();
  return html`<dialog ref=${dialog} aria-label=${label} onClose=${onClose} onClick=${outside}>
    <div class="inside">${children}</div>
  </dialog>`;
}

/**
 * @param {{state: State, act: Act}} props
 */
export function PanelView({state, act}) {
  const panel = state.panel;
  if (!panel) {
    return null;
  }
  return html`<${Dialog} label=${titleOf(panel)} onClose=${() => act.open(null)}>
    ${panel.kind === "engines"
      ? html`<${Head} title="Engines" act=${act} />
          <${Engines} engines=${state.screen?.engines} moment=${state.clock} act=${act} />`
      : html`<${Asked} key=${address(panel)} panel=${panel} state=${state} act=${act} />`}
  <//>`;
}

/** @param {Panel} panel */
function titleOf(panel) {
  return printable([panel.kind, panel.id, panel.name, panel.peer, panel.engine].filter(Boolean).join(" "));
}

/**
 * @param {{title: string, note?: string, again?: () => void, act: Act}} props
 */
function Head({title, note = "", again, act}) {
  return html`<header class="part">
    <h2>${title}</h2>
    ${note && html`<p class="note">${note}</p>`}
    ${again && html`<button type="button" onClick=${again}>Ask again</button>`}
    <button type="button" onClick=${() => act.open(null)}>Close</button>
  </header>`;
}

/**
 * A detail that the server is asked for once; it is of that time, and says so.
 *
 * @param {{panel: Panel, state: State, act: Act}} props
 */
function Asked({panel, state, act}) {
  const [answer, setAnswer] = useState(/** @type {{detail?: Detail, error?: string, time?: number}} */ ({}));
  const [round, setRound] = useState(0);
  useEffect(() => {
    const gone = new AbortController();
    detail(panel, gone.signal).then(
      (found) => setAnswer({detail: found, time: Date.now()}),
      (error) => gone.signal.aborted || setAnswer((before) => ({...before, error: error.message})),
    );
    return () => gone.abort();
  }, [round]);
  const found = answer.detail;
  const moment = state.hello?.source === "bundle" ? state.clock : (answer.time ?? 0) + state.skew;
  const when = answer.time && moment ? `as of ${clock(moment)}` : "";
  const again = () => setRound(round + 1);
  const writes = found && state.hello?.writable && html`<${Writes} panel=${panel} detail=${found} again=${again} act=${act} />`;
  const note = state.scrub !== null && when ? `${when}, not of ${clock(state.scrub)}` : when;
  return html`<${Head} title=${found?.title ?? titleOf(panel)} note=${note} again=${again} act=${act} />
    ${answer.error && html`<p role="alert" class="error">${answer.error}</p>`}
    ${!found && !answer.error && html`<p class="empty">Asking …</p>`}
    ${found &&
    html`<${Layers} found=${found} kind=${panel.kind} writes=${panel.kind === "policy" && writes} state=${state} act=${act}>
        <p><${Copy} command=${found.command} text=${true} /></p>
        <${Narrow} panel=${panel} act=${act} />
      <//>
      ${state.hello?.writable
        ? panel.kind !== "policy" && writes
        : state.hello?.token &&
          WRITABLE.has(panel.kind) &&
          html`<p class="note">To write, open the link that <${Copy} command="agentctl page" text=${true} /> prints, with write access.</p>`}`}`;
}

/**
 * Ways on from a detail: the page filtered by it, and its events.
 *
 * @param {{panel: Panel, act: Act}} props
 */
function Narrow({panel, act}) {
  if (!panel.engine && !panel.peer && !panel.id) {
    return null;
  }
  const filters = panel.kind === "peer" || panel.kind === "engine" || panel.kind === "condition";
  /** @param {{engine: string, peer: string}} part */
  const filter = (part) => {
    act.filter(part);
    act.open(null);
  };
  return html`<p class="ways">
    ${filters &&
    html`<button type="button" onClick=${() => filter({engine: panel.engine, peer: panel.peer})}>Filter the page by this</button> `}
    ${panel.kind !== "events" &&
    html`<button type="button" onClick=${() => act.open(panelOf("events", {engine: panel.engine, peer: panel.peer, id: panel.id}))}>
      Events of this
    </button>`}
  </p>`;
}
