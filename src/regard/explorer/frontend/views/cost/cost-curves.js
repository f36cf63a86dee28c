// The curves of the cost chart: operations and memory by formula, time by measurement.

import { headColor } from "../../lib/color/palettes.js";
import { timingsByMechanism } from "./cost-timings.js";

/** The curves of a quantity for the selected mechanisms. */
export function costCurves({ quantity, response, mechanisms, timings, selected, model }, theme) {
  const color = (name) =>
    headColor(
      mechanisms.findIndex((mechanism) => mechanism.name === name),
      theme,
    );
  if (quantity === "seconds")
    return [...timingsByMechanism(timings, model)]
      .filter(([name]) => selected.includes(name))
      .map(([name, points]) => ({ name, title: name, color: color(name), points, style: "dotted" }));
  const points = (values) => response.seq_lens.map((seqLen, n) => [seqLen, values[n]]);
  const curves = response.curves.map((curve) => ({
    name: curve.name,
    title: curve.name,
    color: color(curve.name),
    points: points(curve[quantity]),
  }));
  const rest = response.non_attention;
  if (!rest[quantity]) return curves;
  const style = { color: "var(--muted)", style: "dashed" };
  return [...curves, { name: "non_attention", title: rest.name, points: points(rest[quantity]), ...style }];
}
