// The stages of the walkthrough as cards: name, formula, description and numbers.

import { element } from "../../lib/element.js";
import { matrixTable } from "../../widgets/number-tables.js";

/** @import { Stage, Steps } from "../../lib/types.js" */

/** @type {Record<string, string>} */
const COLORS = { K: "key", V: "value", output: "value" }; // all other stages have the query's color

/**
 * The cards of all stages except the inputs.
 * @param {Steps} steps
 * @param {Set<string>} inputNames
 */
export function stageCards({ stages, query_labels = [], key_labels = [] }, inputNames) {
  return stages
    .filter((stage) => !inputNames.has(stage.name))
    .map((stage, n) =>
      element(
        "article",
        { class: "stage-card", "data-stage": stage.name },
        element(
          "header",
          {},
          element("span", { class: "stage-number" }, n + 1),
          element("h3", {}, stage.name),
          stage.formula ? element("code", {}, stage.formula) : null,
        ),
        stage.description ? element("p", {}, stage.description) : null,
        element("div", { class: "scroll-x" }, stageTable(stage, query_labels, key_labels)),
      ),
    );
}

/**
 * The values of a stage as a table: a scalar as 1 × 1, a vector as a column.
 * @param {Stage} stage
 * @param {string[]} queryLabels
 * @param {string[]} keyLabels
 */
function stageTable({ name, values, axes = [] }, queryLabels, keyLabels) {
  /** @param {string} axis */
  const labels = (axis) => (axis === "query" ? queryLabels : axis === "key" ? keyLabels : []).map(String);
  const color = COLORS[name] ?? "query";
  if (!Array.isArray(values)) return matrixTable([[values]], { color });
  if (values.every(Array.isArray))
    return matrixTable(values, { rows: labels(axes[0]), columns: labels(axes[1]), color });
  return matrixTable(
    values.map((x) => [x]),
    { rows: labels(axes[0]), color },
  );
}
