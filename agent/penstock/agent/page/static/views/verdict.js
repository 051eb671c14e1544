/** The one sentence that says what is wrong; its causes unfold. */
import {panelOf} from "../filter.js";
import {clock} from "../format.js";
import {html} from "../markup.js";
import {Copy, Name} from "./parts.js";

/**
 * @typedef {import("../messages.js").Cause} Cause
 * @typedef {import("../types.js").Act} Act
 */

/**
 * @param {{shown: import("../types.js").Selection, scrubbed: boolean, act: Act}} props
 */
export function VerdictView({shown, scrubbed, act}) {
  const whole = shown.whole?.verdict;
  const verdict = shown.screen?.verdict;
  if (!whole || !verdict) {
    const text = scrubbed ? "The verdict of that time is not known to this tab." : "Waiting for the first answer.";
    return html`<section id="verdict" class="verdict unknown" tabindex="-1" aria-label="Verdict">
      <p class="sentence">${text}</p>
    </section>`;
  }
  const hidden = whole.causes.length - verdict.causes.length;
  return html`<section id="verdict" class=${`verdict ${whole.state}`} tabindex="-1" aria-label="Verdict">
    <div class="line">
      <p class="sentence">${whole.sentence}</p>
      <p class="note">computed ${clock(whole.computed)}</p>
      <${Copy} command=${whole.command} />
    </div>
    ${verdict.causes.length > 0 &&
    html`<ol class="causes">
      ${verdict.causes.map((cause) => html`<${CauseView} key=${`${cause.kind} ${cause.peer} ${cause.engines}`} cause=${cause} act=${act} />`)}
    </ol>`}
    ${hidden > 0 && html`<p class="note">${hidden} of ${whole.causes.length} causes are hidden by the filter.</p>`}
    ${whole.leftOut > 0 && html`<p class="note">${whole.leftOut} more of ${whole.leftOut + whole.causes.length} causes are left out.</p>`}
    ${whole.missing.length > 0 && html`<p class="note">Not known: ${whole.missing.join("; ")}</p>`}
    ${whole.state === "ok" && whole.looked.length > 0 && html`<p class="note">Looked at: ${whole.looked.join("; ")}</p>`}
  </section>`;
}

/**
 * @param {{cause: Cause, act: Act}} props
 */
function CauseView({cause, act}) {
  return html`<li>
    <details>
      <summary>${cause.sentence} <span class="note">${cause.confidence}</span></summary>
      ${cause.evidence.length > 0 &&
      html`<table>
        <thead>
          <tr><th scope="col">now</th><th scope="col">before</th></tr>
        </thead>
        <tbody>
          ${cause.evidence.map((one) => html`<tr><td>${one.fact}</td><td>${one.before || "–"}</td></tr>`)}
        </tbody>
      </table>`}
      ${cause.alternatives.map((text) => html`<p><b>or:</b> ${text}</p>`)}
      ${cause.commands.map((command) => html`<p><${Copy} command=${command} text=${true} /></p>`)}
      <p>
        <button type="button" title=${cause.sentence} onClick=${() => act.open(panelOf("condition", {name: cause.kind, peer: cause.peer, engine: cause.engines[0] ?? ""}))}>
          Open this condition
        </button>
      </p>
      <p class="note">
        Filter by:${" "}
        <${Name} text=${cause.peer} title="Show only this peer" onClick=${() => act.filter({peer: cause.peer})} />
        ${cause.engines.map(
          (engine) =>
            html` <${Name} key=${engine} text=${engine} title="Show only this engine" onClick=${() => act.filter({engine})} />`,
        )}
      </p>
    </details>
  </li>`;
}

/**
 * What is out of the ordinary by order, and what is away.
 *
 * @param {{banners: import("../messages.js").Banner[], gaps: readonly string[]}} props
 */
export function Banners({banners, gaps}) {
  if (banners.length === 0 && gaps.length === 0) {
    return null;
  }
  return html`<ul class="banners" aria-label="Orders and absences" tabindex="0">
    ${banners.map(
      (banner) =>
        html`<li key=${`${banner.kind} ${banner.sentence}`} class=${banner.severity}>
          <b>${banner.kind.replace("_", " ")}</b> <span>${banner.sentence}</span> <${Copy} command=${banner.command} />
        </li>`,
    )}
    ${gaps.map((sentence) => html`<li key=${sentence} class="warning"><b>gap</b> <span>${sentence}</span></li>`)}
  </ul>`;
}
