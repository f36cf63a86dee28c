// The curves of a chart of costs: operations and memory by formula, times as they were measured.

import { headColour } from "./colour.js";
import { timesOf } from "./costtimes.js";

export function curvesOf({ what, answer, known, timed, chosen, model }, theme) {
  const colour = (name) =>
    headColour(
      known.findIndex((each) => each.name === name),
      theme,
    );
  if (what === "seconds")
    return [...timesOf(timed, model)]
      .filter(([name]) => chosen.includes(name))
      .map(([name, points]) => ({ name, title: name, colour: colour(name), points, style: "dotted" }));
  const points = (values) => answer.lengths.map((n, at) => [n, values[at]]);
  const curves = answer.curves.map((curve) => ({
    name: curve.name,
    title: curve.name,
    colour: colour(curve.name),
    points: points(curve[what]),
  }));
  const { rest } = answer;
  return rest[what]
    ? [
        ...curves,
        { name: "rest", title: rest.name, colour: "var(--soft)", points: points(rest[what]), style: "dashed" },
      ]
    : curves;
}
