/** One place where the views get their libraries from. What a template is given becomes text, never markup. */
import htm from "./vendor/htm.module.js";
import {h} from "./vendor/preact.module.js";

export {render} from "./vendor/preact.module.js";
export {useEffect, useLayoutEffect, useMemo, useRef, useState} from "./vendor/hooks.module.js";

/** @typedef {import("preact").ComponentChildren} Children */

/** @type {(strings: TemplateStringsArray, ...values: unknown[]) => import("preact").VNode<any>} */
export const html = /** @type {any} */ (htm).bind(h);
