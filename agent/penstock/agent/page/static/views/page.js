/** The whole page, of the state: its top line and its parts. */
import {isFiltered, panelOf} from "../filter.js";
import {html} from "../markup.js";
import {freshness, selection, tokenBanners} from "../selection.js";
import {Failures} from "./failures.js";
import {Help} from "./help.js";
import {MapView} from "./map.js";
import {PanelView} from "./panel.js";
import {Peers} from "./peers.js";
import {Policy} from "./policy.js";
import {SignalsView} from "./signals.js";
import {AsOf, Timeline} from "./timeline.js";
import {Banners, VerdictView} from "./verdict.js";
import {Waits} from "./waits.js";

/**
 * @param {{state: import("../types.js").State, act: import("../types.js").Act}} props
 */
export function Page({state, act}) {
  const shown = selection(state);
  const scrubbed = state.scrub !== null;
  return html`<div class=${["page", scrubbed ? "past" : "", state.connected ? "" : "stale"].join(" ")}>
    <${Header} state=${state} act=${act} />
    <main class=${isCalm(shown) ? "calm" : ""}>
      <p class="unseen" aria-live="polite" id="said">${state.screen?.verdict.sentence ?? ""}</p>
      <${AsOf} state=${state} shown=${shown} act=${act} />
      <${VerdictView} shown=${shown} scrubbed=${scrubbed} act=${act} />
      <${Banners} banners=${[...tokenBanners(state), ...(shown.screen?.banners ?? [])]} gaps=${state.gaps} />
      <${SignalsView} state=${state} act=${act} />
      <div class="parts">
        <div>
          <${Peers} shown=${shown} clock=${shown.moment} act=${act} />
          <${Failures} shown=${shown} isFiltered=${isFiltered(state.filter)} act=${act} />
        </div>
        <div>
          <${MapView} state=${state} shown=${shown} act=${act} />
          <${Waits} shown=${shown} act=${act} />
          <${Policy} shown=${shown} act=${act} />
        </div>
      </div>
    </main>
    <${Timeline} state=${state} shown=${shown} act=${act} />
    <${PanelView} state=${state} act=${act} />
    <${Help} state=${state} act=${act} />
  </div>`;
}

/**
 * Returns whether no list has anything that is wrong: the signals take the room.
 *
 * @param {import("../types.js").Selection} shown
 */
function isCalm({screen, entries}) {
  return screen !== null && entries.length === 0 && screen.waits.rows.length === 0 && screen.verdict.causes.length === 0;
}

/**
 * The top line: whose page it is, what it is filtered by, how old the data is, and what can be opened.
 *
 * @param {{state: import("../types.js").State, act: import("../types.js").Act}} props
 */
function Header({state, act}) {
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
 * @param {{filter: import("../types.js").Filter, act: import("../types.js").Act}} props
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
