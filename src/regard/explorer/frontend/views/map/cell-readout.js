// The readout of a map: the hovered or selected cell and its weight.

import { button, element, replaceContent } from "../../lib/element.js";
import { formatNumber, quoteToken, tokenLabel } from "../../lib/format.js";

/** @import { Cell } from "../../lib/types.js" */

const HINT =
  "Point at a cell to read its weight; click to select it. Scroll or pinch to zoom, drag to pan. " +
  "Keyboard: arrow keys, +, − and 0.";

/**
 * @typedef {Object} Reading
 * @property {Cell | null} cell
 * @property {{value: number, level: number, exact: boolean}|null} weight
 * @property {{rowLabels: string[], columnLabels: string[], queryOffset: number}} tokens
 * @property {string} pooling
 * @property {(() => void)|null} open opens the Arithmetic view; null if no cell is selected
 */

/**
 * Shows a reading; returns it as a sentence for screen readers.
 * @param {HTMLElement} node
 * @param {Reading} reading
 */
export function drawReadout(node, reading) {
  const { cell } = reading;
  const text = cell ? sentence({ ...reading, cell }) : "";
  const name = `${text} ${Boolean(reading.open)}`;
  if (node.dataset.name === name) return text; // replacing a pressed button would lose the click
  node.dataset.name = name;
  replaceContent(node, cell ? readoutNodes({ ...reading, cell }) : element("p", { class: "hint" }, HINT));
  return text;
}

/** @param {Reading & {cell: Cell}} reading */
function readingParts({ cell, weight, tokens, pooling }) {
  return {
    row: tokens.rowLabels[cell.query] ?? "",
    column: tokens.columnLabels[cell.key] ?? "",
    position: tokens.queryOffset + cell.query,
    value: weight ? formatNumber(weight.value) : "…",
    caption: !weight || weight.exact ? "weight" : `${pooling} of ${2 ** weight.level} × ${2 ** weight.level} weights`,
  };
}

/** @param {Reading & {cell: Cell}} reading */
function sentence(reading) {
  const { row, column, position, value, caption } = readingParts(reading);
  const pair = `${quoteToken(row)}, token ${position}, attends to ${quoteToken(column)}, token ${reading.cell.key}`;
  return `${pair}: ${caption} ${value}.`;
}

/** @param {Reading & {cell: Cell}} reading */
function readoutNodes(reading) {
  const { row, column, position, value, caption } = readingParts(reading);
  return [
    element(
      "div",
      { class: "token-pair" },
      element("span", { class: "query-color" }, tokenLabel(row), element("sub", {}, position)),
      element("span", { class: "arrow" }, "attends to"),
      element("span", { class: "key-color" }, tokenLabel(column), element("sub", {}, reading.cell.key)),
    ),
    element(
      "div",
      { class: "weight-figure" },
      element("output", { class: "weight" }, value),
      element("span", { class: "weight-caption" }, caption),
    ),
    reading.open ? button("Show arithmetic", reading.open, { class: "primary full-width" }) : null,
  ];
}
