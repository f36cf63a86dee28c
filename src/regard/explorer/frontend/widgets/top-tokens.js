// Bar lists of the largest weights: the keys that tokens attend to, and the queries that attend to them.

import { element, replaceContent } from "../lib/element.js";
import { formatNumber, formatPercent, quoteToken, tokenLabel, truncate } from "../lib/format.js";
import { largestWeights } from "./largest-weights.js";

/** @import { LayerTokens } from "../lib/types.js" */

const MAX_TITLE_CHARACTERS = 60;

/**
 * The weights of tokens as queries (row) and as keys (column).
 * @typedef {{row: Float32Array | null, column: Float32Array | null, queries: number[], keys: number[]}} TokenWeights
 */

/**
 * Shows the two lists of the selected tokens, or a hint if there are none.
 * @param {HTMLElement} node
 * @param {{weights: TokenWeights | null, tokens: LayerTokens, showWords: boolean, isCrossAttention: boolean}} options
 * @returns {string} a sentence for screen readers
 */
export function drawTopTokens(node, { weights, tokens, showWords, isCrossAttention }) {
  if (!weights) {
    replaceContent(
      node,
      element(
        "p",
        { class: "hint" },
        "Point at a token. The keys that it attends to get an ",
        element("b", { class: "key-color" }, "orange background"),
        "; the queries that attend to it get a ",
        element("b", { class: "query-color" }, "blue underline"),
        ". Click to pin the token, Shift-click to add another, drag to select a span.",
      ),
    );
    return "";
  }
  const { row, column, queries, keys } = weights;
  const count = Math.max(queries.length, keys.length);
  /**
   * @param {number[]} indices
   * @param {string[]} texts
   * @param {string[]} labels
   */
  const joinTokens = (indices, texts, labels) =>
    indices
      .map((n) => (count > 1 ? texts[n] : labels[n]))
      .join("")
      .trim();
  const selection = queries.length
    ? joinTokens(queries, tokens.rows, tokens.rowLabels)
    : joinTokens(keys, tokens.columns, tokens.columnLabels);
  /**
   * @param {Float32Array} values
   * @param {'row' | 'column'} side
   */
  const topItems = (values, side) =>
    showWords
      ? largestWeights(values, tokens[`${side}s`], tokens[`${side}Words`])
      : largestWeights(values, tokens[`${side}Labels`], null);
  const topKeys = row ? topItems(row, "column") : [];
  const topQueries = column ? topItems(column, "row") : [];
  replaceContent(
    node,
    element(
      "h3",
      { class: "selection-title" },
      titleLabel(selection),
      count > 1
        ? element("small", {}, ` ${count} tokens`)
        : element("small", {}, ` token ${queries.length ? tokens.queryOffset + queries[0] : keys[0]}`),
    ),
    row ? barList("attends to", "key-color", topKeys, count > 1 ? "mean of the rows" : "weights of the row") : null,
    column
      ? barList("attended to by", "query-color", topQueries, count > 1 ? "sum of the columns" : "weights of the column")
      : null,
    count > 1 && row && column && !isCrossAttention ? massWithinSpan(row, keys) : null,
  );
  const top = topKeys[0];
  return top
    ? `${quoteToken(titleLabel(selection))} attends most to ${quoteToken(top.text)}: ${formatNumber(top.value)}.`
    : "";
}

/**
 * The mean weight that the queries of a span have on the keys of the span.
 * @param {Float32Array} row
 * @param {number[]} keys
 */
function massWithinSpan(row, keys) {
  const sum = keys.reduce((total, key) => total + row[key], 0);
  return element(
    "p",
    { class: "span-mass", "data-sum": sum },
    element("b", {}, formatPercent(sum)),
    ` of the span’s weight stays within the span (${formatNumber(sum)}).`,
  );
}

/**
 * A bar list of the keys with the largest weights of a row.
 * @param {Float32Array} values
 * @param {string[]} tokens
 */
export function topKeysList(values, tokens, words = null) {
  return barList("attends to", "key-color", largestWeights(values, tokens, words), "weights of the row");
}

/**
 * A list with bars. A full bar is a weight of 1 in every list, so that lists can be compared.
 * @param {string} title
 * @param {string} color
 * @param {string} hint
 * @param {Array<{value: number, text: string, first: number|null}>} items in descending order; `first` is a token index
 */
export function barList(title, color, items, hint) {
  return element(
    "div",
    { class: `bar-list ${color}`, "data-list": title },
    element("h4", {}, title, element("small", {}, hint)),
    element(
      "ol",
      {},
      items.map(({ value, text, first }) => {
        const bar = element("span", { class: "bar-fill" });
        bar.style.width = `${100 * Math.min(1, value)}%`;
        return element(
          "li",
          { "data-token": first, "data-value": value },
          element("span", { class: "bar-label" }, tokenLabel(text), first === null ? null : element("sub", {}, first)),
          element("span", { class: "bar-track" }, bar),
          element("span", { class: "bar-value" }, formatNumber(value)),
        );
      }),
    ),
  );
}

/** @param {string} text */
function titleLabel(text) {
  return text.length > MAX_TITLE_CHARACTERS ? truncate(text, MAX_TITLE_CHARACTERS) : tokenLabel(text);
}
