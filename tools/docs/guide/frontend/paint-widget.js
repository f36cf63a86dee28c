// Mixing paint: drag the query on a color wheel and see the weights of the cans and the mixture.

import { element, replaceContent, slider } from "../../../../src/regard/explorer/frontend/lib/element.js";
import { formatFixed } from "../../../../src/regard/explorer/frontend/lib/format.js";
import { cssColor, polarVector, swapRows } from "./color-wheel.js";
import { computeSteps, stageMatrix } from "./compute-steps.js";
import { wheel } from "./wheel.js";

/** @import { GuideData, PaintData } from "./types.js" */

const MAX_LENGTH = 10;
const SWAPPED = ["yellow", "blue"];

/** @param {GuideData} data */
export async function paintWidget({ templates, paint }) {
  let query = { ...paint.query };
  let paints = paint.v;
  const cans = element("ul", { class: "cans", "aria-label": "Cans" });
  const mixture = element("div", { class: "mixture" });
  const update = async () => {
    dial.draw(query.angle, query.length);
    direction.setValue(query.angle);
    length.setValue(query.length);
    const q = [polarVector(query.angle, query.length)];
    const steps = await computeSteps(templates, { q, k: paint.k, v: paints });
    const [amounts] = stageMatrix(steps, "weights");
    replaceContent(
      cans,
      paint.cans.map((name, n) => can(name, paints[n], amounts[n])),
    );
    replaceContent(mixture, swatch(stageMatrix(steps, "output")[0]));
  };
  /** @param {Partial<typeof query>} patch */
  const setQuery = (patch) => {
    query = { ...query, ...patch };
    update();
  };
  const dial = wheel(paint, MAX_LENGTH, setQuery);
  const direction = slider(
    "Direction",
    [0, 359, 1],
    query.angle,
    (x) => `${x}°`,
    (angle) => setQuery({ angle }),
  );
  const length = slider(
    "Length",
    [0, MAX_LENGTH, 0.1],
    query.length,
    (x) => formatFixed(x, 1),
    (x) => setQuery({ length: x }),
  );
  const swap = swapBox(paint, (rows) => {
    paints = rows;
    update();
  });
  await update();
  return element(
    "div",
    { class: "guide-columns paint-columns" },
    element("div", { class: "wheel-controls" }, dial, direction, length, swap),
    element("div", { class: "paint-results" }, cans, mixture),
  );
}

/**
 * A checkbox that swaps the paints of two cans; the labels stay.
 * @param {PaintData} paint
 * @param {(paints: number[][]) => void} onChange
 */
function swapBox({ cans, v }, onChange) {
  const [first, second] = SWAPPED.map((name) => cans.indexOf(name));
  const box = element("input", { type: "checkbox" });
  box.addEventListener("change", () => onChange(box.checked ? swapRows(v, first, second) : v));
  return element("label", { class: "checkbox-label" }, box, ` Swap the paints of ${SWAPPED.join(" and ")}`);
}

/**
 * A can: its label, the amount that is used, and its paint.
 * @param {string} name
 * @param {number[]} paint
 * @param {number} amount
 */
function can(name, paint, amount) {
  const level = element("span", { class: "paint-level" });
  level.style.height = `${(100 * amount).toFixed(1)}%`;
  level.style.backgroundColor = cssColor(paint);
  const dot = element("span", { class: "paint-dot" });
  dot.style.backgroundColor = cssColor(paint);
  return element(
    "li",
    { "data-value": String(amount) },
    element("span", { class: "can-amount" }, formatFixed(amount, 2)),
    element("span", { class: "can", "aria-hidden": "true" }, level),
    element("span", { class: "can-label" }, dot, name),
  );
}

/** @param {number[]} rgb */
function swatch(rgb) {
  const color = element("span", { class: "swatch" });
  color.style.backgroundColor = cssColor(rgb);
  const numbers = rgb.map((x) => formatFixed(x, 1)).join(", ");
  return [
    color,
    element(
      "span",
      { role: "status" },
      "The mixture: red, green, blue = ",
      element("output", { "data-value": rgb.join(" ") }, numbers),
    ),
  ];
}
