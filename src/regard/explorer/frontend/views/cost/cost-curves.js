// The curves of the cost chart: operations and memory by formula, time by measurement.

import { headColor } from "../../lib/color/palettes.js";
import { timingsByMechanism } from "./cost-timings.js";

/**
 * @import { Curve } from "../../charts/chart.js"
 * @import { Cost, Mechanism, ModelSize, QuantityName, Theme, Timing } from "../../lib/types.js"
 */

/**
 * @typedef {Object} CostParts
 * @property {QuantityName} quantity
 * @property {Cost} response
 * @property {Mechanism[]} mechanisms
 * @property {Timing[]} timings
 * @property {string[]} selected names of mechanisms
 * @property {ModelSize} model
 */

/**
 * The curves of a quantity for the selected mechanisms.
 * @param {CostParts} parts
 * @param {Theme} theme
 * @returns {Curve[]}
 */
export function costCurves({ quantity, response, mechanisms, timings, selected, model }, theme) {
  /** @param {string} name */
  const color = (name) =>
    headColor(
      mechanisms.findIndex((mechanism) => mechanism.name === name),
      theme,
    );
  if (quantity === "seconds")
    return [...timingsByMechanism(timings, model)]
      .filter(([name]) => selected.includes(name))
      .map(([name, points]) => ({ name, title: name, color: color(name), points, style: "dotted" }));
  /**
   * @param {number[]} values
   * @returns {Array<[number, number]>}
   */
  const points = (values) => response.seq_lens.map((seqLen, n) => [seqLen, values[n]]);
  const curves = response.curves.map((curve) => ({
    name: curve.name,
    title: curve.name,
    color: color(curve.name),
    points: points(curve[quantity]),
  }));
  const { name: title, [quantity]: values } = response.non_attention;
  if (!values) return curves;
  return [...curves, { name: "non_attention", title, points: points(values), color: "var(--muted)", style: "dashed" }];
}
