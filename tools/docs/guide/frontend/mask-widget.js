// The three words with a mask: masked scores, weights and output.

import { element, replaceContent, segmentedControl } from "../../../../src/regard/explorer/frontend/lib/element.js";
import { formatNumber } from "../../../../src/regard/explorer/frontend/lib/format.js";
import { stageCards } from "../../../../src/regard/explorer/frontend/views/steps/stage-cards.js";
import { computeSteps, stageMatrix } from "./compute-steps.js";

/** @import { GuideData } from "./types.js" */

const SHOWN_STAGES = ["scaled", "visible", "masked", "weights", "output"];
const NO_MASK = "none";

/**
 * @param {GuideData} data
 * @param {Array<[name: string, text: string]>} choices names of masks, and "none"
 * @param {string} initial
 */
export async function maskWidget({ templates, words }, choices, initial) {
  const results = element("div", { class: "stage-cards", role: "group", "aria-label": "Results" });
  const sums = element("p", { class: "hint", role: "status" });
  /** @param {string} mask */
  const update = async (mask) => {
    const steps = await computeSteps(templates, { ...words, mask });
    const shown = SHOWN_STAGES.filter((name) => mask === NO_MASK || name !== "scaled");
    const stages = steps.stages.filter(({ name }) => shown.includes(name));
    replaceContent(results, stageCards({ ...steps, stages }, new Set()));
    const rowSums = stageMatrix(steps, "weights").map((row) => formatNumber(row.reduce((sum, a) => sum + a, 0)));
    replaceContent(sums, `Sums of the rows of weights: ${rowSums.join(", ")}.`);
  };
  await update(initial);
  const choice = segmentedControl("Mask", choices, initial, update);
  return element("div", {}, element("div", { class: "toolbar" }, choice), results, sums);
}
