// The steps that compute one weight, in order: title, formula and numbers of each.

import { element } from "../../lib/element.js";
import { formatNumber, pluralize, quoteToken } from "../../lib/format.js";
import { vectorTable } from "../../widgets/number-tables.js";

/** @import { CellSteps, Child } from "../../lib/types.js" */

/**
 * @typedef {{query: string, key: string, argmax: string}} CellNames tokens of the query, the key and the largest score
 * @typedef {[title: string, formula: string, ...content: Child[]]} Step
 */

/**
 * The steps that compute a weight.
 * @param {CellSteps} cell
 * @param {CellNames} names
 * @param {number} blockSize numbers of a vector per line
 * @returns {Step[]}
 */
export function cellSteps(cell, names, blockSize) {
  return [...scoreSteps(cell, blockSize), ...normalizerSteps(cell, names), ...outputSteps(cell, names, blockSize)];
}

/**
 * @param {CellSteps} cell
 * @param {number} blockSize
 */
function scoreSteps(cell, blockSize) {
  const isDot = cell.score_kind === "dot";
  /** @type {Step[]} */
  const steps = [
    [
      isDot ? "Multiply query and key elementwise" : "Take the query and the key",
      isDot ? "qᵢ, kⱼ and their products" : "qᵢ, kⱼ",
      vectorTable(
        [
          { name: "q", values: cell.q, color: "query" },
          { name: "k", values: cell.k, color: "key" },
          ...(cell.products ? [{ name: isDot ? "q × k" : "u tanh", values: cell.products, color: "ink" }] : []),
        ],
        blockSize,
      ),
    ],
  ];
  if (cell.products)
    steps.push([
      "Sum the products",
      isDot ? "qᵢ · kⱼ" : "the sum",
      line([firstProducts(cell.products), " = ", figure("dot", cell.dot)]),
    ]);
  if (isDot && cell.scale !== null) {
    steps.push([
      "Scale",
      `times ${scaleText(cell)}`,
      line([figure("", cell.dot), " × ", figure("", cell.scale), " = ", figure("scaled", cell.scaled)]),
    ]);
  }
  if (cell.modifier)
    steps.push([
      "Apply the score modifier",
      cell.modifier.text,
      line([figure("", cell.scaled), " becomes ", figure("modified_score", cell.modified_score)]),
    ]);
  steps.push([
    "Apply the mask",
    cell.mask ? `the query may attend to the key where ${cell.mask.text}` : "no mask: every query attends to every key",
    line([
      cell.is_visible
        ? element("b", { class: "is-true" }, "visible")
        : element("b", { class: "is-false" }, "masked: the weight is exactly 0"),
      cell.is_visible ? [", score ", figure("score", cell.score)] : "",
    ]),
  ]);
  return steps;
}

/**
 * The first products of the sum; the table above shows all of them.
 * @param {number[]} products
 */
function firstProducts(products) {
  const terms = products
    .slice(0, 4)
    .map((x, n) => (n && x >= 0 ? ` + ${formatNumber(x, 3)}` : n ? ` − ${formatNumber(-x, 3)}` : formatNumber(x, 3)));
  return `${terms.join("")}${products.length > 4 ? " + …" : ""}`;
}

/** @param {CellSteps} cell */
function scaleText(cell) {
  const headDim = cell.q.length;
  return cell.scale !== null && Math.abs(cell.scale - 1 / Math.sqrt(headDim)) < 1e-9
    ? `1/√${headDim}`
    : formatNumber(cell.scale);
}

/**
 * @param {CellSteps} cell
 * @param {CellNames} names
 * @returns {Step[]}
 */
function normalizerSteps(cell, names) {
  if (!cell.is_visible) return [];
  if (cell.row_max === undefined || cell.row_max === null) {
    const statistic = cell.statistic
      ? [`${cell.statistic.name} = `, figure("statistic", cell.statistic.value), "; "]
      : [];
    const weight = figure("weight", cell.weight, "weight");
    return [["Normalize", cell.normalizer, line([...statistic, "weight ", weight])]];
  }
  return [
    [
      "Subtract the row’s largest score",
      `the score of ${quoteToken(names.argmax)}; this prevents overflow of the exponential`,
      line([figure("", cell.score), " − ", figure("row_max", cell.row_max), " = ", figure("exponent", cell.exponent)]),
    ],
    [
      "Take the exponential",
      "exp(sᵢⱼ − mᵢ)",
      line(["e", element("sup", {}, formatNumber(cell.exponent)), " = ", figure("exp", cell.exp)]),
    ],
    [
      "Divide by the row’s sum",
      `the sum over ${pluralize(cell.num_visible_keys ?? 0, "visible key")}`,
      line([
        figure("", cell.exp),
        " ÷ ",
        figure("exp_sum", cell.exp_sum),
        " = ",
        figure("weight", cell.weight, "weight"),
      ]),
    ],
  ];
}

/**
 * @param {CellSteps} cell
 * @param {CellNames} names
 * @param {number} blockSize
 * @returns {Step[]}
 */
function outputSteps(cell, names, blockSize) {
  return [
    [
      `Multiply the value of ${quoteToken(names.key)} by the weight`,
      "aᵢⱼ vⱼ",
      vectorTable(
        [
          { name: "v", values: cell.v, color: "value" },
          { name: `${formatNumber(cell.weight, 3)} × v`, values: cell.weighted_value, color: "ink" },
        ],
        blockSize,
      ),
    ],
    [
      "Sum over all keys",
      "oᵢ = Σⱼ aᵢⱼ vⱼ",
      vectorTable([{ name: "output", values: cell.output, color: "value" }], blockSize),
    ],
  ];
}

/** @param {Child[]} children */
function line(children) {
  return element("p", { class: "step-line" }, children);
}

/**
 * A number with its full precision in a tooltip.
 * @param {string} name
 * @param {number | null | undefined} value
 */
function figure(name, value, className = "") {
  return element(
    "span",
    { class: `step-number ${className}`, "data-name": name, "data-value": value, title: String(value) },
    formatNumber(value),
  );
}
