// Rows of a label, a bar and a number.

import { element } from "../../../../src/regard/explorer/frontend/lib/element.js";

/** @typedef {{label: string, value: number, fraction: number, text: string, color?: string}} Bar */

/**
 * A list of bars; `fraction` is the length from 0 to 1, and `data-value` has the number at full precision.
 * @param {string} label
 * @param {Bar[]} bars
 */
export function barList(label, bars) {
  return element(
    "ul",
    { class: "bar-list", "aria-label": label },
    bars.map(({ label: name, value, fraction, text, color = "query" }) => {
      const bar = element("span", { class: "bar-fill" });
      bar.style.width = `${(100 * Math.min(1, Math.max(0, fraction))).toFixed(2)}%`;
      bar.style.backgroundColor = `var(--${color})`;
      return element(
        "li",
        { "data-value": String(value) },
        element("span", { class: "bar-label" }, name),
        element("span", { class: "bar-track", "aria-hidden": "true" }, bar),
        element("span", { class: "bar-value" }, text),
      );
    }),
  );
}
