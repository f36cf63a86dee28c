// Tables of vectors and matrices.

import { element } from "../lib/element.js";
import { formatNumber, formatNumberShort } from "../lib/format.js";

/** @import { StageValue } from "../lib/types.js" */

/**
 * A number of a JSON response, in which NaN and infinities are strings.
 * @param {StageValue} x
 */
function parseNumber(x) {
  if (x === "inf") return Infinity;
  if (x === "-inf") return -Infinity;
  return x === "nan" ? NaN : x;
}

/**
 * Shades a cell by the fraction of its absolute value in `maximum`; negative numbers have their own color.
 * @param {HTMLElement} cell
 * @param {StageValue} x
 * @param {number} maximum
 * @param {string} color
 */
function shade(cell, x, maximum, color) {
  if (typeof x !== "number" || !Number.isFinite(x) || !maximum) return;
  const fraction = Math.min(1, Math.abs(x) / maximum);
  const percent = (4 + 40 * fraction).toFixed(0);
  cell.style.backgroundColor = `color-mix(in srgb, var(--${x < 0 ? "negative" : color}) ${percent}%, transparent)`;
}

/** @param {StageValue[]} values */
function largestAbsolute(values) {
  let maximum = 0;
  for (const x of values.flat(3))
    if (typeof x === "number" && Number.isFinite(x)) maximum = Math.max(maximum, Math.abs(x));
  return maximum;
}

/**
 * A table of vectors of equal length, one per row, split into blocks of `blockSize` columns.
 * @param {Array<{name: string, values: number[], color: string}>} rows
 */
export function vectorTable(rows, blockSize = 16, digits = 2) {
  const length = rows[0].values.length;
  const node = element("div", { class: "vectors" });
  for (let start = 0; start < length; start += blockSize) {
    const indices = Array.from({ length: Math.min(blockSize, length - start) }, (_, n) => start + n);
    node.append(
      element(
        "table",
        { class: "vector" },
        element(
          "thead",
          {},
          element(
            "tr",
            {},
            element("th", {}),
            indices.map((c) => element("th", { scope: "col" }, c)),
          ),
        ),
        element(
          "tbody",
          {},
          rows.map(({ name, values, color }) => {
            const maximum = largestAbsolute(values);
            return element(
              "tr",
              { class: `${color}-color` },
              element("th", { scope: "row" }, name),
              indices.map((c) => {
                const cell = element("td", { title: String(values[c]) }, formatNumberShort(values[c], digits));
                shade(cell, values[c], maximum, color);
                return cell;
              }),
            );
          }),
        ),
      ),
    );
  }
  return node;
}

/**
 * A table of a matrix with row and column labels. Booleans are shown as ✓ and ✕.
 * @param {StageValue[][]} values
 * @param {{rows?: string[], columns?: string[], color?: string, digits?: number}} [options]
 */
export function matrixTable(values, { rows = [], columns = [], color = "query", digits = 4 } = {}) {
  const numbers = values.map((row) => row.map(parseNumber));
  const maximum = largestAbsolute(numbers);
  const hasNames = rows.length > 0;
  return element(
    "table",
    { class: "matrix" },
    columns.length
      ? element(
          "thead",
          {},
          element(
            "tr",
            {},
            hasNames ? element("th", {}) : null,
            columns.map((name) => element("th", { scope: "col" }, name)),
          ),
        )
      : null,
    element(
      "tbody",
      {},
      numbers.map((row, i) =>
        element(
          "tr",
          {},
          hasNames ? element("th", { scope: "row" }, rows[i] ?? "") : null,
          row.map((x) => {
            const cell = element(
              "td",
              { title: String(x), class: typeof x === "boolean" ? (x ? "is-true" : "is-false") : null },
              formatValue(x, digits),
            );
            shade(cell, x, maximum, color);
            return cell;
          }),
        ),
      ),
    ),
  );
}

/**
 * @param {StageValue} x
 * @param {number} digits
 */
function formatValue(x, digits) {
  if (typeof x === "boolean") return x ? "✓" : "✕";
  return formatNumber(typeof x === "number" ? x : null, digits);
}
