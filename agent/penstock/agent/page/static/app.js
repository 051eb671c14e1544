/** The tab: state, stream, address and keys, and the page drawn from them. */
import {fromFragment, isFiltered, panelOf, toFragment} from "./filter.js";
import {html, render} from "./markup.js";
import {next, NOTHING} from "./state.js";
import {browser, Stream} from "./stream.js";
import {takeToken} from "./token.js";
import {Page} from "./views/page.js";

/** @typedef {import("./types.js").Act} Act */

takeToken();
const root = /** @type {HTMLElement} */ (document.getElementById("page"));
let state = next({...NOTHING, ...fromFragment(location.hash)}, {type: "tick", now: Date.now()});
let planned = false;

/** @type {Act} */
const act = {
  filter: (part) => dispatch({type: "filter", part}),
  clear: () => dispatch({type: "clear"}),
  scrub: (time) => dispatch({type: "scrub", time}),
  open: (panel) => dispatch({type: "open", panel}),
  help: (help) => dispatch({type: "help", help}),
};

const stream = new Stream(dispatch, browser());

/** @param {import("./types.js").Action} action */
function dispatch(action) {
  const before = state;
  state = next(state, action);
  if (state.filter !== before.filter || state.panel !== before.panel) {
    remember();
  }
  // Messages come in bursts: the page is drawn once for all that came in one turn.
  if (!planned) {
    planned = true;
    queueMicrotask(() => {
      planned = false;
      draw();
    });
  }
}

function draw() {
  render(html`<${Page} state=${state} act=${act} />`, root);
}

/** Puts filter and panel into the address, so that it can be sent. */
function remember() {
  const fragment = toFragment(state.filter, state.panel);
  if (fragment !== location.hash.slice(1)) {
    history.replaceState(null, "", fragment ? `#${fragment}` : location.pathname + location.search);
  }
}

const PLACES = new Map([
  ["1", "verdict"],
  ["s", "signals"],
  ["m", "map"],
  ["2", "peers"],
  ["3", "waits"],
  ["4", "failures"],
  ["5", "policy"],
  ["t", "time"],
]);

/**
 * The keys of the help; none of them while something is typed or a dialog is open.
 *
 * @param {KeyboardEvent} event
 */
function pressed(event) {
  const typing = event.target instanceof Element && event.target.closest("input:not([type=range]), textarea, select");
  if (typing || event.ctrlKey || event.altKey || event.metaKey || state.help || state.panel) {
    return;
  }
  const place = PLACES.get(event.key);
  if (place) {
    document.getElementById(place)?.focus();
  } else if (event.key === "?") {
    act.help(true);
  } else if (event.key === "e") {
    act.open(panelOf("events", {engine: state.filter.engine, peer: state.filter.peer}));
  } else if (event.key === "p") {
    act.open(panelOf("policies"));
  } else if (event.key === "n") {
    act.open(panelOf("engines"));
  } else if (event.key === "l") {
    act.scrub(null);
  } else if (event.key === "Escape") {
    if (isFiltered(state.filter)) {
      act.clear();
    } else {
      act.scrub(null);
    }
  } else {
    return;
  }
  event.preventDefault();
}

document.addEventListener("keydown", pressed);
addEventListener("hashchange", () => {
  if (takeToken()) {
    stream.stop();
    stream.start();
  }
  dispatch({type: "go", ...fromFragment(location.hash)});
});
setInterval(() => dispatch({type: "tick", now: Date.now()}), 1000);
// A page that the browser keeps for its "back" button would keep its connection, of which there are six to a server.
addEventListener("pagehide", () => {
  stream.stop();
  dispatch({type: "lost", reason: "", now: Date.now()});
});
addEventListener("pageshow", (event) => event.persisted && stream.start());
stream.start();
draw();
