// The steps of one weight, in the order of the mathematics: for each a title, a formula and what is shown.

import { element } from "./element.js";
import { number, quoted } from "./format.js";
import { vectors } from "./vectors.js";

/**
 * @param {Object} cell the answer to the question of that name
 * @param {{query: string, key: string, top: string}} names tokens: of the query, of the key, of the largest score
 * @param {number} across numbers of a vector in a line
 */
export function workedThrough(cell, names, across) {
  return [...scored(cell, across), ...weighed(cell, names), ...taken(cell, names, across)];
}

function scored(cell, across) {
  const isDot = cell.kind === "dot";
  const found = [
    [
      isDot ? "Compare number by number" : "Compare",
      isDot ? "qᵢ, kⱼ and their products" : "qᵢ, kⱼ",
      vectors(
        [
          { name: "q", values: cell.q, colour: "query" },
          { name: "k", values: cell.k, colour: "key" },
          ...(cell.products ? [{ name: isDot ? "q × k" : "u tanh", values: cell.products, colour: "ink" }] : []),
        ],
        across,
      ),
    ],
  ];
  if (cell.products)
    found.push([
      "Add the products up",
      isDot ? "qᵢ · kⱼ" : "the sum",
      line([addends(cell.products), " = ", figure("dot", cell.dot)]),
    ]);
  if (isDot && cell.scale !== null) {
    found.push([
      "Scale",
      `times ${scaleWords(cell)}`,
      line([figure("", cell.dot), " × ", figure("", cell.scale), " = ", figure("scaled", cell.scaled)]),
    ]);
  }
  if (cell.rule)
    found.push([
      "The rule",
      cell.rule.text,
      line([figure("", cell.scaled), " becomes ", figure("after_rule", cell.after_rule)]),
    ]);
  found.push([
    "May it look there?",
    cell.mask ? `seen where ${cell.mask.text}` : "no mask: everyone sees everything",
    line([
      cell.seen ? element("b", { class: "yes" }, "yes") : element("b", { class: "no" }, "no: the weight is exactly 0"),
      cell.seen ? ["; the score is ", figure("score", cell.score)] : "",
    ]),
  ]);
  return found;
}

/** The first few products; all of them stand above. */
function addends(products) {
  const some = products
    .slice(0, 4)
    .map((x, n) => (n && x >= 0 ? ` + ${number(x, 3)}` : n ? ` − ${number(-x, 3)}` : number(x, 3)));
  return `${some.join("")}${products.length > 4 ? " + …" : ""}`;
}

function scaleWords(cell) {
  const width = cell.q.length;
  return Math.abs(cell.scale - 1 / Math.sqrt(width)) < 1e-9 ? `1/√${width}` : number(cell.scale);
}

function weighed(cell, names) {
  if (!cell.seen) return [];
  if (cell.maximum === undefined || cell.maximum === null) {
    const statistic = cell.statistic
      ? [`${cell.statistic.name} = `, figure("statistic", cell.statistic.value), "; "]
      : [];
    return [["Weigh", cell.weighing, line([...statistic, "the weight is ", figure("weight", cell.weight, "weight")])]];
  }
  return [
    [
      "Subtract the row’s largest score",
      `so that nothing grows too large; it is ${quoted(names.top ?? "")}’s`,
      line([figure("", cell.score), " − ", figure("maximum", cell.maximum), " = ", figure("exponent", cell.exponent)]),
    ],
    [
      "Raise e to it",
      "exp(sᵢⱼ − mᵢ)",
      line(["e", element("sup", {}, number(cell.exponent)), " = ", figure("power", cell.power)]),
    ],
    [
      "Divide by the row’s sum",
      `the sum over the ${cell.keys_seen} keys that it sees`,
      line([
        figure("", cell.power),
        " ÷ ",
        figure("total", cell.total),
        " = ",
        figure("weight", cell.weight, "weight"),
      ]),
    ],
  ];
}

function taken(cell, names, across) {
  return [
    [
      `Take that much of ${names.key}’s value`,
      "aᵢⱼ vⱼ",
      vectors(
        [
          { name: "v", values: cell.v, colour: "value" },
          { name: `${number(cell.weight, 3)} × v`, values: cell.taken, colour: "ink" },
        ],
        across,
      ),
    ],
    [
      "Do so for every key, and add",
      "oᵢ = Σⱼ aᵢⱼ vⱼ",
      vectors([{ name: "output", values: cell.output, colour: "value" }], across),
    ],
  ];
}

function line(children) {
  return element("p", { class: "line" }, children.flat());
}

function figure(name, value, more = "") {
  return element(
    "span",
    { class: `fig ${more}`, "data-name": name, "data-value": value, title: String(value) },
    number(value),
  );
}
