/** The two steps of a write: the form, what the server says it would do, and only then the button that does it. */
import {html, useEffect, useRef, useState} from "../markup.js";
import {write} from "../requests.js";
import {Copy} from "./parts.js";
import {Sections} from "./sections.js";

/**
 * @typedef {import("../types.js").WriteBody} WriteBody
 * @typedef {import("../types.js").WriteKind} WriteKind
 * @typedef {import("../messages.js").WriteAnswer} WriteAnswer
 * @typedef {import("../types.js").Act} Act
 */

/**
 * The two steps of every write. What is confirmed is what the dry run was of: a change to the form takes the button away.
 *
 * @param {{
 *   kind: WriteKind, title: string, does?: string, body: WriteBody, open?: boolean, eager?: boolean, after?: () => void, act: Act, children?: import("../markup.js").Children
 * }} props `does`: what the last button does, unless it is the title; `eager`: it is tried as it opens; `after`: it is done
 */
export function Form({kind, title, does, body, open = false, eager = false, after, act, children}) {
  const [reason, setReason] = useState("");
  const [tried, setTried] = useState(/** @type {{of: string, answer: WriteAnswer} | null} */ (null));
  const [done, setDone] = useState(/** @type {WriteAnswer | null} */ (null));
  const [error, setError] = useState("");
  const [busy, setBusy] = useState(false);
  const current = JSON.stringify(body);
  const answer = tried && tried.of === current ? tried.answer : null;
  const said = useRef(/** @type {HTMLDivElement | null} */ (null));
  // An answer is seen where it is, and its button with it.
  useEffect(() => {
    (answer || error || done) && said.current?.scrollIntoView({block: "nearest"});
  }, [answer, error, done]);
  /** @param {boolean} dryRun */
  const send = async (dryRun) => {
    setBusy(true);
    setError("");
    setDone(null);
    try {
      const found = await write(kind, {...body, dryRun, reason: reason.trim()});
      setTried(dryRun ? {of: current, answer: found} : null);
      setDone(dryRun ? null : found);
      dryRun || after?.();
    } catch (problem) {
      setError(/** @type {Error} */ (problem).message);
    }
    setBusy(false);
  };
  // What the browser shows and does not send, such as letters of a number, is not passed over.
  const confirm = () => said.current?.closest("details")?.querySelector("form")?.reportValidity() && send(false);
  /** @param {Event} event */
  const submitted = (event) => {
    event.preventDefault();
    send(true);
  };
  const opened = (/** @type {Event} */ event) => eager && /** @type {HTMLDetailsElement} */ (event.target).open && !answer && send(true);
  return html`<details class="write" open=${open} onToggle=${opened}>
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
    <div role="status" ref=${said}>
      ${error && html`<p class="error">${error}</p>`}
      ${done && html`<p><b>${done.sentence}</b></p>${done.sentences.map((sentence) => html`<p>${sentence}</p>`)}`}
      ${answer &&
      html`<div class="dry-run">
        <p><b>Dry run: nothing has changed.</b> ${answer.sentence}</p>
        ${answer.sentences.map((sentence) => html`<p>${sentence}</p>`)}
        <${Sections} sections=${answer.sections} act=${act} />
        <p><${Copy} command=${answer.command} text=${true} /></p>
        <button type="button" class="confirm" disabled=${busy || !reason.trim()} onClick=${confirm}>
          ${does || title}${reason.trim() ? `: “${reason.trim()}”` : ", once a reason is given"}
        </button>
      </div>`}
    </div>
  </details>`;
}
