// Color scales: functions from a weight to a fraction of the palette, linear, logarithmic or by rank.

/** @import { ScaleName } from "../types.js" */

const MIN_RANK_FRACTION = 0.04; // fraction of the palette for the lowest rank
export const LOG_SCALE_DECADES = 4; // a logarithmic scale shows weights down to 1e-4 of the maximum
const DROPPED_FLOAT_BITS = 15; // low bits of a float32 that the bins of ranks ignore: bins are at most 0.4% wide

/**
 * @param {"linear"|"log"|"rank"} name
 * @param {number} maximum the value of the strongest color
 * @param {Iterable<Iterable<number>>} values the values to rank, for "rank" only
 * @returns {(weight: number) => number}
 */
export function colorScale(name, maximum, values = []) {
  if (!(maximum > 0)) return () => 0;
  if (name === "log") return (w) => (w > 0 ? Math.max(0, 1 + Math.log10(w / maximum) / LOG_SCALE_DECADES) : 0);
  if (name === "rank") return rankScale(values);
  return (w) => w / maximum;
}

/**
 * A scale for signed differences, in which 0 has the fraction 0.5. Ranks are not supported: "rank" is linear.
 * @param {ScaleName} name
 * @param {number} maximum
 * @returns {(weight: number) => number}
 */
export function signedScale(name, maximum) {
  const absoluteScale = colorScale(name === "rank" ? "linear" : name, maximum);
  return (w) => 0.5 + 0.5 * Math.sign(w) * absoluteScale(Math.abs(w));
}

/**
 * The fraction of positive values that are smaller: the lowest value has the faintest color, the highest the strongest.
 * Values are counted in bins by the leading bits of their float32, which order positive floats.
 * @param {Iterable<Iterable<number>>} values
 * @returns {(weight: number) => number}
 */
function rankScale(values) {
  const numBelow = new Float64Array(2 ** (32 - DROPPED_FLOAT_BITS - 1) + 1); // by bin
  const float = new Float32Array(1);
  const bits = new Uint32Array(float.buffer);
  /** @param {number} w */
  const bin = (w) => {
    float[0] = w;
    return bits[0] >>> DROPPED_FLOAT_BITS;
  };
  let highest = 0;
  for (const array of values) {
    for (const w of array) {
      if (!(w > 0)) continue;
      numBelow[bin(w) + 1] += 1;
      if (w > highest) highest = w;
    }
  }
  for (let n = 1; n < numBelow.length; n += 1) numBelow[n] += numBelow[n - 1];
  const total = numBelow[bin(highest)] || 1;
  /** @param {number} w */
  const rank = (w) => Math.min(total, numBelow[bin(w)]) / total;
  return (w) => (w > 0 ? MIN_RANK_FRACTION + (1 - MIN_RANK_FRACTION) * rank(w) : 0);
}

/**
 * The scale that all heads share: the square root of a weight, from 0 to 1.
 * @param {number} weight
 */
export function sqrtScale(weight) {
  return Math.sqrt(Math.min(1, Math.max(0, weight)));
}
