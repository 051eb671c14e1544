/** The whole page, of the state. */
import {isFiltered} from "../filter.js";
import {html} from "../markup.js";
import {selection, tokenBanners} from "../selection.js";
import {Failures} from "./failures.js";
import {Header} from "./header.js";
import {Help} from "./help.js";
import {PanelView} from "./panel.js";
import {Peers} from "./peers.js";
import {Policy} from "./policy.js";
import {AsOf, Timeline} from "./timeline.js";
import {Banners, VerdictView} from "./verdict.js";
import {Waits} from "./waits.js";

/**
 * @param {{state: import("../state.js").State, act: import("../app.js").Act}} props
 */
export function Page({state, act}) {
  const shown = selection(state);
  const scrubbed = state.scrub !== null;
  return html`<div class=${["page", scrubbed ? "past" : "", state.connected ? "" : "stale"].join(" ")}>
    <${Header} state=${state} act=${act} />
    <main>
      <p class="unseen" aria-live="polite" id="said">${state.screen?.verdict.sentence ?? ""}</p>
      <${AsOf} state=${state} shown=${shown} act=${act} />
      <${VerdictView} shown=${shown} scrubbed=${scrubbed} act=${act} />
      <${Banners} banners=${[...tokenBanners(state), ...(shown.screen?.banners ?? [])]} gaps=${state.gaps} />
      <div class="parts">
        <${Peers} shown=${shown} clock=${shown.moment} act=${act} />
        <${Waits} shown=${shown} act=${act} />
        <${Failures} shown=${shown} isFiltered=${isFiltered(state.filter)} act=${act} />
        <${Policy} shown=${shown} act=${act} />
      </div>
    </main>
    <${Timeline} state=${state} shown=${shown} act=${act} />
    <${PanelView} state=${state} act=${act} />
    <${Help} state=${state} act=${act} />
  </div>`;
}
