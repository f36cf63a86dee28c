// A sentence whose words are buttons: the selected word is the query, the others are shaded by their weights.

import { element } from "../../../../src/regard/explorer/frontend/lib/element.js";
import { formatFixed, formatNumber } from "../../../../src/regard/explorer/frontend/lib/format.js";

/** @typedef {{name: string, values: number[], isWeight?: boolean}} NumberRow */

/**
 * A table with a column for each word. `show(query, rows)` of the element sets the query and the rows of numbers.
 * @param {string} label
 * @param {string[]} words
 * @param {(query: number) => void} onSelect called when a word is pointed at, focused or pressed
 */
export function attentionWords(label, words, onSelect) {
  const buttons = words.map((word, n) => {
    const select = () => onSelect(n);
    return element(
      "button",
      { type: "button", class: "word", onpointerenter: select, onfocus: select, onclick: select },
      word,
    );
  });
  const body = element("tbody");
  const header = element(
    "tr",
    {},
    element("td"),
    buttons.map((node) => element("th", { scope: "col" }, node)),
  );
  /**
   * @param {number} query
   * @param {NumberRow[]} rows
   */
  const show = (query, rows) => {
    const weights = rows.find(({ isWeight }) => isWeight)?.values ?? [];
    buttons.forEach((node, n) => {
      node.setAttribute("aria-pressed", String(n === query));
      node.style.backgroundColor = shade(weights[n]);
    });
    body.replaceChildren(...rows.map(numberRow));
  };
  const table = element("table", { class: "words", "aria-label": label }, element("thead", {}, header), body);
  return Object.assign(element("div", { class: "scroll-x" }, table), { show });
}

/** @param {NumberRow} row */
function numberRow({ name, values, isWeight = false }) {
  return element(
    "tr",
    { "data-row": name },
    element("th", { scope: "row" }, name),
    values.map((x) => element("td", { title: String(x), class: isWeight ? "is-weight" : null }, formatCell(x))),
  );
}

/** @param {number} x */
function formatCell(x) {
  return Number.isFinite(x) && x !== 0 ? formatFixed(x, 2) : formatNumber(x);
}

/** @param {number} weight */
function shade(weight) {
  return `color-mix(in srgb, var(--key) ${(75 * weight).toFixed(1)}%, transparent)`;
}
