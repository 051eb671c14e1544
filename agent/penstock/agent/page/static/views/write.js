/** Writes: the form, what the server says it would do, and only then the button that does it. */
import {html, useState} from "../markup.js";
import {write} from "../requests.js";
import {Copy} from "./parts.js";
import {Sections} from "./sections.js";

/**
 * @typedef {import("../types.js").WriteBody} WriteBody
 * @typedef {import("../types.js").WriteKind} WriteKind
 * @typedef {import("../messages.js").WriteAnswer} WriteAnswer
 * @typedef {import("../types.js").Act} Act
 */

/** Seconds that a pause and a quarantine last unless the user types another number. */
const SECONDS = 600;

/** The details that have writes. */
export const WRITABLE = new Set(["engine", "peer", "policy"]);

/**
 * The writes that belong to a detail.
 *
 * @param {{panel: import("../types.js").Panel, detail: import("../messages.js").Detail, act: Act}} props
 */
export function Writes({panel, detail, act}) {
  switch (panel.kind) {
    case "engine": {
      const body = {engine: panel.engine};
      return html`<${Order} kind="pause" title=${`Pause ${panel.engine}`} body=${body} act=${act} />
        <${Order} kind="pause" title=${`Resume ${panel.engine}`} body=${{...body, undo: true}} act=${act} />`;
    }
    case "peer": {
      const body = {engine: panel.engine, peer: panel.peer};
      return html`<${Order} kind="quarantine" title=${`Quarantine ${panel.peer}`} body=${body} act=${act} />
        <${Order} kind="quarantine" title=${`Release ${panel.peer}`} body=${{...body, undo: true}} act=${act} />`;
    }
    case "policy":
      return html`<${Edit} name=${panel.name} detail=${detail} act=${act} />`;
    default:
      return null;
  }
}

/**
 * An order: for some seconds, unless it takes one back.
 *
 * @param {{kind: WriteKind, title: string, body: WriteBody, act: Act}} props
 */
function Order({kind, title, body, act}) {
  const [seconds, setSeconds] = useState(SECONDS);
  return html`<${Form} kind=${kind} title=${title} body=${body.undo ? body : {...body, seconds}} act=${act}>
    ${!body.undo &&
    html`<label>
      for seconds
      <input
        type="number"
        name="seconds"
        min="1"
        required
        value=${seconds}
        onInput=${(/** @type {Event} */ event) => setSeconds(Number(/** @type {HTMLInputElement} */ (event.target).value))}
      />
    </label>`}
  <//>`;
}

/**
 * @param {{name: string, detail: import("../messages.js").Detail, act: Act}} props
 */
function Edit({name, detail, act}) {
  const [manifest, setManifest] = useState(detail.manifest ?? "");
  const body = {name, manifest, generation: detail.generation ?? 0};
  return html`<${Form} kind="policy" title=${`Edit ${name}`} body=${body} act=${act}>
    <label>
      manifest
      <textarea
        name="manifest"
        rows="14"
        spellcheck=${false}
        required
        value=${manifest}
        onInput=${(/** @type {Event} */ event) => setManifest(/** @type {HTMLTextAreaElement} */ (event.target).value)}
      ></textarea>
    </label>
  <//>`;
}

/**
 * The two steps of every write. What is confirmed is what the dry run was of: a change to the form takes the button away.
 *
 * @param {{kind: WriteKind, title: string, body: WriteBody, act: Act, children?: import("../markup.js").Children}} props
 */
function Form({kind, title, body, act, children}) {
  const [reason, setReason] = useState("");
  const [tried, setTried] = useState(/** @type {{of: string, answer: WriteAnswer} | null} */ (null));
  const [done, setDone] = useState(/** @type {WriteAnswer | null} */ (null));
  const [error, setError] = useState("");
  const [busy, setBusy] = useState(false);
  const current = JSON.stringify(body);
  const answer = tried && tried.of === current ? tried.answer : null;
  /** @param {boolean} dryRun */
  const send = async (dryRun) => {
    setBusy(true);
    setError("");
    setDone(null);
    try {
      const found = await write(kind, {...body, dryRun, reason: reason.trim()});
      setTried(dryRun ? {of: current, answer: found} : null);
      setDone(dryRun ? null : found);
    } catch (problem) {
      setError(/** @type {Error} */ (problem).message);
    }
    setBusy(false);
  };
  /** @param {Event} event */
  const submitted = (event) => {
    event.preventDefault();
    send(true);
  };
  return html`<details class="write">
    <summary>${title} …</summary>
    <form onSubmit=${submitted}>
      ${children}
      <label>
        reason, for the audit log
        <input
          name="reason"
          required
          maxlength="200"
          autocomplete="off"
          value=${reason}
          onInput=${(/** @type {Event} */ event) => setReason(/** @type {HTMLInputElement} */ (event.target).value)}
        />
      </label>
      <button type="submit" disabled=${busy}>Show what it would do</button>
    </form>
    <div role="status">
      ${error && html`<p class="error">${error}</p>`}
      ${done && html`<p><b>${done.sentence}</b></p>${done.sentences.map((sentence) => html`<p>${sentence}</p>`)}`}
      ${answer &&
      html`<div class="dry-run">
        <p><b>Dry run: nothing has changed.</b> ${answer.sentence}</p>
        ${answer.sentences.map((sentence) => html`<p>${sentence}</p>`)}
        <${Sections} sections=${answer.sections} act=${act} />
        <p><${Copy} command=${answer.command} text=${true} /></p>
        <button type="button" class="confirm" disabled=${busy || !reason.trim()} onClick=${() => send(false)}>
          ${title}: “${reason.trim()}”
        </button>
      </div>`}
    </div>
  </details>`;
}
