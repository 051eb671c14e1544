/** The token that the link of `agentctl page` brings: out of the address at once, and kept for this tab alone. */

const NAME = "penstock-token";
/** For a browser that keeps nothing. */
let held = "";

/**
 * Takes the token out of a fragment.
 *
 * @param {string} fragment with or without "#"
 * @returns {{token: string, rest: string}} "" for no token; the rest is without "#"
 */
export function divided(fragment) {
  const values = new URLSearchParams(fragment.replace(/^#/, ""));
  const token = values.get("token") ?? "";
  values.delete("token");
  return {token, rest: values.toString()};
}

/** Takes the token out of the address, and returns whether there was one. */
export function takeToken() {
  const {token, rest} = divided(location.hash);
  if (!token) {
    return false;
  }
  held = token;
  try {
    sessionStorage.setItem(NAME, token);
  } catch {
    // It holds until the page is loaded again.
  }
  history.replaceState(null, "", location.pathname + location.search + (rest && `#${rest}`));
  return true;
}

/** Returns the token of this tab; "" for none. */
export function tokenOfTab() {
  try {
    held ||= sessionStorage.getItem(NAME) ?? "";
  } catch {
    // As above.
  }
  return held;
}

/**
 * Returns the header that says who asks.
 *
 * @returns {Record<string, string>}
 */
export function authorization() {
  const token = tokenOfTab();
  return token ? {Authorization: `Bearer ${token}`} : {};
}
