// "The cat sat on the mat" with one trained head, and with two.

import { element, replaceContent } from "../../../../src/regard/explorer/frontend/lib/element.js";
import { formatFixed } from "../../../../src/regard/explorer/frontend/lib/format.js";
import { attentionWords } from "./attention-words.js";
import { computeSteps, stageMatrix } from "./compute-steps.js";

/**
 * @import { Matrix, StageTemplates } from "../../../../src/regard/explorer/frontend/lib/types.js"
 * @import { GuideData, HeadData } from "./types.js"
 */

/** @param {GuideData} data */
export async function sentenceWidget({ templates, sentence: { tokens, layer, heads } }) {
  const { scores, weights } = await headStages(templates, heads[0]);
  const readout = element("p", { class: "readout-line", role: "status" });
  /** @param {number} query */
  const select = (query) => {
    words.show(query, [
      { name: "score", values: scores[query] },
      { name: "weight", values: weights[query], isWeight: true },
    ]);
    replaceContent(readout, describe(tokens, query, weights[query]));
  };
  const words = attentionWords(`Layer ${layer}, head ${heads[0].head}`, tokens, select);
  select(tokens.length - 1);
  return element("div", {}, words, readout);
}

/** @param {GuideData} data */
export async function headsWidget({ templates, sentence: { tokens, layer, heads } }) {
  const stages = await Promise.all(heads.map((head) => headStages(templates, head)));
  /** @param {number} query */
  const select = (query) =>
    tables.forEach(({ words, readout }, n) => {
      const weights = stages[n].weights[query];
      words.show(query, [{ name: "weight", values: weights, isWeight: true }]);
      replaceContent(readout, describe(tokens, query, weights));
    });
  const tables = heads.map(({ head }) => {
    const name = `Layer ${layer}, head ${head}`;
    return { name, words: attentionWords(name, tokens, select), readout: element("p", { class: "readout-line" }) };
  });
  select(tokens.length - 1);
  const figures = tables.map(({ name, words, readout }) =>
    element("figure", {}, element("figcaption", {}, name), words, readout),
  );
  return element("div", { class: "guide-columns is-even" }, figures);
}

/**
 * The masked scores and the weights of a head, computed from its queries and keys.
 * @param {StageTemplates} templates
 * @param {HeadData} head
 */
async function headStages(templates, { q, k, v }) {
  const steps = await computeSteps(templates, { q, k, v, mask: "causal" });
  return { scores: stageMatrix(steps, "masked"), weights: stageMatrix(steps, "weights") };
}

/**
 * A sentence with the largest weight of a query.
 * @param {string[]} tokens
 * @param {number} query
 * @param {number[]} weights
 */
function describe(tokens, query, weights) {
  const key = weights.indexOf(Math.max(...weights));
  const target = key === query ? "itself" : `“${tokens[key]}”`;
  return [
    element("span", { class: "query-color" }, `“${tokens[query]}”`),
    " attends most to ",
    element("span", { class: "key-color" }, target),
    `, with weight ${formatFixed(weights[key], 2)}.`,
  ];
}
