/** The editor of a policy: a form of its fields and its YAML, two tabs of one manifest. The server turns one into the other. */
import {html, useEffect, useRef, useState} from "../markup.js";
import {draftOf} from "../requests.js";
import {Form} from "./form.js";

/**
 * @typedef {import("../messages.js").EditField} EditField
 * @typedef {import("../messages.js").Detail} Detail
 * @typedef {import("../types.js").Act} Act
 *
 * `changes` are those of the form to the manifest, by path. One of the two is shown: `fields` are those of the manifest unless `yaml`.
 * `base` is what it began with.
 * @typedef {{base: string, manifest: string, fields: EditField[], changes: Record<string, string>, generation: number, yaml: boolean}} Draft
 */

/** Drafts that are not applied, by policy: a panel that closes loses none. @type {Map<string, Draft>} */
const kept = new Map();

/**
 * @param {Detail} detail
 * @param {boolean} yaml
 * @returns {Draft}
 */
const begun = ({manifest = "", fields = [], generation = 0}, yaml) => ({base: manifest, manifest, fields, changes: {}, generation, yaml});

/**
 * A draft keeps the generation that it began with: a change by somebody else is never overwritten by asking again.
 *
 * @param {{name: string, detail: Detail, again: () => void, act: Act}} props
 */
export function Editor({name, detail, again, act}) {
  const [draft, setDraft] = useState(() => kept.get(name) ?? begun(detail, !detail.fields?.length));
  const [error, setError] = useState("");
  const box = useRef(/** @type {HTMLDivElement | null} */ (null));
  const {base, manifest, changes, generation, yaml} = draft;
  const body = {name, manifest, changes, generation};
  const changed = manifest !== base || Object.keys(changes).length > 0;
  const newer = detail.generation !== generation;
  const restart = () => {
    setDraft(begun(detail, yaml));
    setError("");
  };
  useEffect(() => {
    changed ? kept.set(name, draft) : kept.delete(name);
  }, [draft]);
  useEffect(() => {
    newer && !changed && restart();
  }, [detail]);
  if (!detail.manifest) {
    return html`<p class="note">The manifest is too long for this page; use agentctl apply.</p>`;
  }
  /** @param {boolean} other whether to the YAML */
  const turn = async (other) => {
    // The browser hides what is no number: it would be lost.
    const right = [...(box.current?.querySelectorAll("input") ?? [])].every((one) => one.reportValidity());
    if (!right || other === yaml) {
      return;
    }
    try {
      const found = other && Object.keys(changes).length === 0 ? draft : await draftOf({name, manifest, changes});
      // What was typed meanwhile stays, and the tab with it.
      setDraft((now) => (now === draft ? {...draft, ...found, changes: {}, yaml: other} : now));
      setError("");
    } catch (problem) {
      setError(/** @type {Error} */ (problem).message);
    }
  };
  /** What was applied is what the next change is to. */
  const after = () => {
    setDraft((now) => ({...now, base: manifest, changes: now === draft ? {} : now.changes}));
    again();
  };
  /** @param {string} path @param {string} value @param {string} was */
  const set = (path, value, was) => {
    const {[path]: _, ...others} = changes;
    setDraft({...draft, changes: value === was ? others : {...others, [path]: value}});
  };
  return html`<${Form} kind="policy" title=${`Edit ${name}`} does=${`Apply ${name}`} body=${body} open=${true} after=${after} act=${act}>
    <div class="tabs" role="group" aria-label="edit as">
      <button type="button" aria-pressed=${!yaml} onClick=${() => turn(false)}>Fields</button>
      <button type="button" aria-pressed=${yaml} onClick=${() => turn(true)}>YAML</button>
      <span class="note">${changed ? html`changed, not applied <button type="button" onClick=${restart}>Discard</button>` : `generation ${generation}`}${!yaml && "; an empty field is another policy's, or vLLM's own"}</span>
    </div>
    ${error && html`<p role="alert" class="error">${error}</p>`}
    ${newer &&
    changed &&
    html`<p role="alert" class="error">
      Generation ${detail.generation} is in force meanwhile; this draft is of ${generation} and will be refused.${" "}
      <button type="button" onClick=${restart}>Begin again with ${detail.generation}</button>
    </p>`}
    ${yaml
      ? html`<textarea
          name="manifest"
          aria-label="manifest"
          spellcheck=${false}
          required
          value=${manifest}
          onInput=${(/** @type {Event} */ event) => setDraft({...draft, manifest: /** @type {HTMLTextAreaElement} */ (event.target).value})}
        ></textarea>`
      : html`<div class="fields" ref=${box} role="group" aria-label="fields">
          ${[...new Set(draft.fields.map((field) => field.section))].map(
            (section) => html`<fieldset key=${section}>
              <legend>${section || "policy"} <small>${draft.fields.find((field) => field.section === section)?.about}</small></legend>
              ${draft.fields
                .filter((field) => field.section === section)
                .map((field) => html`<${Field} key=${field.path} field=${field} value=${changes[field.path] ?? field.value} set=${set} />`)}
            </fieldset>`,
          )}
        </div>`}
  <//>`;
}

/**
 * @param {{field: EditField, value: string, set: (path: string, value: string, was: string) => void}} props
 */
function Field({field, value, set}) {
  const {path, kind} = field;
  const about = `about-${path}`;
  // An input for numbers shows nothing of another value.
  const number = field.least !== null && !Number.isNaN(Number(field.value));
  const named = {
    id: path,
    name: path,
    "aria-describedby": about,
    value,
    onInput: (/** @type {Event} */ event) => set(path, /** @type {HTMLInputElement} */ (event.target).value, field.value),
  };
  const unset = field.default && `default: ${field.default}`;
  return html`<div class=${value === field.value ? "field" : "field changed"}>
    <label for=${path}>${path.slice(field.section ? field.section.length + 1 : 0)}</label>
    <span>
      ${kind === "yaml"
        ? html`<output id=${path}>${value || "not set"} <small>in the YAML only</small></output>`
        : kind === "choice"
          ? html`<select ...${named}>
              <option value="">${unset}</option>
              ${[...new Set([...field.choices, value])].filter(Boolean).map((choice) => html`<option>${choice}</option>`)}
            </select>`
          : html`<input
              ...${named}
              type=${number ? "number" : "text"}
              min=${field.least}
              max=${field.most}
              step=${number && (kind === "count" ? 1 : "any")}
              pattern=${field.pattern || null}
              title=${field.bounds}
              placeholder=${unset}
              autocomplete="off"
            />`}
      ${" "}${field.unit}
    </span>
    <small id=${about}>${field.meaning}${kind !== "choice" && kind !== "yaml" && `: ${field.bounds}`}</small>
  </div>`;
}
