// The three words: edit X or Q and see scores, weights and output.

import {
  button,
  element,
  replaceContent,
  segmentedControl,
} from "../../../../src/regard/explorer/frontend/lib/element.js";
import { matrixInput } from "../../../../src/regard/explorer/frontend/views/steps/matrix-input.js";
import { stageCards } from "../../../../src/regard/explorer/frontend/views/steps/stage-cards.js";
import { computeSteps, stageMatrix } from "./compute-steps.js";

/**
 * @import { InputMatrices, Matrix } from "../../../../src/regard/explorer/frontend/lib/types.js"
 * @import { GuideData } from "./types.js"
 */

const SHOWN_STAGES = ["Q", "scaled", "weights", "output"];

/** @param {GuideData} data */
export async function stepsWidget({ templates, words }) {
  const { tokens, ...projection } = words;
  /** @type {InputMatrices} */
  let inputs = projection;
  /** @type {"x" | "q"} */
  let edited = "x";
  const input = element("div", { class: "guide-inputs" });
  const cards = element("div", { class: "stage-cards", role: "group", "aria-label": "Results" });
  const compute = () => computeSteps(templates, { ...inputs, tokens });
  const update = async () => {
    try {
      const steps = await compute();
      const stages = steps.stages.filter(({ name }) => SHOWN_STAGES.includes(name));
      replaceContent(cards, stageCards({ ...steps, stages }, new Set(edited === "q" ? ["Q"] : [])));
    } catch (error) {
      replaceContent(cards, element("p", { class: "error-text", role: "alert" }, /** @type {Error} */ (error).message));
    }
  };
  /** @param {Matrix} values */
  const onChange = (values) => {
    inputs = { ...inputs, [edited]: values };
    update();
  };
  const drawInput = () => {
    const isX = edited === "x";
    replaceContent(input, matrixInput(isX ? "X" : "Q", inputs[edited] ?? [], isX ? "ink" : "query", onChange));
    return update();
  };
  /** @param {"x" | "q"} name */
  const edit = async (name) => {
    const steps = await compute().catch(() => computeSteps(templates, projection));
    edited = name;
    const [q, k, v] = ["Q", "K", "V"].map((stage) => stageMatrix(steps, stage));
    inputs = name === "q" ? { q, k, v } : projection;
    await drawInput();
  };
  const choice = segmentedControl(
    "Matrix to edit",
    [
      ["x", "Edit X"],
      ["q", "Edit Q"],
    ],
    "x",
    edit,
  );
  const reset = button("Reset", () => {
    choice.mark("x");
    edit("x");
  });
  await drawInput();
  return element("div", {}, element("div", { class: "toolbar" }, choice, reset), input, cards);
}
