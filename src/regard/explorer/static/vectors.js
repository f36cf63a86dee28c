// Vectors and matrices of numbers as tables that a finger can follow.

import { element } from "./element.js";
import { brief, number } from "./format.js";

/** A number as Python said it: words for what JSON has no number for. */
function said(x) {
  return { inf: Infinity, "-inf": -Infinity, nan: NaN }[x] ?? x;
}

/** Shades a cell by a share of the largest: blue-ish for more, orange-ish for less than nothing. */
function shade(cell, x, top, colour) {
  if (typeof x !== "number" || !Number.isFinite(x) || !top) return;
  const share = Math.min(1, Math.abs(x) / top);
  cell.style.backgroundColor = `color-mix(in srgb, var(--${x < 0 ? "less" : colour}) ${(4 + 40 * share).toFixed(0)}%, transparent)`;
}

function largest(values) {
  return values
    .flat(3)
    .reduce((top, x) => (typeof x === "number" && Number.isFinite(x) ? Math.max(top, Math.abs(x)) : top), 0);
}

/**
 * Several vectors below each other, in blocks of so many columns that a line fits.
 * @param {Array<{name: string, values: number[], colour: string}>} rows
 */
export function vectors(rows, across = 16, digits = 2) {
  const length = rows[0].values.length;
  const node = element("div", { class: "vectors" });
  for (let from = 0; from < length; from += across) {
    const places = Array.from({ length: Math.min(across, length - from) }, (_, n) => from + n);
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
            places.map((c) => element("th", { scope: "col" }, c)),
          ),
        ),
        element(
          "tbody",
          {},
          rows.map(({ name, values, colour }) => {
            const top = largest(values);
            return element(
              "tr",
              { class: `of-${colour}` },
              element("th", { scope: "row" }, name),
              places.map((c) => {
                const cell = element("td", { title: String(values[c]) }, brief(values[c], digits));
                shade(cell, values[c], top, colour);
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
 * A matrix with names at its sides; what is hidden, or not a number, is said in a sign.
 * @param {Array<Array<number|string|boolean>>} values
 */
export function matrix(values, { rows = [], columns = [], colour = "query", digits = 4 } = {}) {
  const numbers = values.map((row) => row.map(said));
  const top = largest(numbers);
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
              { title: String(x), class: typeof x === "boolean" ? (x ? "yes" : "no") : null },
              typeof x === "boolean" ? (x ? "✓" : "✕") : number(x, digits),
            );
            shade(cell, x, top, colour);
            return cell;
          }),
        ),
      ),
    ),
  );
}
