// A small picture of the weights of one head.

import { sqrtScale } from "../../../../src/regard/explorer/frontend/lib/color/color-scale.js";
import { svgElement } from "../../../../src/regard/explorer/frontend/lib/element.js";

/** @import { Matrix } from "../../../../src/regard/explorer/frontend/lib/types.js" */

/** @param {Matrix} weights */
export function headMap(weights) {
  const cells = weights.flatMap((row, i) =>
    row.flatMap((weight, j) =>
      weight > 0
        ? [svgElement("rect", { x: j, y: i, width: 1, height: 1, opacity: sqrtScale(weight).toFixed(3) })]
        : [],
    ),
  );
  return svgElement("svg", { viewBox: `0 0 ${weights[0].length} ${weights.length}`, "aria-hidden": "true" }, cells);
}
