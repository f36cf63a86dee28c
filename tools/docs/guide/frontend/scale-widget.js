// One query and eight keys of dimension 64: drag the scale and see the softmax saturate.

import { element, replaceContent, slider } from "../../../../src/regard/explorer/frontend/lib/element.js";
import { formatNumber } from "../../../../src/regard/explorer/frontend/lib/format.js";
import { barList } from "./bars.js";
import { computeSteps, stageMatrix } from "./compute-steps.js";
import { derivativeNorm, entropy } from "./saturation.js";

/** @import { GuideData } from "./types.js" */

/** @type {[number, number, number]} */
const LOG2_RANGE = [-6, 1, 0.05];
const MAX_DERIVATIVE_NORM = 0.5; // two equal weights of 1/2

/** @param {GuideData} data */
export async function scaleWidget({ templates, saturation: { q, k } }) {
  const v = k.map(() => [0]); // the exercise shows weights only
  const headDim = q[0].length;
  const initial = -Math.log2(headDim) / 2;
  /** @param {number} log2 */
  const formatScale = (log2) => `${formatNumber(2 ** log2, 3)}${log2 === initial ? ` = 1/√${headDim}` : ""}`;
  const results = element("div", { class: "guide-columns is-even" });
  /** @param {number} log2 */
  const update = async (log2) => {
    const weights = stageMatrix(await computeSteps(templates, { q, k, v, scale: 2 ** log2 }), "weights")[0];
    const measures = [
      { label: "entropy", value: entropy(weights), fraction: entropy(weights) / Math.log(weights.length) },
      {
        label: "gradient norm",
        value: derivativeNorm(weights),
        fraction: derivativeNorm(weights) / MAX_DERIVATIVE_NORM,
      },
    ];
    /** @param {{label: string, value: number, fraction: number}} bar */
    const withText = (bar) => ({ ...bar, text: formatNumber(bar.value) });
    const weightBars = weights.map((value, n) => withText({ label: `key ${n}`, value, fraction: value }));
    replaceContent(
      results,
      element("figure", {}, element("figcaption", {}, "Weights"), barList("Weights", weightBars)),
      element("figure", {}, element("figcaption", {}, "Saturation"), barList("Saturation", measures.map(withText))),
    );
  };
  await update(initial);
  return element(
    "div",
    {},
    element("div", { class: "toolbar" }, slider("Scale", LOG2_RANGE, initial, formatScale, update)),
    results,
  );
}
