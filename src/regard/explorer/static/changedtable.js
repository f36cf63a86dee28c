// The heads that differ most between two recordings.

import { button, element } from "./element.js";
import { number } from "./format.js";

const MOST = 12;
const PLACES = ["layer", "head", "path", "batch", "query", "key"];

/** A table of heads, those that changed most first; a click shows one. Null if there is none. */
export function changedTable({ store }, { heads = [], columns = ["changed"] }) {
  const rows = heads.slice(0, MOST);
  if (!rows.length) return null;
  const names = columns.filter((name) => !PLACES.includes(name) && typeof rows[0][name] === "number");
  const open = ({ layer, head }) => button(`${layer}.${head}`, () => store.set({ layer, head }), { class: "link" });
  const cell = (row, name) => element("td", { "data-name": name, "data-value": row[name] }, number(row[name]));
  const head = element(
    "tr",
    {},
    ["head", ...names].map((name) => element("th", { scope: "col" }, name)),
  );
  const line = (row) =>
    element(
      "tr",
      {},
      element("td", {}, open(row)),
      names.map((name) => cell(row, name)),
    );
  return element("table", { class: "plain" }, element("thead", {}, head), element("tbody", {}, rows.map(line)));
}
