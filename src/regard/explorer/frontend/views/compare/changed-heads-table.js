// The table of the heads that differ most between two sessions.

import { button, element } from "../../lib/element.js";
import { formatNumber } from "../../lib/format.js";

/** @import { Comparison, Context } from "../../lib/types.js" */

const MAX_TABLE_ROWS = 12;
const INDEX_COLUMNS = ["layer", "head", "path", "batch", "query", "key"];

/**
 * A table of heads in descending order of difference; a click selects a head. Null if there are no heads.
 * @param {Context} context
 * @param {Comparison} comparison
 */
export function changedHeadsTable({ store }, { heads = [], columns = ["total_variation"] }) {
  const rows = heads.slice(0, MAX_TABLE_ROWS);
  if (!rows.length) return null;
  const measures = columns.filter((name) => !INDEX_COLUMNS.includes(name) && typeof rows[0][name] === "number");
  /** @param {Record<string, number>} row */
  const headLink = ({ layer, head }) => button(`${layer}.${head}`, () => store.set({ layer, head }), { class: "link" });
  /**
   * @param {Record<string, number>} row
   * @param {string} name
   */
  const cell = (row, name) => element("td", { "data-name": name, "data-value": row[name] }, formatNumber(row[name]));
  const header = element(
    "tr",
    {},
    ["head", ...measures].map((name) => element("th", { scope: "col" }, name.replaceAll("_", " "))),
  );
  /** @param {Record<string, number>} row */
  const tableRow = (row) =>
    element(
      "tr",
      {},
      element("td", {}, headLink(row)),
      measures.map((name) => cell(row, name)),
    );
  const body = element("tbody", {}, rows.map(tableRow));
  return element("table", { class: "plain-table" }, element("thead", {}, header), body);
}
