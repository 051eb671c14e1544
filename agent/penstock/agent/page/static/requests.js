/** Questions to the server, and writes. An error is the server's own sentence. */

import {authorization} from "./token.js";

/**
 * @typedef {import("./types.js").Panel} Panel
 * @typedef {import("./messages.js").Detail} Detail
 * @typedef {import("./messages.js").WriteAnswer} WriteAnswer
 * @typedef {import("./types.js").WriteKind} WriteKind
 * @typedef {import("./types.js").WriteBody} WriteBody
 */

/** Seconds after which a question is given up. */
const PATIENCE = 15;
const UNAUTHORIZED = 401;

/**
 * Returns the address that answers for a detail, or "" for one that the first screen answers.
 *
 * @param {Panel} panel
 */
export function address(panel) {
  /** @param {Record<string, string>} values */
  const query = (values) => new URLSearchParams(Object.entries(values).filter(([, value]) => value)).toString();
  switch (panel.kind) {
    case "request":
      return `/api/request?${query({id: panel.id})}`;
    case "peer":
      return `/api/peer?${query({engine: panel.engine, peer: panel.peer})}`;
    case "engine":
      return `/api/engine?${query({key: panel.engine})}`;
    case "condition":
      return `/api/condition?${query({kind: panel.name, peer: panel.peer, engine: panel.engine})}`;
    case "policy":
      return `/api/policy?${query({name: panel.name})}`;
    case "policies":
      return "/api/policies";
    case "events":
      return `/api/events?${query({engine: panel.engine, peer: panel.peer, request: panel.id, seconds: "900", limit: "200"})}`;
    case "engines":
      return "";
  }
}

/**
 * Asks for a detail.
 *
 * @param {Panel} panel
 * @param {AbortSignal} gone ends the question when the panel closes
 * @returns {Promise<Detail>}
 */
export async function detail(panel, gone) {
  const signal = AbortSignal.any([gone, AbortSignal.timeout(PATIENCE * 1000)]);
  return await answered(fetch(address(panel), {headers: authorization(), signal}));
}

/**
 * Asks for the signals of one engine.
 *
 * @param {string} engine its key
 * @param {AbortSignal} gone ends the question when the filter names another one
 * @returns {Promise<import("./messages.js").Signals>}
 */
export async function signalsOf(engine, gone) {
  const signal = AbortSignal.any([gone, AbortSignal.timeout(PATIENCE * 1000)]);
  return await answered(fetch(`/api/signals?${new URLSearchParams({engine})}`, {headers: authorization(), signal}));
}

/**
 * Asks for a write, or for what it would do.
 *
 * @param {WriteKind} kind
 * @param {WriteBody & {dryRun: boolean, reason: string}} body
 * @returns {Promise<WriteAnswer>}
 */
export function write(kind, body) {
  return posted(kind, body);
}

/**
 * Asks what the other tab of the editor shows of a draft.
 *
 * @param {WriteBody} body
 * @returns {Promise<import("./messages.js").Draft>}
 */
export function draftOf(body) {
  return posted("draft", body);
}

/**
 * @param {string} kind
 * @param {WriteBody} body
 * @returns {Promise<any>}
 */
function posted(kind, body) {
  return answered(
    fetch(`/api/write/${kind}`, {
      method: "POST",
      headers: {"Content-Type": "application/json", "X-Penstock": "page", ...authorization()},
      body: JSON.stringify(body),
      signal: AbortSignal.timeout(PATIENCE * 1000),
    }),
  );
}

/**
 * Returns why the server refuses a stream without a token that is valid; "" if it does not. An EventSource cannot tell.
 *
 * @param {string} stream its address
 * @returns {Promise<string>}
 */
export async function whyRefused(stream) {
  const ended = new AbortController();
  try {
    const response = await fetch(stream, {headers: authorization(), signal: ended.signal});
    return response.status === UNAUTHORIZED ? String((await response.json()).error) : "";
  } catch {
    return "";
  } finally {
    ended.abort();
  }
}

/**
 * @param {Promise<Response>} asked
 * @returns {Promise<any>}
 */
async function answered(asked) {
  const response = await asked.catch((error) => {
    throw new Error(error.name === "TimeoutError" ? `No answer within ${PATIENCE} s.` : "The server cannot be reached.", {cause: error});
  });
  const answer = await response.json().catch(() => ({error: `The server answered ${response.status}, and not in JSON.`}));
  if (!response.ok) {
    throw new Error(String(answer.error ?? `The server answered ${response.status}.`));
  }
  return answer;
}
