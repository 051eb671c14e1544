/** The top line: whose page it is, what it is filtered by, how old the data is, and what can be opened. */
import {panelOf} from "../filter.js";
import {html} from "../markup.js";
import {freshness} from "../selection.js";

/**
 * @param {{state: import("../state.js").State, act: import("../app.js").Act}} props
 */
export function Header({state, act}) {
  const fresh = freshness(state);
  const hello = state.hello;
  const missing = (state.pulse?.agents.missing ?? []).map((agent) => `${agent.name}: ${agent.reason}`);
  return html`<header class="top">
    <h1>Penstock ${hello && html`<small>${hello.source} ${hello.name}</small>`}</h1>
    <${Chips} filter=${state.filter} act=${act} />
    <p class=${`fresh ${fresh.state}`} id="fresh" title=${missing.join("; ")}>
      <span class="dot" aria-hidden="true"></span>${fresh.text}
    </p>
    <nav aria-label="More">
      <button type="button" onClick=${() => act.open(panelOf("engines"))}>
        Engines${state.screen ? ` ${state.screen.engines.total}` : ""}
      </button>
      <button type="button" onClick=${() => act.open(panelOf("policies"))}>Policies</button>
      <button
        type="button"
        onClick=${() => act.open(panelOf("events", {engine: state.filter.engine, peer: state.filter.peer}))}
      >
        Events
      </button>
      <button type="button" aria-label="Help and keys" title="Help and keys (?)" onClick=${() => act.help(true)}>?</button>
    </nav>
  </header>`;
}

/**
 * What the page is filtered by; a click takes it away.
 *
 * @param {{filter: import("../filter.js").Filter, act: import("../app.js").Act}} props
 */
function Chips({filter, act}) {
  const chips = Object.entries(filter).filter(([, value]) => value);
  return html`<div class="chips" role="group" aria-label="Filter">
    ${chips.map(
      ([name, value]) =>
        html`<button
          type="button"
          class="chip"
          key=${name}
          title="Do not filter by this (Escape: by nothing)"
          onClick=${() => act.filter({[name]: ""})}
        >
          <span>${name}</span> ${value} <span aria-hidden="true">×</span>
        </button>`,
    )}
  </div>`;
}
