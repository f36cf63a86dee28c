// What a map says about the cell under the cursor, in words and numbers.

import { button, element, refill } from "./element.js";
import { label, number, quoted } from "./format.js";

const HINT =
  "Point at a cell to read its weight; click to keep it. Turn the wheel or pinch to zoom, drag to move; the arrow keys, + − and 0 do the same.";

/**
 * @typedef {Object} Reading
 * @property {{query: number, key: number}|null} cell
 * @property {{value: number, level: number, exact: boolean}|null} found
 * @property {{rowLabels: string[], columnLabels: string[], first: number}} tokens
 * @property {string} pool
 * @property {(() => void)|null} open shows the arithmetic
 */

/**
 * Shows a reading, and gives it back as a sentence.
 * @param {HTMLElement} node
 * @param {Reading} reading
 */
export function drawReadout(node, reading) {
  const said = reading.cell ? sentence(reading) : "";
  const name = `${said} ${Boolean(reading.open)}`;
  if (node.dataset.name === name) return said; // a button that is replaced while it is pressed is not pressed
  node.dataset.name = name;
  refill(node, reading.cell ? figures(reading) : element("p", { class: "hint" }, HINT));
  return said;
}

function parts({ cell, found, tokens, pool }) {
  return {
    row: tokens.rowLabels[cell.query] ?? "",
    column: tokens.columnLabels[cell.key] ?? "",
    place: tokens.first + cell.query,
    value: found ? number(found.value) : "…",
    what: !found || found.exact ? "weight" : `${pool} of ${2 ** found.level} × ${2 ** found.level} weights`,
  };
}

function sentence(reading) {
  const { row, column, place, value, what } = parts(reading);
  return `${quoted(row)}, token ${place}, looks at ${quoted(column)}, token ${reading.cell.key}: ${what} ${value}.`;
}

function figures(reading) {
  const { row, column, place, value, what } = parts(reading);
  return [
    element(
      "div",
      { class: "pair" },
      element("span", { class: "of-query" }, label(row), element("sub", {}, place)),
      element("span", { class: "arrow" }, "looks at"),
      element("span", { class: "of-key" }, label(column), element("sub", {}, reading.cell.key)),
    ),
    element(
      "div",
      { class: "figure" },
      element("output", { class: "weight" }, value),
      element("span", { class: "what" }, what),
    ),
    reading.open ? button("Show the arithmetic", reading.open, { class: "primary wide" }) : null,
  ];
}
