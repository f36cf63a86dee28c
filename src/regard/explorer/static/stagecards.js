// The stages of a worked computation, a card each: what it is, its formula and its numbers.

import { element } from "./element.js";
import { matrix } from "./vectors.js";

const COLOURS = { K: "key", V: "value", output: "value" }; // those of queries and of all between are the query's

/** Every stage but those that are typed in. @param {Set<string>} typed their names */
export function stageCards({ stages, queries = [], keys = [] }, typed) {
  return stages
    .filter((stage) => !typed.has(stage.name))
    .map((stage, n) =>
      element(
        "article",
        { class: "stage-card", "data-stage": stage.name },
        element(
          "header",
          {},
          element("span", { class: "no" }, n + 1),
          element("h3", {}, stage.name),
          stage.formula ? element("code", {}, stage.formula) : null,
        ),
        stage.words ? element("p", {}, stage.words) : null,
        element("div", { class: "scroll" }, pictured(stage, queries, keys)),
      ),
    );
}

/** A stage's numbers as a matrix: one number as 1 × 1, a vector as a column. */
function pictured({ name, values, axes = [] }, queries, keys) {
  const names = (axis) => (({ query: queries, key: keys })[axis] ?? []).map(String);
  const colour = COLOURS[name] ?? "query";
  if (!Array.isArray(values)) return matrix([[values]], { colour });
  if (Array.isArray(values[0])) return matrix(values, { rows: names(axes[0]), columns: names(axes[1]), colour });
  return matrix(
    values.map((x) => [x]),
    { rows: names(axes[0]), colour },
  );
}
