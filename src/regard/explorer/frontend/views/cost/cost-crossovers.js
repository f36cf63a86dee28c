// The crossovers of cost curves: the lengths from which one mechanism is cheaper than another.

import { formatCount } from "../../lib/format.js";

/**
 * @import { Mark } from "../../charts/chart.js"
 * @import { Cost } from "../../lib/types.js"
 */

/** @typedef {{x: number, y: number | null, text: string, description: string}} CrossoverMark y: null without a curve */

/**
 * The crossovers as chart marks on the curve of the first mechanism.
 * @param {Cost} response
 * @returns {CrossoverMark[]}
 */
export function costCrossovers(response) {
  return (response.crossovers ?? []).map(({ first, seq_len: x, text }) => {
    const curve = response.curves.find(({ name }) => name === first);
    return { x, y: interpolateLogLog(response.seq_lens, curve?.flops, x), text: formatCount(x), description: text };
  });
}

/**
 * Drops crossovers that almost coincide with an earlier one.
 * @template {{x: number, y: number}} Mark
 * @param {Mark[]} crossovers
 */
export function mergeNearbyCrossovers(crossovers) {
  return crossovers.filter(
    ({ x, y }, n) =>
      !crossovers
        .slice(0, n)
        .some((other) => Math.abs(Math.log(x / other.x)) < 0.02 && Math.abs(Math.log(y / other.y)) < 0.05),
  );
}

/**
 * The value of a curve at x, interpolated linearly between logarithms; null outside the curve.
 * @param {number[]} lengths
 * @param {number[] | undefined} values
 * @param {number} x
 */
function interpolateLogLog(lengths, values, x) {
  if (!values) return null;
  for (let n = 1; n < lengths.length; n += 1) {
    if (x <= lengths[n] && x >= lengths[n - 1]) {
      const fraction = Math.log(x / lengths[n - 1]) / Math.log(lengths[n] / lengths[n - 1]);
      return values[n - 1] ** (1 - fraction) * values[n] ** fraction;
    }
  }
  return null;
}
